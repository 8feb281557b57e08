"""Every token of a batch as a root: what the first block's MLP read, one token at a time.

Its two linear maps are two dense layers, and every token of every picture is a sample of theirs: z
lies in the span of ∇W₁, and act(W₁ z + b₁) in that of ∇W₂ (`spans.roots`). N pictures of T tokens
are found while N T is well below the width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.engine.budget import Budget
from unsum.engine.found import FoundPoints
from unsum.engine.hunt import Hunt
from unsum.errors import UnsumError
from unsum.network.activations import IDENTITY, Activation
from unsum.network.chain import Step
from unsum.running.progress import Progress
from unsum.spans.basis import LayerSpan
from unsum.spans.roots import ENDS, Condition, descend, starts
from unsum.spans.search import levels, roots_among
from unsum.spans.tokens.block import FirstBlock, Map
from unsum.spans.tokens.deflate import taken_out
from unsum.update import Update

_UNITS = 6  # hidden units that are looked at for each token: five equations for every unknown
_FEWEST = 32  # starts of a round
# for each token that is missing, and in all: a GPU has room for more
_CROWD = {"cpu": (2, 128), "cuda": (8, 2048)}
MOST = 0.9  # of the channels: what tokens may take for their span to leave equations
_NEIGHBORS = 0.05  # relative distance within which two roots may be one that is known badly
_AS_WELL = 3.0  # times the misfit of two roots that their mean may have to be one as well
_BEST = 16  # ends of such a round that are followed
_WORTH = 0.1  # of the tokens that are left: so many new ones are worth taking out
# rounds in a row without a new token, after which it is sought in the next of four ways
_STUCK, _VIEWS = 3, 4
# All were followed to roots of the same equations, so that what is near is the same, however badly
# it is known: patches of one color differ by their positions alone. A round of a large network
# takes a minute. Chosen by: arbitrary budget.
_BUDGET = Budget(barren=_STUCK * _VIEWS, idle=120.0, same=1e-3, blur=1.0)


def find_tokens(
    block: FirstBlock,
    update: Update,
    tokens: int,
    seed: int,
    progress: Progress,
    device: torch.device,
) -> FoundPoints:
    """`tokens` of them, or as many as the rounds bring; what is found is taken out, and the rest
    has fewer unknowns."""
    here, following = (LayerSpan.of(_step(one, act, update, device)) for one, act in _maps(block))
    _check(here, following, tokens)
    whole = Condition.of(_step(block.first, block.activation, update, device), here, following)
    generator = torch.Generator().manual_seed(seed)
    crowd = _CROWD.get(device.type, _CROWD["cpu"])
    hunt = _TokenHunt(
        tokens,
        _BUDGET,
        "further tokens",
        progress,
        whole,
        block.second.W.to(device),
        crowd,
        generator,
    )
    found = hunt.run(FoundPoints.none(whole.step.W))
    return _at_most(found, hunt.own, tokens)


class _TokenHunt(Hunt[FoundPoints]):
    """Rounds in four ways; what was found is taken out of the first two."""

    def __init__(
        self,
        tokens: int,
        budget: Budget,
        untried: str,
        progress: Progress,
        whole: Condition,
        W2: Tensor,
        crowd: tuple[int, int],
        generator: torch.Generator,
    ) -> None:
        super().__init__(tokens, budget, untried, progress)
        self.whole, self.W2, self.crowd, self.generator = whole, W2, crowd, generator
        self.rest, self.narrow = whole, _narrowed(whole, generator)
        self.own = torch.ones(0, dtype=torch.bool, device=whole.K.device)  # of those found
        # the way that rounds begin with, the present one, and how many tokens are taken out
        self.first, self.view, self.out = 0, 0, 0

    def round(self, found: FoundPoints, barren: int) -> FoundPoints:
        self.view = (self.first + barren // _STUCK) % _VIEWS
        condition, whole = self._condition(found), self.whole
        none, (each, largest) = FoundPoints.none(whole.step.W), self.crowd
        number = max(_FEWEST, min(largest, each * (self.wanted - self.number(found))))
        entire = self.rest is whole or condition is whole
        drawn = _starts(condition, found if entire else none, number, self.generator)
        tried = descend(condition, drawn)
        if self.view < 2:
            ends = roots_among(condition, tried)[0].distinct().points
        else:  # what was taken out left its errors, so that the best of them may be no roots here
            ends = condition.inputs(tried.s[tried.cost.argsort()[:_BEST]])
        return _followed(whole, ends)

    def _condition(self, found: FoundPoints) -> Condition:
        if self.view < 2:  # some tokens are no isolated roots at few units
            return self.rest if self.view else self.narrow
        # Some are fainter than what those left behind that were taken out: with none of these, or
        # with all.
        if self.view > 2:
            return self.whole
        return taken_out(self.whole, self.W2, found[self.own], everyone=True) or self.rest

    def joined(self, found: FoundPoints, new: FoundPoints) -> FoundPoints:
        both = super().joined(found, new)
        self.own = _distinct(self.whole, both)
        return both

    def number(self, found: FoundPoints) -> int:  # noqa: ARG002
        return int(self.own.sum())

    def gains(self, found: FoundPoints) -> int:
        return self.number(found)

    def complete(self, found: FoundPoints) -> bool:
        return self.number(found) >= self.wanted

    def deflate(self, found: FoundPoints, *, gained: bool) -> None:
        self.first = self.view if gained else self.first
        known = found[self.own]
        if len(known) - self.out > _WORTH * (self.wanted - self.out):
            rest = taken_out(self.whole, self.W2, known, everyone=False)
            self.rest, self.out, self.first = rest or self.rest, len(known), 0
            self.narrow = _narrowed(self.rest, self.generator)


def _followed(whole: Condition, X: Tensor) -> FoundPoints:
    """Roots at some hidden units, or among some unknowns, followed to those at all."""
    if len(X) == 0:
        return FoundPoints.none(whole.step.W)
    return roots_among(whole, descend(whole, whole.unknowns_of(X), ENDS))[0]


def _distinct(whole: Condition, found: FoundPoints) -> Tensor:
    """(R,) which are roots of their own: where the mean of two is a root as well, they are one that
    is known badly and was found twice, or two tokens that these equations do not tell apart."""
    apart = torch.cdist(found.points, found.points) / found.points.norm(dim=1, keepdim=True)
    pairs = ((apart < _NEIGHBORS).triu(1)).nonzero()
    if len(pairs) == 0:
        return torch.ones(len(found), dtype=torch.bool, device=found.points.device)
    means = whole.unknowns_of(found.points[pairs].mean(1))
    ends = torch.maximum(found.misfits[pairs].amax(1), levels(whole, means))
    one = whole.misfit(means) < _AS_WELL * ends
    order = found.misfits.argsort().argsort()
    worse = pairs.gather(1, order[pairs].argmax(1, keepdim=True))[:, 0]
    answer = torch.ones(len(found), dtype=torch.bool, device=found.points.device)
    answer[worse[one]] = False
    return answer


def _at_most(found: FoundPoints, own: Tensor, number: int) -> FoundPoints:
    """So many: those of their own first, then of the others those that are best known."""
    return found[torch.argsort(found.errors + 1e9 * ~own)[:number]]


def _narrowed(whole: Condition, generator: torch.Generator) -> Condition:
    """The condition at some of the hidden units: a step costs as much less, and equations enough
    are left."""
    m, units = whole.K.shape[1], _UNITS * len(whole.here)
    if units >= m:
        return whole
    some = torch.randperm(m, generator=generator)[:units].to(whole.K.device)
    step = replace(
        whole.step, W=whole.step.W[some], b=None if whole.step.b is None else whole.step.b[some]
    )
    span = whole.next
    read = span.core @ span.rows  # ∇W₂ in the coordinates of its own columns
    sent = replace(
        whole.step, grad_W=read[:, some].contiguous(), grad_b=read[:, -1] if span.has_bias else None
    )
    narrow = replace(LayerSpan.of(sent, len(span)), noise=span.noise)
    return replace(whole, step=step, next=narrow, K=whole.K[:, some].contiguous(), c=whole.c[some])


def directions(block: FirstBlock, update: Update, device: torch.device) -> int:
    """How many tokens the first MLP's gradients show."""
    return max(len(LayerSpan.of(_step(one, act, update, device))) for one, act in _maps(block))


