"""The guard in Flower's chain of mods: what it sees, what it refuses, and what it lets pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from messages import reply
from networks import network, photos, trained

from unsum.integrations.flower import LocalTraining, leakage_guard_mod

RATE = 0.1
KNOWN = LocalTraining(learning_rate=RATE)


def client(mods, *, inner_mods=()) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train(mods=list(inner_mods))
    def train(message: Message, context: Context) -> Message:
        return reply(message, trained(network(), *photos(), rate=RATE))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message, network().state_dict())

    return app


def call(app: ClientApp, kind: str = "train") -> Message:
    content = RecordDict({"arrays": ArrayRecord(network().state_dict()), "config": ConfigRecord()})
    message = Message(content, dst_node_id=7, message_type=kind)
    return app(
        message, Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})
    )


def weights(message: Message) -> dict[str, torch.Tensor]:
    return dict(next(iter(message.content.array_records.values())).to_torch_state_dict())


def loud(message: Message, context: Context, call_next) -> Message:
    """A mod that drowns the update in noise, as local differential privacy does."""
    answer = call_next(message, context)
    if answer.has_error():
        return answer
    generator = np.random.default_rng(0)
    after = weights(answer)
    for name, value in after.items():
        if value.is_floating_point():
            after[name] = value + torch.from_numpy(generator.normal(0, 1, value.shape)).to(value)
    answer.content["arrays"] = ArrayRecord(after)
    return answer


def test_an_update_that_gives_its_batch_away_is_refused() -> None:
    answer = call(client([leakage_guard_mod(network(seed=5), training=KNOWN)]))
    assert answer.has_error()
    assert answer.error.code == 6
    assert "leakage of 1.00, above the threshold of 0.2" in answer.error.reason


def test_noise_is_added_until_the_attack_expects_to_fail() -> None:
    guard = leakage_guard_mod(network(), training=KNOWN, action="noise", attack="exact")
    plain, answer = trained(network(), *photos(), rate=RATE), call(client([guard]))
    assert not answer.has_error()
    sent = weights(answer)
    change = sent["7.weight"] - plain["7.weight"]
    moved = plain["7.weight"] - network()[7].weight.detach()
    assert 0.01 < float(change.square().mean().sqrt() / moved.square().mean().sqrt()) < 30
    assert all(
        torch.equal(sent[name], plain[name])
        for name in plain
        if "running" in name or "tracked" in name
    )
    # What left would pass the same guard; it does not merely say so.
    from unsum.integrations.guard import Guard

    judged = Guard(network(), training=KNOWN, attack="exact").judge(network().state_dict(), sent)
    assert judged.weights is not None
    assert judged.noise == 0


def test_the_first_mod_is_the_outermost_and_sees_what_leaves() -> None:
    guard = leakage_guard_mod(network(), training=KNOWN, attack="exact")
    assert not call(client([guard, loud])).has_error()  # it sees the noise
    assert call(client([loud, guard])).has_error()  # it sees what was there before the noise
    # mods of one function lie inside the app's
    assert not call(client([guard], inner_mods=[loud])).has_error()
    assert call(client([loud], inner_mods=[guard])).has_error()


def test_flowers_own_local_privacy_is_seen_from_the_first_place() -> None:
    # noise of 0.48 on every weight
    private = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    guard = leakage_guard_mod(network(), training=KNOWN, attack="exact")
    answer = call(client([guard, private]))
    assert not answer.has_error()
    assert float(
        (weights(answer)["7.weight"] - network()[7].weight.detach()).std()
    ) == pytest.approx(0.48, rel=0.1)
    assert call(client([private, guard])).has_error()


def test_only_training_messages_are_looked_at() -> None:
    assert not call(client([leakage_guard_mod(network(), training=KNOWN)]), "evaluate").has_error()


@pytest.mark.parametrize(("way", "refused"), [("refuse", True), ("send", False)])
def test_what_cannot_be_judged_is_refused_unless_asked_otherwise(way: str, refused: bool) -> None:
    answer = call(client([leakage_guard_mod(torch.nn.Linear(2, 2), when_unsure=way)]))
    assert answer.has_error() is refused
    if refused:
        assert "Not known whether the update leaks" in answer.error.reason
