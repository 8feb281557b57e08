"""Which defense an update went through, read from the update itself.

Exact zeros inside columns that are not zero altogether are no accident of softmax: entries were
removed. Few distinct values are a grid, which rounding to few levels leaves behind, whoever rounded
and however. And the rows of G sum to zero, so the columns of ∇W do; what they sum to instead is
noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.noise import is_rounding_of_weights, measure_noise, rounding_of_weights
from unsum.head import Head
from unsum.running.sharing import once
from unsum.showing.wording import percent

_REMOVED = 1e-4  # share of zeros in live columns above which they are no coincidence
# of the largest entry: smaller survivors than that are softmax's own, not a threshold's
_UNDERFLOW = 1e-12
_LOOKED_AT = 1 << 18  # entries that are enough to see a grid
_ENOUGH = 24  # entries other than zero below which anything looks like a grid
_FEW = 1 / 8  # distinct values per entry looked at, from which a grid is worth testing
_OFF = 0.02  # of a step, that rounding may leave a value beside its grid point
_FINEST = 1 << 16  # levels beyond which a grid is no defense


@dataclass(frozen=True)
class RecognizedDefense:
    """`kind` is one of none, noise, pruned, random-grid, grid, sign and sixteen-bits; `sentence`
    says it to a person."""

    kind: str
    sentence: str
    sigma: float = 0.0  # standard deviation of what was added to an entry of ∇W
    sigma_b: float = 0.0  # and of ∇b
    threshold: float = 0.0  # entries of ∇W of smaller magnitude were removed
    lattice: Lattice | None = None
    dtype: torch.dtype | None = None
    rounding: bool = False  # no defense: the client's weights are rounded

    @property
    def is_noise(self) -> bool:
        """Whether every entry was sent, with an error of its own."""
        return self.kind in ("noise", "grid")


def recognize(head: Head) -> RecognizedDefense:
    """The defense that the head's gradient shows."""
    return once("recognized", (head,), lambda: _recognized(head))


def _recognized(head: Head) -> RecognizedDefense:
    zeros, smallest, largest = _zeros(head)
    rounding = rounding_of_weights(head)
    # A unit in the last place of the weights is neither grid nor pruning.
    if zeros > _REMOVED and smallest <= 12**0.5 * rounding:
        return _of_rounded_weights(head, rounding)
    lattice = find_lattice(head.grad_W)
    if lattice is not None:
        return _of_lattice(head, lattice, zeros)
    dtype = sixteen_bits(head.grad_W)
    if zeros > _REMOVED and smallest > _UNDERFLOW * largest and dtype is None:
        sentence = (
            f"{100 * zeros:.4g} % of the head's gradient is exactly zero, and nothing is smaller "
            f"than {smallest:.2g}: it was pruned to its largest entries."
        )
        return RecognizedDefense("pruned", sentence, threshold=smallest)
    if dtype is not None:
        name = {torch.float16: "float16", torch.bfloat16: "bfloat16"}[dtype]
        sentence = f"Every entry is a {name} number: the update was sent in sixteen bits."
        return RecognizedDefense("sixteen-bits", sentence, dtype=dtype)
    noise = measure_noise(head)
    if not noise.added:
        return RecognizedDefense("none", "")
    sigma = float(noise.level.square().mean().sqrt())
    if is_rounding_of_weights(head, sigma):
        return _of_rounded_weights(head, sigma)
    # A change of weights may come from several steps, whose decay does not sum to zero either.
    whence = "was added" if head.divisor is None else "was added, or left by the client's own steps"
    sentence = (
        "The columns of the head's gradient do not sum to zero: noise of standard deviation "
        f"{sigma:.2g} {whence}, "
        f"{percent(noise.relative) if noise.relative > 0.01 else f'{100 * noise.relative:.2g} %'} "
        "of the gradient."
    )
    return RecognizedDefense("noise", sentence, sigma=sigma, sigma_b=sigma)


def _of_rounded_weights(head: Head, sigma: float) -> RecognizedDefense:
    """No defense: a client that sends its weights back sends their rounding along."""
    share = sigma * head.grad_W.numel() ** 0.5 / float(head.row_norms(head.grad_W).norm())
    name = str(head.W.dtype).removeprefix("torch.")
    sentence = (
        f"The update is a difference of {name} weights, whose rounding leaves noise of "
        f"{100 * share:.2g} % in it."
    )
    return RecognizedDefense("noise", sentence, sigma=sigma, sigma_b=sigma, rounding=True)


