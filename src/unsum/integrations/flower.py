"""Flower: a strategy that audits any other one's rounds, and a mod that looks at an update before
it leaves the client.

    strategy = AuditStrategy(FedAvg(), model, training=LocalTraining(learning_rate=0.1))
    app = ClientApp(mods=[leakage_guard_mod(model, threshold=0.2), LocalDpMod(…)])

Written for Flower's message API (`flwr.serverapp`, `flwr.clientapp`), from 1.30 on.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from unsum.audit.round_ceiling import NEEDS_DATA, RoundCeiling
from unsum.audit.verdict import NOT_DECIDABLE
from unsum.defend import Defense
from unsum.errors import UnsumError, needed
from unsum.integrations.finding import (
    ClientFinding,
    Journal,
    attack_seen,
    check_attack,
    figures_of,
    finding_of,
    reason_of,
    surest,
)
from unsum.integrations.flower_messages import (
    WrappedStrategy,
    num_examples,
    only_arrays,
    tensors_of,
)
from unsum.integrations.guard import Action, Guard
from unsum.integrations.pool import ArrivedWeights, AuditPool
from unsum.integrations.rounds import Seen, fill, seen
from unsum.integrations.stand_in import SECONDS, Beside, StandIn
from unsum.integrations.time_limit import SEARCHING, OutOfTime, within
from unsum.local_training import LocalTraining
from unsum.running.deadline import DEFAULT_LIMIT
from unsum.running.declared import check_whole
from unsum.separate.several_rounds import separate_rounds
from unsum.update import Update

# isort: split
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

__all__ = ["AuditStrategy", "LocalTraining", "leakage_guard_mod"]

_LOG = logging.getLogger("flwr")  # so that findings stand where Flower's own lines do
_SHARE = 0.1  # of the training's time so far, which audits may have taken by default
_LAST = 0.05  # of a round's budget: with less left, no further audit is begun
_REMEMBERED = 3  # rounds of a client whose data repeat
_ONE_RECORD = (
    "A message must hold exactly one record of arrays to be audited, sent out and sent back."
)
_REFUSED = 6  # Flower's code for a mod whose precondition failed

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


class AuditStrategy(WrappedStrategy):
    """`inner` as it is, with its clients' updates audited on their way in; training is the same
    with and without.

    Args:
        inner: any strategy, wrappers for differential privacy included. What is audited is what
            arrives from the clients, before `inner` clips it or adds noise.
        model: the model that is trained; its weights are not looked at, those that were sent are.
        every: audit every so many rounds, from the first on.
        clients: how many clients a round, those with the fewest turns so far first; all by default.
        budget_seconds: for the audits of one round; by default, all audits together may take a
            tenth of the time that the training took until then. One audit gets at most half of what
            is left and gives its best answer then; if the first one of a round had to, no other is
            begun until twice as much has been saved up, and gets it all. Findings say who was left
            out.
        processes: audit on so many processes of their own, behind the training: a round waits for
            none of them. `budget_seconds` is then for each update, 60 by default. Findings come
            with the rounds after, the last ones with `finish`, which `start` calls at its end;
            where more updates come than can be audited, findings say who was left out.
        training: what the server knows of its clients' training.
        attack: by default the exact solver, which is quick and vouches for its answers, or
            `local-steps` where clients take several; any other separator; or `auto`, everything.
        repeats: say that a client trains on the same batch in every round. Its last rounds are then
            solved together (`unsum.separate_rounds`), and their weights and updates kept for every
            client that was audited.
        data: (inputs, targets) of the clients' kind, as many as the smallest client has, that stand
            in for its own. A client with these is played on the weights of every round, in a
            process beside the training, and `ceilings` says what
            nobody can exceed after so many rounds with the same data. None: no ceiling is computed.
        defenses: what clients are declared to do to their update, for that ceiling: `[Clip(1.0),
            Noise(0.1)]`, in units of a gradient (noise on the weights over the learning rate).
        ceiling_seconds: for the ceiling of one round.
        folder: where to write `leakage.jsonl` and `ceilings.jsonl`, and TensorBoard's curves where
            it is installed.
        train: BatchNorm's mode in the clients' training.

    `findings` holds every finding, `ceilings` the ceiling after every round, `worst` what was seen
    of the client that leaked most, with the weights that it was sent; `training_seconds` and
    `audit_seconds` add up what both took.
    """

    def __init__(
        self,
        inner: Strategy,
        model: nn.Module,
        *,
        every: int = 1,
        clients: int | None = None,
        budget_seconds: float | None = None,
        processes: int | None = None,
        training: LocalTraining | None = None,
        attack: str | None = None,
        repeats: bool = False,
        data: Any = None,
        defenses: Defense | Sequence[Defense] = (),
        ceiling_seconds: float = SECONDS,
        folder: str | Path | None = None,
        train: bool = True,
        seed: int = 0,
    ) -> None:
        if every < 1 or (clients is not None and clients < 1):
            raise UnsumError(f"every= and clients= count from 1; found {every} and {clients}.")
        if budget_seconds is not None and not budget_seconds > 0:
            raise UnsumError(f"An audit needs a budget above 0 seconds, not {budget_seconds}.")
        check_attack(attack)
        self._earlier: dict[int, list[tuple[nn.Module, Update]]] | None = {} if repeats else None
        self.inner, self.findings = inner, list[ClientFinding]()
        self.worst: tuple[ClientFinding, nn.Module, Seen] | None = None
        self._model = copy.deepcopy(model).cpu()
        self._every, self._clients, self._budget = every, clients, budget_seconds
        self._training, self._attack, self._train, self._seed = training, attack, train, seed
        self._journal = Journal(folder)
        self._pool: AuditPool | None = None
        if processes is not None:
            if repeats:
                raise UnsumError(
                    "Rounds are solved together in one process; leave out processes=, or "
                    "repeats=True."
                )
            check_whole("The number of processes", processes)
            limit = budget_seconds or DEFAULT_LIMIT
            self._pool = AuditPool(self._model, processes, train=train, seed=seed, time_limit=limit)
        self.ceilings: list[RoundCeiling] = []
        self._beside: Beside | None = None
        if data is not None:
            chain = [defenses] if isinstance(defenses, Defense) else list(defenses)
            client = StandIn(data, chain, training, train, ceiling_seconds, seed)
            self._beside = Beside(self._model, client)
        self._sent: dict[int, ArrayRecord] = {}
        self._turns: dict[int, int] = {}
        self.training_seconds = self.audit_seconds = 0.0
        self._started = self._saved_up = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._sent = {}
        if (server_round - 1) % self._every == 0:
            # References: the record is the same for all clients, so a thousand of them cost no more
            # memory than one.
            records = ((message.metadata.dst_node_id, only_arrays(message)) for message in messages)
            self._sent = {node: record for node, record in records if record is not None}
        try:
            self._play(server_round, messages)
        except Exception as error:  # a ceiling never breaks a round
            self._beside = None
            _LOG.warning("unsum: no ceiling is computed any more. %s", reason_of(error))
        self._started = time.perf_counter()
        return messages

    def _play(self, number: int, messages: list[Message]) -> None:
        """Hand the round's weights to the stand-in client, which is played while the clients
        train."""
        if self._beside is None or not messages:
            return
        record, *others = [only_arrays(message) for message in messages]
        alike = record is not None and all(other is record for other in others)
        lost = (
            ""
            if alike
            else (
                f"Round {number} could not be played. Clients were not sent one record of the same "
                "weights."
            )
        )
        self._beside.offer(number, lambda: {} if record is None else tensors_of(record), lost)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        received = list(replies)
        start = time.perf_counter()
        self.training_seconds += start - self._started
        figures: dict[str, float] = {}
        try:
            figures = (self._audit if self._pool is None else self._hand_over)(
                server_round, received
            )
        except Exception as error:  # an audit never breaks a round
            _LOG.warning("unsum: round %d was not audited. %s", server_round, reason_of(error))
        self.audit_seconds += time.perf_counter() - start
        self._sent = {}
        figures |= self._bounded([] if self._beside is None else self._beside.ready())
        arrays, metrics = self.inner.aggregate_train(server_round, received)
        if figures:
            metrics = MetricRecord({**(metrics or {}), **figures})
        return arrays, metrics

    def summary(self) -> None:
        whom = "all clients" if self._clients is None else f"{self._clients} clients"
        budget = (
            f"{_SHARE:.0%} of the training's time"
            if self._budget is None
            else f"{self._budget:g} s a round"
        )
        _LOG.info("\t├──> unsum: audits %s every %d rounds, within %s", whom, self._every, budget)
        if self._beside is None:
            _LOG.info("\t├──> unsum: %s (data=, defenses=).", NEEDS_DATA)
        self.inner.summary()

    def _bounded(self, ceilings: list[RoundCeiling]) -> dict[str, float]:
        """The figures of the last ceiling that is known, which may be of an earlier round."""
        self.ceilings += ceilings
        try:
            self._journal.write_ceilings(ceilings)
        except Exception as error:  # a full disk never breaks a round
            _LOG.warning("unsum: a ceiling was not written. %s", error)
        if not self.ceilings:
            return {}
        last = self.ceilings[-1]
        if ceilings:
            _LOG.info("unsum: %s", last.sentence)
        return {"leak-ceiling": last.ceiling, "leak-ceiling-rounds": last.rounds}

    def _audit(self, number: int, replies: list[Message]) -> dict[str, float]:
        if not self._sent:
            return {}
        start = time.perf_counter()
        if self._budget is not None:
            budget = self._budget
        else:  # none while saving up for an audit that twice the last allowance may be enough for
            left = _SHARE * self.training_seconds - self.audit_seconds
            budget = left if left >= self._saved_up else 0.0
        findings = []
        for reply in self._chosen(replies):
            left = start + budget - time.perf_counter()
            if left <= _LAST * budget:
                findings.append(
                    _late(number, reply, f"the round's budget of {max(budget, 0):.2g} s was over")
                )
            else:
                # half of what is left, so that one slow audit leaves time for others; all of it
                # where it was saved up
                part = 1 if self._saved_up and not findings else 2
                findings.append(self._audit_one(number, reply, left / part))
        if budget > 0:
            self._saved_up = 2 * budget if findings and findings[0].ran_out_of_time else 0.0
        return self._noted(number, findings, time.perf_counter() - start)

    def _hand_over(self, number: int, replies: list[Message]) -> dict[str, float]:
        """Give the updates to the pool, and take what it has found of earlier ones."""
        pool = needed(self._pool, "The pool of processes")
        start, findings = time.perf_counter(), []
        # read once for all clients that were sent the same record
        sent = dict[int, dict[str, Tensor]]()
        for reply in self._chosen(replies) if self._sent else []:
            node = reply.metadata.src_node_id
            self._turns[node] = self._turns.get(node, 0) + 1
            before, after = self._sent.get(node), only_arrays(reply)
            if before is None or after is None:
                findings.append(ClientFinding(number, str(node), "failed", notes=(_ONE_RECORD,)))
                continue
            if id(before) not in sent:
                sent[id(before)] = dict(tensors_of(before))
            weights: dict[str, Any] = {"before": sent[id(before)], "after": dict(tensors_of(after))}
            how: dict[str, Any] = {"training": self._training, "attack": self._attack}
            arrived = ArrivedWeights(
                str(node), None, number, **weights, **how, num_examples=num_examples(reply)
            )
            if not pool.offer(arrived):
                findings.append(_late(number, reply, "all processes of the pool were busy"))
        return self._noted(number, [*findings, *pool.ready()], time.perf_counter() - start)

    def finish(self) -> None:
        """Wait for the audits and ceilings that are still under way behind the training."""
        if self._beside is not None:
            self._bounded(self._beside.finish())
        if self._pool is not None:
            start, findings = time.perf_counter(), self._pool.finish()
            if findings:
                self._noted(
                    max(finding.round for finding in findings),
                    findings,
                    time.perf_counter() - start,
                )

    def start(self, *arguments: Any, **options: Any) -> Any:
        """As `Strategy.start`; audits that are behind the training end before it returns."""
        try:
            return super().start(*arguments, **options)
        finally:
            self.finish()

    def _noted(
        self, number: int, findings: list[ClientFinding], seconds: float
    ) -> dict[str, float]:
        figures = figures_of(findings, seconds)
        self.findings += findings
        self._journal.write(number, findings, figures)
        self._say(number, findings)
        return figures

    def _chosen(self, replies: list[Message]) -> list[Message]:
        """Those to be audited, the ones with the fewest turns so far first; a client's error takes
        nobody's place."""
        answers = sorted(
            (reply for reply in replies if not reply.has_error()),
            key=lambda reply: (
                self._turns.get(reply.metadata.src_node_id, 0),
                reply.metadata.src_node_id,
            ),
        )
        return answers[: self._clients]

    def _audit_one(self, number: int, reply: Message, seconds: float) -> ClientFinding:
        node = reply.metadata.src_node_id
        # even if it runs out of time, or it would be first for ever
        self._turns[node] = self._turns.get(node, 0) + 1
        try:
            model, seen_, finding = within(
                seconds, lambda: self._look(number, reply, SEARCHING * seconds)
            )
        except OutOfTime:
            return _late(
                number,
                reply,
                f"it took longer than the {seconds:.2g} s it was given of the round's budget",
            )
        except Exception as error:
            return ClientFinding(number, str(node), "failed", notes=(reason_of(error),))
        if self.worst is None or _rank(finding) > _rank(self.worst[0]):
            self.worst = finding, model, seen_
        return finding

    def _look(
        self, number: int, reply: Message, seconds: float
    ) -> tuple[nn.Module, Seen, ClientFinding]:
        node = reply.metadata.src_node_id
        before, after = self._sent.get(node), only_arrays(reply)
        if before is None or after is None:
            raise UnsumError(_ONE_RECORD)
        # its own: an audit that was stopped may hold on to it for a moment
        model = copy.deepcopy(self._model)
        sent = tensors_of(before)
        fill(model, sent)
        found = seen(
            model, sent, tensors_of(after), self._training, num_examples=num_examples(reply)
        )
        how: dict[str, Any] = {"train": self._train, "seed": self._seed, "time_limit": seconds}
        leak = attack_seen(model, found, self._attack, **how)
        if self._earlier is not None:
            rounds = [*self._earlier.get(node, []), (model, found.update)][-_REMEMBERED:]
            self._earlier[node] = rounds
            if len(rounds) > 1:
                together = separate_rounds(
                    rounds, batch_size=found.update.batch_size, seed=self._seed
                )
                leak = min(leak, together, key=surest)
        return model, found, finding_of(number, str(node), found.update, leak)

    def _say(self, number: int, findings: list[ClientFinding]) -> None:
        audited = [finding for finding in findings if finding.outcome == "audited"]
        exact = [finding for finding in audited if finding.exact]
        _LOG.info(
            "unsum: round %d: %d of %d clients audited; %d give their batch away for certain (%d "
            "distinct samples), %d are not decidable",
            number, len(audited), len(findings), len(exact),
            sum(finding.distinct or 0 for finding in exact),
            sum(finding.state == NOT_DECIDABLE for finding in audited),
        )  # fmt: skip
        for finding in findings:
            if finding.outcome != "audited":
                _LOG.warning("unsum: client %s: %s", finding.client, " ".join(finding.notes))
                break  # one of them says it for all
        for finding in audited:
            if finding.state == NOT_DECIDABLE:
                _LOG.warning(
                    "unsum: client %s is not decidable, which is not safe: %s",
                    finding.client,
                    finding.reason,
                )
                break


