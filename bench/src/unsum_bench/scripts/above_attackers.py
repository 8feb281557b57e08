"""Attackers of the search for attacks above their ceiling (`above`), and how they did.

- told: knows both noise-free updates, and everything else; the likelihood ratio of what was sent,
  and its posterior mean
- every world: knows the noise-free updates of all worlds of the sample; the posterior mean over all
  of them, scored as reports score a sample
- descent: gradient descent on the sample, from halfway between the two values
- any attack of the registry, by the sample, features or labels that it answers with, whichever
  world they are nearer to; not those for text, and not those that need a generator that was trained
  before
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack import attack
from unsum.ceiling.client import World, separated
from unsum.ceiling.coin import Separation
from unsum.gradients import in_eval_mode
from unsum.labels import LABEL_RULES
from unsum.match import MATCHERS
from unsum.running.deadline import time_limit
from unsum.separate import SEPARATORS
from unsum.update import Update
from unsum_bench.scripts.above_clients import CLASSES, Client, Pair, flat

# for other clients, or in need of a learned generator
OTHERS = {"text", "tokens", "gias", "lti", "hcgla", "ggl"}
ORACLES = ("told", "every world")
PAIRS, FEW = 3, 3  # pairs of worlds of an oracle's case, and where an attack takes long
SECONDS = 0.5  # of one attack
# [s] of gradient matching, which is never cut short: on these networks its steps take less
MATCHING = 30.0
# of L-BFGS, with 20 gradients each; other matchers take _STEPS_ELSE of Adam
STEPS = {"dlg": 2, "idlg": 2}
_STEPS_ELSE = 40
MATCHED = {entry.name for entry in MATCHERS} - OTHERS
_LEAST = 0.3  # of a fair coin's deviation: few pairs that agree do not make an error vanish
_TRUE = 12  # worlds that an attacker who knows all worlds is sent updates of
_CERTAIN = 40.0  # log likelihood ratio that leaves no doubt in float64


def names() -> list[str]:
    """Every attacker, the oracles first."""
    registered = {entry.name for entry in (*SEPARATORS, *MATCHERS)} - OTHERS
    return [
        *ORACLES,
        "descent",
        *sorted(registered),
        *sorted(f"label: {entry.name}" for entry in LABEL_RULES),
    ]


@dataclass(frozen=True)
class Measured:
    """How an attacker did: what it got in the mean, and in standard errors how far that lies above
    the product's limit, and above what the product finds of the very pairs that were played."""

    games: int
    got: float
    limit: float
    over_limit: float
    over_pairs: float = -math.inf

    @property
    def above(self) -> float:
        return max(self.over_limit, self.over_pairs)


def measure(client: Client, name: str, pairs: int, seed: int) -> Measured:
    if name == "every world":
        return _every_world(client, pairs, seed)
    draw, drawn = torch.Generator().manual_seed(seed + 1), client.pairs(pairs, seed)
    scores = [
        _told(client, pair, draw) if name == "told" else _attacked(client, name, pair, draw)
        for pair in drawn
    ]
    got = [float(score.mean()) for score in scores]
    exact = [_allowed(client, pair, by_share=name == "told") for pair in drawn]
    limit = client.limit if name == "told" else client.naming_limit
    games = sum(map(len, scores))
    over = _mean(got) - _mean([most for most in exact if most is not None] or [math.inf])
    return Measured(
        games * client.genome["rounds"],
        _mean(got),
        limit,
        _errors([one - limit for one in got], games),
        over / _deviation(scores) if None not in exact else -math.inf,
    )


def _deviation(scores: Sequence[Tensor]) -> float:
    """Of the mean over pairs, each with noise of its own; of scores that are all alike that of a
    coin, so that a few that agree do not make an error vanish."""
    own = math.sqrt(sum(float(one.var()) / len(one) for one in scores)) / len(scores)
    games = sum(map(len, scores))
    return max(own, 0.5 / math.sqrt(games) * _LEAST, 1 / games)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _by_share(client: Client, pair: Pair) -> bool:
    """Whether what counts is what is explained of a squared error, and not how often the world is
    named."""
    return client.genome["secret"] == "sample" and not pair.worlds.discrete


def _allowed(client: Client, pair: Pair, *, by_share: bool) -> float | None:
    """What the product allows of this very pair, in the unit in which it is scored."""
    found, worst = client.exact(pair), client.ceiling.worst
    if found is None:
        return None
    if client.genome["secret"] != "sample" or not by_share:
        capped = worst is not None and client.genome["secret"] != "presence"
        chance = found.guess(client.noise)
        return min(chance, worst.guess) if capped and worst is not None else chance
    cap = 1.0
    if worst is not None:
        cap = worst.after(client.genome["rounds"]).cap(pair.worlds.discrete)
    return min(found.share(client.noise), cap)