def _zeros(head: Head) -> tuple[float, float, float]:
    """The share of exact zeros in the columns that are not zero altogether; the smallest and the
    largest magnitude."""
    C, H = head.grad_W.shape
    count = torch.zeros(H, dtype=torch.long, device=head.grad_W.device)
    smallest, largest = float("inf"), 0.0
    for rows in head.row_blocks():
        size = head.grad_W[rows].abs()
        present = size > 0
        count += present.sum(0)
        largest = max(largest, float(size.max()))
        smallest = min(smallest, float(size.masked_fill_(~present, torch.inf).min()))
    live = count > 0
    entries = int(live.sum()) * C
    return (1 - int(count.sum()) / entries if entries else 0.0), smallest, largest


def _of_lattice(head: Head, lattice: Lattice, zeros: float) -> RecognizedDefense:
    levels = round(float(head.grad_W.abs().max()) / lattice.step)
    if lattice.through_zero and levels <= 1:
        kind, sentence = "sign", "All entries have one magnitude: only their signs were sent."
        # signs of a gradient are hardly ever zero where its column is not; one random level often
        # is
        if zeros > 0.5:
            kind = "random-grid"
            sentence = (
                "Entries are zero or of one magnitude: they were rounded at random to one level."
            )
        return RecognizedDefense(kind, sentence, lattice=lattice)
    # Few entries: each counts as often as it takes.
    lattice_b = None if head.grad_b is None else find_lattice(head.grad_b.repeat(32))
    step_b = 0.0 if lattice_b is None else lattice_b.step
    if lattice.through_zero:
        sentence = (
            f"Entries are multiples of {lattice.step:.3g}, up to {levels}: they were rounded at "
            "random to few levels."
        )
        return RecognizedDefense("random-grid", sentence, sigma_b=step_b / 6**0.5, lattice=lattice)
    sentence = (
        f"Entries lie on a grid of step {lattice.step:.3g} between their extremes: they were "
        "quantized."
    )
    sigma = lattice.step / 12**0.5
    return RecognizedDefense(
        "grid", sentence, sigma=sigma, sigma_b=step_b / 12**0.5, lattice=lattice
    )


@dataclass(frozen=True)
class Lattice:
    """Entries are `origin + k · step` with whole k; a grid through zero has origin 0."""

    origin: float
    step: float

    @property
    def through_zero(self) -> bool:
        return self.origin == 0.0


def find_lattice(values: Tensor) -> Lattice | None:
    """The grid that all entries of a tensor lie on, or None."""
    seen = _some(values)
    most = max(3, _FEW * len(seen))
    # Nor has the whole fewer than a part; most gradients end here, four times as fast.
    if len(seen[: len(seen) // 4].unique()) > most:
        return None
    levels = seen.unique().double()
    if int((seen != 0).sum()) < _ENOUGH or len(levels) < 2 or len(levels) > most:
        return None
    gaps = levels.diff()
    # The mean step over all gaps: the smallest alone carries its own rounding.
    step = float(gaps.sum() / (gaps / float(gaps.min())).round().sum())
    if len(levels) == 2 and float(levels.sum()) == 0:  # signs, none of which happens to be zero
        return Lattice(0.0, float(levels[1]))
    zero = bool((levels == 0).any()) or len(levels) <= 3
    origin = 0.0 if zero and _fits(levels, 0.0, step) else float(levels[0])
    if (levels[-1] - levels[0]) / step > _FINEST or not _fits(levels, origin, step):
        return None
    return Lattice(origin, step)


def sixteen_bits(values: Tensor) -> torch.dtype | None:
    """The sixteen-bit type that holds every entry exactly, or None; what already has sixteen bits
    was not cut down."""
    if values.dtype not in (torch.float32, torch.float64):
        return None
    seen = _some(values)
    seen = seen[seen != 0]
    if len(seen) < 16:
        return None
    types = (torch.float16, torch.bfloat16)
    return next(
        (dtype for dtype in types if torch.equal(seen.to(dtype).to(seen.dtype), seen)), None
    )


def _some(values: Tensor) -> Tensor:
    """Entries spread evenly over the tensor, its largest among them."""
    flat = values.detach().flatten()
    if len(flat) <= _LOOKED_AT:
        return flat
    stride = len(flat) // _LOOKED_AT | 1  # odd: no even row length hides behind it
    low, high = torch.aminmax(flat)
    return torch.cat([flat[::stride], low[None], high[None]])


def _fits(levels: Tensor, origin: float, step: float) -> bool:
    places = (levels - origin) / step
    precision = 4 * torch.finfo(torch.float32).eps * float(levels.abs().max()) / step
    return float((places - places.round()).abs().max()) < _OFF + precision and precision < 0.2
