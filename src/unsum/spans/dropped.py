"""Dropout that is on: a dropped unit is a gate like a ReLU's, and a sample is found together with
its mask.

The next layer reads a = mask ⊙ relu(z) / (1 − p). Only the client knew the mask; but every unit
lies on one of two lines, a = 0 or a = z / (1 − p) with z > 0, so reflections lead to samples as
they do without dropout, and say which line each unit is on.

1. Samples and masks of the first layer: reflections, then Gauss–Newton with the masks as they are,
   round after round.
2. What was found is taken out. Its δ lies in the column space and is zero where a unit was off or
   dropped; one direction alone
   has all these zeros, and no label is needed for it.
3. All samples together give δ of every layer above by least squares. A unit with z > 0 and no δ was
   dropped there.

With the masks as parts of the activations the network is an ordinary one, and is judged as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unsum.engine.budget import Budget
from unsum.engine.descend import ROUNDING, damped_step
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.errors import UnsumError
from unsum.gradients import same_modes
from unsum.head import trace
from unsum.network.activations import Activation
from unsum.network.chain import Chain, Step, find_chain, forward
from unsum.network.products import right_product
from unsum.running.progress import Progress
from unsum.spans.basis import LayerSpan, rounding_of
from unsum.spans.labels import left_behind, wedderburn
from unsum.spans.pair import Pair
from unsum.spans.reflect import SCALE, begin, flats, walked
from unsum.spans.roots import UNTRIED, Condition, relative, starts
from unsum.spans.search import VAGUE, WALK, WALKERS, allowed, level, spread
from unsum.update import Update

# [steps] of a sample with its mask, which settles within five. Chosen by: arbitrary budget.
_FOLLOWED = 12
# [of the diagonal] damping: with the masks given the condition is linear. Chosen by: rounding.
_HARDLY = 1e-12
# [of the second smallest] an eigenvalue that belongs to one direction alone.
# Chosen by: arbitrary margin.
_ALONE = 1e-2
# [of a layer's largest output] a unit that is farther below zero is off. Chosen by: arbitrary
# margin, above float32's rounding.
_OFF = 1e-5
# [noises of δ] less is zero, unless the gradients at the logits show otherwise.
# Chosen by: arbitrary margin.
_SILENT = 30.0


# A round takes long, and four in a row without a new sample end the search.
# Chosen by: arbitrary budget.
_ROUNDS = Budget(idle=math.inf)


@dataclass(frozen=True)
class Masked(FoundPoints):
    """Samples of the first layer with what their activations are multiplied by, (R, m): 0, or 1 /
    (1 − p)."""

    masks: Tensor


def chain_through(
    model: nn.Module, update: Update, device: torch.device
) -> tuple[Chain, dict[str, float]]:
    """The chain as if dropout were off, and what share of their outputs its layers keep: those that
    do not keep all.

    Dropout below the chain changes nothing here: what is left of the inputs is what its first layer
    reads.
    """
    modules = model.named_modules()
    on = {
        name: one
        for name, one in modules
        if isinstance(one, nn.Dropout) and one.training and 0 < one.p < 1
    }
    if not on:
        return find_chain(model, update, device), {}
    with same_modes(model):
        for module in on.values():
            module.training = False
        chain = find_chain(model, update, device)
    names, last = {step.name for step in chain.steps}, ""
    shares: dict[str, float] = {}
    for node in trace(model).nodes:
        name = str(node.target) if node.op == "call_module" else ""
        last = name if name in names else last
        if name in on:
            shares[last] = shares.get(last, 1.0) * (1 - on[name].p)
    if shares.pop("", None) and chain.complete:
        chain = replace(chain, stop="dropout stands before the first layer")
    return chain, shares


def check_dropped(pair: Pair, *, several: bool) -> None:
    """Refuse what the masks cannot be read of."""
    if several:
        raise UnsumError(
            "'spans' reads one step through dropout that is on, not several: each step drops other "
            "units."
        )
    rectified = all(step.activation.name == "ReLU" for step in pair.steps[:-1])
    if len(pair.steps) < 3 or not rectified or not (pair.here.has_bias and pair.next.has_bias):
        raise UnsumError(
            "'spans' reads through dropout that is on where three dense layers with biases and "
            "ReLU follow each other; these do not. Gradients of a client in eval mode are read "
            "without that."
        )


def search_dropped(pair: Pair, share: float, seed: int, progress: Progress) -> Masked:
    """Samples, until every direction has its own, each found twice, or rounds bring nothing new."""
    whole = Condition.of(pair.steps[0], pair.here, pair.next)
    generator = torch.Generator().manual_seed(seed)
    none = vars(FoundPoints.none(whole.step.W))
    found = Masked(**none, masks=whole.K.new_zeros(0, whole.K.shape[1]))
    rounds = _MaskedRounds(
        pair.expected, _ROUNDS, UNTRIED, progress, pair, share, generator, whole, whole
    )
    return rounds.run(found)


@dataclass
class _MaskedRounds(Hunt[Masked]):
    """Rounds of reflections in what is `left` of the whole condition."""

    pair: Pair
    share: float
    generator: torch.Generator
    whole: Condition
    left: Condition

    def round(self, found: Masked, barren: int) -> Masked:  # noqa: ARG002
        new = _round(self.left, self.wanted - len(found), self.share, self.generator)
        if self.left is self.whole:
            return new
        s = self.whole.unknowns_of(new.points)
        return _settled(self.whole, s, new.masks, self.share, new.hits)

    def deflate(self, found: Masked, *, gained: bool) -> None:  # noqa: ARG002
        out = found if len(found) < self.wanted else found[found.hits > 1]
        self.left = _without(self.whole, self.pair.steps, out)


def _round(condition: Condition, wanted: int, share: float, generator: torch.Generator) -> Masked:
    m = condition.K.shape[1]

    def onto(point: Tensor) -> Tensor:
        z, a = point.split(m, 1)
        on, length, slope = _along(z, a, share)
        kept = on > z.abs()
        x = torch.where(kept, on / length, z)
        return torch.cat([x, torch.where(kept, slope * x, torch.zeros_like(x))], 1)

    point = begin(condition, starts(condition, max(WALKERS, 2 * wanted), generator, rows=True))
    sets = flats(condition)
    if condition.unknowns:
        near = walked(sets, onto, point, WALK).double()
    else:  # one sample, and biases that tell its length: it is the only point of either set
        parts = zip(sets, point[:2].split(m, 1), strict=True)
        near = torch.cat([flat.closest(part) for flat, part in parts], 1).double()
    z, a = near.split(m, 1)
    return _settled(condition, condition.unknowns_at(z / SCALE), _kept(z, a, share), share)


def _along(z: Tensor, a: Tensor, share: float) -> tuple[Tensor, float, float]:
    """(how far out the closest point of the line of kept units lies, …) for scaled z: beyond |z| it
    is closer than a = 0."""
    slope = 1 / (share * SCALE)
    length = (1 + slope**2) ** 0.5
    return (torch.add(z, a, alpha=slope) / length).clamp_min(0), length, slope


def _kept(z: Tensor, a: Tensor, share: float) -> Tensor:
    """(S, m) masks: 1 / share where the line of kept units is the closer one, z scaled."""
    return (_along(z, a, share)[0] > z.abs()).to(z) / share


def _settled(
    condition: Condition, s: Tensor, masks: Tensor, share: float, hits: Tensor | None = None
) -> Masked:
    """Samples among points: Gauss–Newton with the masks as they are, then the masks of where it
    leads, and so on."""
    few = condition.at_once
    parts = zip(s.split(few), masks.split(few), strict=True)
    ended = [_followed(condition, one, mask, share) for one, mask in parts]
    s, masks, misfits, errors = (torch.cat(part) for part in zip(*ended, strict=True))
    X = condition.inputs(s)
    errors = errors / X.norm(dim=1).clamp_min(1e-300)
    sure = errors < VAGUE
    counts = torch.ones_like(errors) if hits is None else hits
    return Masked(X, errors, misfits, counts, masks)[sure].distinct()


def _followed(
    condition: Condition, s: Tensor, masks: Tensor, share: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(s, masks, misfits, predicted errors), the last infinite where the end is no root."""
    V = condition.next.rows
    for step in range(_FOLLOWED + 1):
        z = s @ condition.K + condition.c
        a = z * masks
        cost, gradient, N = relative(a, condition.K * masks[:, None, :], condition.next)
        if step == _FOLLOWED or condition.unknowns == 0:
            break
        s = s + damped_step(gradient, N, _HARDLY, ROUNDING).nan_to_num()
        z = s @ condition.K + condition.c
        a = z * masks
        inside = (condition.next.extended(a) @ V.T) @ V
        masks = _kept(SCALE * z, inside[:, :-1], share)
    misfits, expected = cost.sqrt(), level(a, condition.next)
    fits = misfits < allowed(condition, expected)
    spare = max(1, condition.equations - condition.unknowns)
    errors = spread(N) * torch.maximum(misfits, expected) / spare**0.5
    return s, masks, misfits, errors.masked_fill(~fits, torch.inf)


