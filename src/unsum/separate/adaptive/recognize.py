"""Which defense an update went through, read from the update itself.

Exact zeros inside columns that are not zero altogether are no accident of softmax: entries were removed. Few distinct values
are a grid. And the rows of G sum to zero, so the columns of ∇W do; what they sum to instead is noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unsum.equation.noise import measure_noise
from unsum.head import Head
from unsum.separate.adaptive.lattice import Lattice, find_lattice, sixteen_bits

_REMOVED = 1e-4  # share of zeros in live columns above which they are no coincidence
_UNDERFLOW = 1e-12  # of the largest entry: smaller survivors than that are softmax's own, not a threshold's


@dataclass(frozen=True)
class RecognizedDefense:
    """`kind` is one of none, noise, pruned, random-grid, grid, sign and sixteen-bits; `sentence` says it to a person."""

    kind: str
    sentence: str
    sigma: float = 0.0  # standard deviation of what was added to an entry of ∇W
    sigma_b: float = 0.0  # and of ∇b
    threshold: float = 0.0  # entries of ∇W of smaller magnitude were removed
    threshold_b: float = 0.0
    lattice: Lattice | None = None
    dtype: torch.dtype | None = None

    @property
    def is_noise(self) -> bool:
        """Whether every entry was sent, with an error of its own."""
        return self.kind in ("noise", "grid")


def recognize(head: Head) -> RecognizedDefense:
    """The defense that the head's gradient shows."""
    zeros, smallest, largest = _zeros(head)
    lattice = find_lattice(head.grad_W)
    if lattice is not None:
        return _of_lattice(head, lattice, zeros)
    if zeros > _REMOVED and smallest > _UNDERFLOW * largest and sixteen_bits(head.grad_W) is None:
        return _pruned(head, zeros, smallest)
    dtype = sixteen_bits(head.grad_W)
    if dtype is not None:
        name = {torch.float16: "float16", torch.bfloat16: "bfloat16"}[dtype]
        return RecognizedDefense(
            "sixteen-bits", f"Every entry is a {name} number: the update was sent in sixteen bits.", dtype=dtype
        )
    noise = measure_noise(head)
    if not noise.added:
        return RecognizedDefense("none", "")
    sigma = float(noise.level.square().mean().sqrt())
    sentence = (
        f"The columns of the head's gradient do not sum to zero: noise of standard deviation {sigma:.2g} was added, "
        f"{100 * noise.relative:.2g} % of the gradient."
    )
    return RecognizedDefense("noise", sentence, sigma=sigma, sigma_b=sigma)


def _zeros(head: Head) -> tuple[float, float, float]:
    """The share of exact zeros in the columns that are not zero altogether; the smallest and the largest magnitude."""
    C, H = head.grad_W.shape
    count = torch.zeros(H, dtype=torch.long, device=head.grad_W.device)
    smallest, largest = float("inf"), 0.0
    for rows in head.grad_W.split(max(1, (1 << 22) // H)):
        size = rows.abs()
        present = size > 0
        count += present.sum(0)
        largest = max(largest, float(size.max()))
        smallest = min(smallest, float(size.masked_fill_(~present, torch.inf).min()))
    live = count > 0
    entries = int(live.sum()) * C
    return (1 - int(count.sum()) / entries if entries else 0.0), smallest, largest


def _pruned(head: Head, zeros: float, smallest: float) -> RecognizedDefense:
    sentence = (
        f"{100 * zeros:.4g} % of the head's gradient is exactly zero, and nothing is smaller than {smallest:.2g}: "
        "it was pruned to its largest entries."
    )
    return RecognizedDefense("pruned", sentence, threshold=smallest, threshold_b=_smallest(head.grad_b))


def _smallest(tensor: Tensor | None) -> float:
    """The smallest magnitude of an entry, if any was removed."""
    if tensor is None or not bool((tensor == 0).any()) or not bool(tensor.any()):
        return 0.0
    return float(tensor[tensor != 0].abs().min())


def _of_lattice(head: Head, lattice: Lattice, zeros: float) -> RecognizedDefense:
    levels = round(float(head.grad_W.abs().max()) / lattice.step)
    if lattice.through_zero and levels <= 1:
        kind, sentence = "sign", "All entries have one magnitude: only their signs were sent."
        if zeros > 0.5:  # signs of a gradient are hardly ever zero where its column is not; one random level often is
            kind, sentence = (
                "random-grid",
                "Entries are zero or of one magnitude: they were rounded at random to one level.",
            )
        return RecognizedDefense(kind, sentence, lattice=lattice)
    step_b = _step(head.grad_b)
    if lattice.through_zero:
        sentence = (
            f"Entries are multiples of {lattice.step:.3g}, up to {levels}: they were rounded at random to few levels."
        )
        return RecognizedDefense("random-grid", sentence, sigma_b=step_b / 6**0.5, lattice=lattice)
    sentence = f"Entries lie on a grid of step {lattice.step:.3g} between their extremes: they were quantized."
    sigma = lattice.step / 12**0.5
    return RecognizedDefense("grid", sentence, sigma=sigma, sigma_b=step_b / 12**0.5, lattice=lattice)


def _step(tensor: Tensor | None) -> float:
    lattice = (
        None if tensor is None else find_lattice(tensor.repeat(32))
    )  # few entries: each counts as often as it takes
    return 0.0 if lattice is None else lattice.step