def _maps(block: FirstBlock) -> tuple[tuple[Map, Activation], tuple[Map, Activation]]:
    return (block.first, block.activation), (block.second, IDENTITY)


def _step(one: Map, activation: Activation, update: Update, device: torch.device) -> Step:
    if one.weight not in update.gradients:
        raise UnsumError(
            f"The update lacks {one.weight!r}, which tells the tokens of a batch apart; 'exact' "
            "reads the head."
        )
    grad_b = None if one.bias is None else update.gradients.get(one.bias)
    b = None if one.b is None else one.b.to(device)
    module = nn.Linear(1, 1, device="meta")  # a step's geometry is asked of convolutions alone
    grad_b = None if grad_b is None else grad_b.to(device)
    return Step(
        one.weight,
        module,
        activation,
        one.W.to(device),
        b,
        update.gradients[one.weight].to(device),
        grad_b,
    )


def _check(here: LayerSpan, following: LayerSpan, tokens: int) -> None:
    width = here.rows.shape[1] - here.has_bias
    if tokens > MOST * width:
        raise UnsumError(
            f"The batch has {tokens} tokens, too many to be told apart in {width} channels; half "
            "as many may be. 'exact' reads every picture's class token."
        )
    seen = min(len(here), len(following))
    if seen < tokens:
        raise UnsumError(
            f"The first MLP's gradients show {seen} directions, and the batch has {tokens} tokens: "
            "some send too little, or what was sent was changed. This is no sign that nothing "
            "leaks; 'exact' reads every picture's class token."
        )


def _starts(
    condition: Condition, found: FoundPoints, number: int, generator: torch.Generator
) -> Tensor:
    """Outside of what the tokens found span, where those that are missing are most of what is left;
    and toward their mean."""
    if len(found) == 0:
        return starts(condition, number, generator, rows=True)
    rows = condition.here.rows[:, : found.points.shape[1]]
    known = torch.linalg.qr(found.points.T)[0].T
    drawn = torch.randn(number, len(rows), generator=generator, dtype=torch.float64).to(rows) @ rows
    drawn = drawn - (drawn @ known.T) @ known
    drawn = (
        drawn
        * found.points.norm(dim=1).median()
        / drawn.norm(dim=1, keepdim=True).clamp_min(1e-300)
    )
    share = torch.rand(number, 1, generator=generator, dtype=torch.float64).to(rows)
    return condition.unknowns_of(share * drawn + (1 - share) * found.points.mean(0))