def _without(condition: Condition, steps: list[Step], found: Masked) -> Condition:
    """The condition without the found samples, as far as their δ can be told."""
    if not len(found):
        return condition
    X = found.points
    z = steps[0].linear(X)
    read = z.relu() * found.masks
    above = steps[1].linear(read)
    first, sure = _sent(condition.here, (found.masks == 0) | (z < 0))
    second, told = _sent(condition.next, above < -_OFF * above.abs().amax(1, keepdim=True))
    out = sure & told
    if not bool(out.any()) or int(out.sum()) >= len(condition.next):
        return condition
    errors = found.errors[out]
    here, following = (
        _less(span, sent[out], a[out], errors)
        for span, sent, a in ((condition.here, first, X), (condition.next, second, read))
    )
    return Condition.of(condition.step, here, following)


def _less(span: LayerSpan, sent: Tensor, read: Tensor, errors: Tensor) -> LayerSpan:
    """A span without samples that sent δ, up to factors, and read what they did."""
    delta = sent * wedderburn(span, read, sent)[:, None]
    # rows shorter than the batch still span everything
    rank = len(span) if span.full else len(span) - len(read)
    return span.without(delta, read, rank, left_behind(errors, delta, read))


def _sent(span: LayerSpan, off: Tensor) -> tuple[Tensor, Tensor]:
    """(δ (R, m) up to a factor, whether it is the only one (R,)) with zeros at `off` (R, m)."""
    U = span.columns
    deltas, sure = [], []
    for zeros in off:
        values, vectors = torch.linalg.eigh(U[:, zeros] @ U[:, zeros].T)
        deltas.append(vectors[:, 0] @ U)
        sure.append(values[0] < _ALONE * values[1] if len(values) > 1 else values[0] < _ALONE)
    return torch.stack(deltas), torch.stack(sure)