def _told(client: Client, pair: Pair, draw: torch.Generator) -> Tensor:
    """Of noisy updates of both worlds, as many of each."""
    one, other = (flat(update) for update in pair.clean)
    got = []
    for coin in (0, 1):
        ratio = torch.zeros(())
        for _ in range(client.genome["rounds"]):
            sent = client.rows(pair.clean[coin], pair.worlds[coin], draw)  # type: ignore[arg-type]
            ratio = ratio + log_ratio(client, sent, one, other)
        sign = 2 * coin - 1
        if _by_share(client, pair):
            guess = (ratio.clamp(-_CERTAIN, _CERTAIN) / 2).tanh()
            got.append(1 - (guess - sign) ** 2)
            continue
        right = torch.where(ratio == 0, 0.5, (ratio * sign > 0).double())
        got.append(2 * right - 1 if client.genome["secret"] == "sample" else right)
    return torch.cat(got)


def log_ratio(client: Client, sent: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """(n,) of what was sent, for the second world; after something else than the noise, what it
    would be of the noise alone."""
    noise = client.arriving
    if noise.kind == "laplace":
        return ((sent - one).abs() - (sent - other).abs()).sum(1) / noise.scale
    return (sent - (one + other) / 2) @ (other - one) / noise.scale**2


@dataclass(frozen=True, eq=False)
class AllWorlds:
    """Of a sample's coins, with the weight of each and the noise-free updates; the other samples
    are at random."""

    worlds: list[World]
    signs: Tensor
    weights: Tensor
    clean: list[Update]
    means: Tensor
    apart: list[list[Separation]] = field(default_factory=list)  # of every coin the product's

    @classmethod
    def of(cls, client: Client, draw: torch.Generator) -> AllWorlds:
        case, steps = client.case, client.coins()
        signs = torch.tensor(list(product((0.0, 1.0), repeat=len(steps))), dtype=torch.float64)
        weights = torch.stack([step.square().sum() for step in steps])
        own, base = case.inputs[case.focus], case.world
        for each in client.everybody:  # of one sample alone this changes nothing
            base = each.shuffled(base, draw)
        worlds = []
        for row in own.double().flatten() + signs @ torch.stack(steps):
            inputs = base.inputs.clone()
            inputs[case.focus] = row.view(own.shape).to(own.dtype)
            worlds.append(base._replace(inputs=inputs))
        clean = [client.clean(world) for world in worlds]
        means = torch.stack([flat(update) for update in clean])
        return cls(worlds, signs, weights / weights.sum(), clean, means)


def _every_world(client: Client, bases: int, seed: int) -> Measured:
    """The posterior mean over all worlds of the sample, in place of the sample, others as they are
    or at random; beside it the mean over all pairs of these worlds that differ in one coin."""
    draw, kept = torch.Generator().manual_seed(seed), client.played.every_world
    got, exact, games = [], [], 0
    for base in range(max(bases // PAIRS, 1)):
        if (base, seed) not in kept:
            kept[base, seed] = AllWorlds.of(client, draw)
        every = kept[base, seed]
        leaks = []
        for k in torch.randint(len(every.worlds), (_TRUE,), generator=draw).tolist():
            sent = client.rows(every.clean[k], every.worlds[k], draw)
            log = _log_density(client, sent, every.means)
            answer = log.softmax(1) @ every.signs  # (n, K)
            left = (answer - every.signs[k]).square() @ every.weights * 4
            leaks.append(float((1 - left).mean()))
            games += len(sent)
        got += leaks
        exact += [_mean_over_pairs(client, every)] * len(leaks)
    limit, alone = client.limit, client.genome["samples"] == 1  # else few worlds of the others
    return Measured(
        games,
        sum(got) / len(got),
        limit,
        _errors([one - limit for one in got], games) if alone else -math.inf,
        _errors([one - most for one, most in zip(got, exact, strict=True)], games),
    )


def _log_density(client: Client, sent: Tensor, means: Tensor) -> Tensor:
    """(n, W) up to a constant of each row."""
    noise = client.arriving
    if noise.kind == "laplace":
        return -torch.cdist(sent, means, p=1) / noise.scale
    return (sent @ means.T - means.square().sum(1) / 2) / noise.scale**2


def _mean_over_pairs(client: Client, every: AllWorlds) -> float:
    """What the product allows of a sample whose coins are all open, gone through pair by pair."""
    distances = client.ceiling.distances
    if distances is None:
        return client.limit
    if not every.apart:
        played = [distances.client(world) for world in every.worlds]
        by_size, coins = client.noise.kind == "laplace", every.signs.shape[1]
        for k in range(coins):
            shift = 2 ** (coins - 1 - k)
            pairs = [j for j in range(len(played)) if every.signs[j, k] == 0]
            every.apart.append(
                [separated(played[j], played[j + shift], by_size=by_size) for j in pairs]
            )
    total = 0.0
    for weight, found in zip(every.weights.tolist(), every.apart, strict=True):
        total += weight * sum(one.known(client.noise) for one in found) / len(found)
    worst = client.ceiling.worst
    return total if worst is None else min(total, worst.cap())


def _attacked(client: Client, name: str, pair: Pair, draw: torch.Generator) -> Tensor:
    """Whether an attack's answer is nearer to the world that was sent, of one update of each."""
    right = []
    for coin in (0, 1):
        (sent,) = client.sent(pair.clean[coin], pair.worlds[coin], 1, draw)  # type: ignore[arg-type]
        worlds = (pair.worlds.one, pair.worlds.other)
        if name == "descent":
            ratio = descent(client, worlds, sent)
        else:
            ratio = registered(client, name, worlds, sent)
        right.append(0.5 if ratio == 0 else float((ratio > 0) == bool(coin)))
    return torch.tensor(right, dtype=torch.float64)


def descent(client: Client, worlds: tuple[World, World], sent: Update, steps: int = 10) -> float:
    """Moves the sample from halfway between both worlds to where its gradient is nearest to what
    was sent."""
    i, model = client.case.focus, client.case.model
    one, other = (world.inputs[i] for world in worlds)
    middle = (one + other) / 2
    moved = middle.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([moved], lr=0.1 * float((other - one).abs().max()) + 1e-6)
    named = {name: p for name, p in model.named_parameters() if name in sent.gradients}
    goal = [sent.gradients[name] for name in named]
    for _ in range(steps):
        inputs = worlds[0].inputs.clone()
        inputs[i] = moved
        loss = nn.functional.cross_entropy(model(inputs), worlds[0].targets)
        found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
        gap = torch.stack([(a - b).square().sum() for a, b in zip(found, goal, strict=True)]).sum()
        (moved.grad,) = torch.autograd.grad(gap, moved)
        optimizer.step()
    return float(((moved.detach() - middle) * (other - one)).sum())


def registered(client: Client, name: str, worlds: tuple[World, World], sent: Update) -> float:
    """Which world the answer of an attack is nearer to, by samples, features or labels."""
    i, model = client.case.focus, client.case.model
    rule = name.removeprefix("label: ") if name.startswith("label: ") else None
    options: dict[str, Any] = {"label_rule": rule} if rule else {"method": name}
    size, seconds = len(worlds[0].inputs), SECONDS
    if name in MATCHED:
        seconds = MATCHING
        if client.genome["secret"] == "sample":
            options["labels"] = worlds[0].targets  # all but the secret is granted
        options["options"] = {
            "image_size": tuple(worlds[0].inputs.shape[1:]),
            "steps": STEPS.get(name, _STEPS_ELSE),
            "restarts": 1,
        }
    with time_limit(seconds):
        leak = attack(
            model, sent, loss=client.case.loss, batch_size=size, time_limit=seconds, **options
        )
    if client.genome["secret"] != "sample":
        counts = nn.functional.one_hot(leak.targets.argmax(1), CLASSES).sum(0).double()
        own = [_counts(world.targets) for world in worlds]
        return float((counts - own[0]).norm() - (counts - own[1]).norm())
    rows = next(
        (part for part in (leak.images, leak.inputs, leak.features) if part is not None), None
    )
    if rows is None or len(rows) == 0:
        return 0.0
    answers = rows.detach().flatten(1).double()
    if answers.shape[1] == worlds[0].inputs[i].numel():
        truths = [world.inputs[i].flatten().double() for world in worlds]
    else:
        with in_eval_mode(model), torch.no_grad():
            truths = [model[:-1](world.inputs)[i].double() for world in worlds]  # type: ignore[index]
        if answers.shape[1] != len(truths[0]):
            return 0.0
    nearest = [float((answers - truth).norm(dim=1).min()) for truth in truths]
    return nearest[0] - nearest[1]


def _counts(targets: Tensor) -> Tensor:
    rows = targets if targets.ndim == 2 else nn.functional.one_hot(targets, CLASSES)
    return rows.sum(0).double()


def _errors(over: Sequence[float], games: int) -> float:
    """How many standard errors the mean lies above 0; the deviation is that of pairs, or of coins
    if that is larger."""
    values = torch.tensor(over, dtype=torch.float64)
    deviation = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 1.0
    return float(values.mean()) / max(deviation, 0.5 / math.sqrt(games) * _LEAST, 1 / games)
