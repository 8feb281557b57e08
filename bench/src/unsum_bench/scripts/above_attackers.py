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
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack import attack
from unsum.ceiling.client import Played, World, separated
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
    draw, drawn = torch.Generator().manual_seed(seed + 1), list(client.pairs(pairs, seed))
    got, exact, games = [], [], 0
    for pair in drawn:
        if name == "told":
            one, count = _told(client, pair, draw)
        else:
            one, count = _attacked(client, name, pair, draw)
        got.append(one)
        games += count
        exact.append(_allowed(client, pair, by_share=name == "told"))
    limit = client.limit if name == "told" else client.naming_limit
    over = [a - (math.inf if b is None else b) for a, b in zip(got, exact, strict=True)]
    return Measured(
        games,
        sum(got) / len(got),
        limit,
        _errors([one - limit for one in got], games),
        _errors(over, games) if math.isfinite(sum(over)) else -math.inf,
    )


def _by_share(client: Client, pair: Pair) -> bool:
    """Whether what counts is what is explained of a squared error, and not how often the world is
    named."""
    return client.genome["secret"] == "sample" and not pair.worlds.discrete


def _allowed(client: Client, pair: Pair, *, by_share: bool) -> float | None:
    """What the product allows of this very pair, in the unit in which it is scored."""
    found, worst = client.exact(pair.worlds), client.ceiling.worst
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


def _told(client: Client, pair: Pair, draw: torch.Generator) -> tuple[float, int]:
    """The mean over noisy updates of both worlds, as many of each."""
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
    return float(torch.cat(got).mean()), 2 * len(got[0]) * client.genome["rounds"]


def log_ratio(client: Client, sent: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """(n,) of what was sent, for the second world; after something else than the noise, what it
    would be of the noise alone."""
    noise = client.arriving
    if noise.kind == "laplace":
        return ((sent - one).abs() - (sent - other).abs()).sum(1) / noise.scale
    return (sent - (one + other) / 2) @ (other - one) / noise.scale**2


def _every_world(client: Client, bases: int, seed: int) -> Measured:
    """The posterior mean over all worlds of the sample, in place of the sample, others as they are
    or at random; beside it the mean over all pairs of these worlds that differ in one coin."""
    draw, case = torch.Generator().manual_seed(seed), client.case
    steps = client.coins()
    signs = torch.tensor(list(product((0.0, 1.0), repeat=len(steps))), dtype=torch.float64)
    weights = torch.stack([step.square().sum() for step in steps])
    weights = weights / weights.sum()
    own = case.inputs[case.focus]
    rows = own.double().flatten() + signs @ torch.stack(steps)
    got, exact, games = [], [], 0
    for _ in range(max(bases // 4, 1)):
        base = case.world
        for each in client.everybody:  # of one sample alone this changes nothing
            base = each.shuffled(base, draw)
        worlds = []
        for row in rows:
            inputs = base.inputs.clone()
            inputs[case.focus] = row.view(own.shape).to(own.dtype)
            worlds.append(base._replace(inputs=inputs))
        clean = [client.clean(world) for world in worlds]
        means = torch.stack([flat(update) for update in clean])
        leaks = []
        for k in torch.randint(len(worlds), (12,), generator=draw).tolist():
            sent = client.rows(clean[k], worlds[k], draw)
            log = _log_density(client, sent, means)
            answer = log.softmax(1) @ signs  # (n, K)
            left = (answer - signs[k]).square() @ weights * 4
            leaks.append(float((1 - left).mean()))
            games += len(sent)
        got += leaks
        exact += [_mean_over_pairs(client, worlds, signs, weights)] * len(leaks)
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


def _mean_over_pairs(
    client: Client, worlds: Sequence[World], signs: Tensor, weights: Tensor
) -> float:
    """What the product allows of a sample whose coins are all open, gone through pair by pair."""
    distances = client.ceiling.distances
    if distances is None:
        return client.limit
    played: list[Played] = [distances.client(world) for world in worlds]
    by_size, noise, total = client.noise.kind == "laplace", client.noise, 0.0
    coins = signs.shape[1]
    for k in range(coins):
        shift = 2 ** (coins - 1 - k)
        pairs = [j for j in range(len(worlds)) if signs[j, k] == 0]
        found = [separated(played[j], played[j + shift], by_size=by_size) for j in pairs]
        total += float(weights[k]) * sum(one.known(noise) for one in found) / len(found)
    worst = client.ceiling.worst
    return total if worst is None else min(total, worst.cap())


def _attacked(client: Client, name: str, pair: Pair, draw: torch.Generator) -> tuple[float, int]:
    """How often an attack's answer is nearer to the world that was sent, of one update of each."""
    right = []
    for coin in (0, 1):
        (sent,) = client.sent(pair.clean[coin], pair.worlds[coin], 1, draw)  # type: ignore[arg-type]
        worlds = (pair.worlds.one, pair.worlds.other)
        if name == "descent":
            ratio = descent(client, worlds, sent)
        else:
            ratio = registered(client, name, worlds, sent)
        right.append(0.5 if ratio == 0 else float((ratio > 0) == bool(coin)))
    return sum(right) / 2, 2


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