def leakage_guard_mod(
    model: nn.Module, threshold: float = 0.2, action: Action = "refuse", **options: Any
) -> Mod:
    """A mod that audits the client's answer to a training message; the arguments are those of
    `unsum.integrations.guard.Guard`.

    Put it **first** in `ClientApp(mods=[…])`: the first mod is the outermost, so it sees the answer
    last, as it leaves. Behind a mod that clips or adds noise (`LocalDpMod`, say) it would look at
    an update that is changed afterwards. Mods of `@app.train(mods=[…])` lie inside those of the
    app.
    """
    guard = Guard(model, threshold, action, **options)

    def leakage_guard(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        before = only_arrays(message)
        sent = None if before is None else tensors_of(before)  # now: the app may change the message
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        after = only_arrays(reply)
        if sent is None or after is None:
            return _refusal(
                message, "it needs exactly one record of arrays in the message and in the answer."
            )
        judged = guard.judge(sent, tensors_of(after))
        if judged.weights is None:
            return _refusal(message, judged.reason)
        if judged.noise:
            (name,) = reply.content.array_records
            reply.content[name] = ArrayRecord(
                {key: Array(value.numpy()) for key, value in judged.weights.items()}
            )
            _LOG.info(
                "unsum: noise of %.1e was added to the update. %s", judged.noise, judged.reason
            )
        return reply

    return leakage_guard


def _late(number: int, reply: Message, cause: str) -> ClientFinding:
    note = f"Not audited: {cause}; raise budget_seconds=, or audit fewer clients."
    return ClientFinding(number, str(reply.metadata.src_node_id), "out of time", notes=(note,))


def _refusal(message: Message, reason: str) -> Message:
    told = f"unsum's leakage guard kept the update back: {reason}"
    _LOG.warning("%s", told)
    return Message(Error(code=_REFUSED, reason=told), reply_to=message)


def _rank(finding: ClientFinding) -> tuple[bool, float]:
    return finding.exact, finding.leakage if finding.leakage == finding.leakage else -1.0