def masked_steps(steps: list[Step], found: Masked, shares: dict[str, float]) -> list[Step]:
    """The layers with all masks in their activations, for all samples of the batch in this
    order."""
    steps, X = [_masked(steps[0], found.masks), *steps[1:]], found.points
    for i, step in enumerate(steps[1:-1], start=1):
        share = shares.get(step.name, 1.0)
        if share == 1:
            continue
        read, written = forward(steps[: i + 1], X)
        delta, noise = _least_squares(step, read[i])
        on = (delta.abs() > _SILENT * noise[:, None]) & (written[i] > 0)
        # few numbers, the gradients at the logits, tell all units: which are faint, too
        if i == len(steps) - 2:
            expected = torch.stack(
                [_expected(*one, steps[-1].W.double()) for one in zip(delta, on, strict=True)]
            )
            on = ((delta - expected).abs() < delta.abs()) & (written[i] > 0)
        steps[i] = _masked(step, on / share)
    return steps


def _expected(delta: Tensor, on: Tensor, W: Tensor) -> Tensor:
    """(m,) δ of a unit that is kept, G W, by those of units that surely are."""
    G: Tensor = torch.linalg.lstsq(W[:, on].T, delta[on, None]).solution[:, 0]
    return G @ W


def _least_squares(step: Step, read: Tensor) -> tuple[Tensor, Tensor]:
    """(δ (R, m) of ∇W = δᵀ [read, 1], and its noise (R,))."""
    if step.grad_b is not None:
        read = torch.cat([read, torch.ones_like(read[:, :1])], 1)
    inverse = torch.linalg.pinv(read)  # (n + 1, R)
    n = step.W.shape[1]
    delta = right_product(step.grad_W, inverse[:n].T.contiguous())
    delta = delta if step.grad_b is None else delta + step.grad_b.double()[:, None] * inverse[n:]
    return delta.T, rounding_of(step.grad_W) * inverse.norm(dim=0)


def _masked(step: Step, mask: Tensor) -> Step:
    activation = step.activation

    def function(z: Tensor) -> Tensor:
        return z.relu() * mask.to(z)

    def slope(z: Tensor) -> Tensor:
        return (z > 0).to(z) * mask.to(z)

    return replace(
        step, activation=Activation(f"{activation.name}, dropped", function, "folded", None, slope)
    )
