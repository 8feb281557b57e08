"""Imprint (Robbing the Fed): rows that share one query and differ in their thresholds sort a batch
into bins.

Row i of the inserted layer computes a_i = ReLU(⟨h, x⟩ − q_i), q_1 < q_2 < …, and all rows act on
the loss in the same way, so sample s contributes δ_s (x_s, 1) to the gradient (∇W_i, ∇b_i) of every
row whose threshold it exceeds. The difference of neighbors holds the samples of one bin alone, and
a bin with one sample gives it away:

    x = (∇W_i − ∇W_{i+1}) / (∇b_i − ∇b_{i+1})          q_i < ⟨h, x⟩ ≤ q_{i+1};  the last row stands
                                                       for its own bin.

h is the mean of all pixels (brightness) or random; the q_i are quantiles of ⟨h, x⟩, so that bins
are hit alike: of a Gaussian with the mean and spread that photos are known to have, or as auxiliary
inputs have them. The first threshold lies below everything.

**Which bins hold one sample?** A mixture of two is an input, too, and lies in the same bin. A
second, tiny layer (the witness) sorts the samples into the same bins but sees only block means of
them, and acts on the loss in another direction: its differences mix the samples with other weights
δ'_s. One sample has the same block means in both; a mixture has not, unless its samples resemble
each other (see `method`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from unsum.active.method import (
    SERVERS,
    Reader,
    Recovered,
    counted,
    gradients_of,
    in_range,
    on_grid,
    random_patterns,
)
from unsum.certify.claim import grant_each
from unsum.errors import UnsumError, unknown_name
from unsum.update import Update

# mean and spread over 2 000 public photos of things, animals and scenes
PHOTO_BRIGHTNESS = (0.447, 0.127)
_FLOOR = 10.0  # spreads below the mean: where the first threshold lies
_BLOCKS = 48  # means that a second layer reads: sixteen for each color plane of a picture
_CLEAR = 30.0  # how far above rounding a bin must stand to count as filled
# block means of the two layers agree to this in a bin of one sample, or to rounding where that is
# more
_AGREE = 1e-4
_TOO_ROUGH = 3e-3  # beyond it agreement says nothing


@SERVERS.register(
    "imprint",
    summary="a layer whose bins hold single samples (Robbing the Fed)",
    needs="to change the model; what inputs are like: photos by default, or auxiliary inputs",
)
def imprint(
    shape: tuple[int, ...],
    generator: torch.Generator,
    auxiliary: Tensor | None,
    *,
    bins: int = 128,
    strength: float = 0.1,
    query: str = "brightness",
    mean: float = PHOTO_BRIGHTNESS[0],
    std: float = PHOTO_BRIGHTNESS[1],
) -> tuple[nn.Module, Reader]:
    """`strength` scales what the layer adds to its input; `mean` and `std` are of brightness, where
    nothing else is known."""
    if bins < 2 or not strength > 0 or not std > 0:
        raise UnsumError(
            "An imprint needs at least two bins, a positive strength and a positive std."
        )
    h = _query(query, shape, generator)
    if auxiliary is not None:
        seen = auxiliary.flatten(1).to(h) @ h
        mean, std = float(seen.mean()), max(float(seen.std()), 1e-6)
        photos = f"{len(auxiliary)} auxiliary inputs, for the distribution of the query"
    elif query != "brightness":
        raise UnsumError(
            "Only of brightness is it known how photos spread; give auxiliary inputs for another "
            "query."
        )
    else:
        seen, photos = None, f"their brightness, {mean:g} ± {std:g}, as published photos have it"
    thresholds = _quantiles(seen, mean, std, bins) / std
    layer = ImprintLayer(h / std, thresholds, random_patterns(2, shape, generator), strength)
    reader = ImprintReader("imprint", shape, query, bins, h / std, thresholds, photos=photos)
    return layer, reader


def _query(query: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    size = int(torch.Size(shape).numel())
    if query == "brightness":
        return torch.full((size,), 1 / size)
    if query == "random":
        return torch.randn(size, generator=generator) / size
    raise unknown_name("query", query, ["brightness", "random"])


def _quantiles(seen: Tensor | None, mean: float, std: float, bins: int) -> Tensor:
    """(bins,) thresholds: quantiles of what was seen where that is enough, else of a Gaussian; the
    first far below."""
    share = torch.arange(1, bins, dtype=torch.float64) / bins
    if seen is not None and len(seen) >= 4 * bins:  # fewer make uneven bins: see chance_of_hits
        inner = torch.quantile(seen.double(), share)
    else:
        inner = mean + std * math.sqrt(2) * torch.erfinv(2 * share - 1)
    return torch.cat([torch.tensor([mean - _FLOOR * std], dtype=torch.float64), inner])


class ImprintLayer(nn.Module):
    """x + strength · (mean_i a_i · pattern + mean_i a'_i · other pattern); a' are the witness's
    activations."""

    query: Tensor
    patterns: Tensor

    def __init__(
        self, query: Tensor, thresholds: Tensor, patterns: Tensor, strength: float
    ) -> None:
        super().__init__()
        bins, size = len(thresholds), len(query)
        self.blocks = blocks_of(size)
        self.rows = nn.utils.skip_init(nn.Linear, size, bins)
        self.witness = nn.utils.skip_init(nn.Linear, 1 + self.blocks, bins)
        self.register_buffer("query", query)
        self.register_buffer("patterns", strength * patterns)
        with torch.no_grad():
            self.rows.weight.copy_(query.expand(bins, size))
            self.witness.weight.zero_()[:, 0] = 1.0
            for layer in (self.rows, self.witness):
                layer.bias.copy_(-thresholds)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        seen = torch.cat([(flat @ self.query).unsqueeze(1), block_means(flat, self.blocks)], 1)
        activations = [
            layer(inputs).relu().mean(1)
            for layer, inputs in ((self.rows, flat), (self.witness, seen))
        ]
        added: Tensor = torch.stack(activations, 1) @ self.patterns
        return x + added.view_as(x)


def blocks_of(size: int) -> int:
    return min(_BLOCKS, size)


def block_means(flat: Tensor, blocks: int) -> Tensor:
    """(B, blocks) means of runs of entries: three rows of blocks a color plane for pictures, enough
    to tell two apart."""
    return nn.functional.adaptive_avg_pool1d(flat.unsqueeze(1), blocks).squeeze(1)


@dataclass(frozen=True, repr=False)
class ImprintReader(Reader):
    query: str
    bins: int
    h: Tensor = field(compare=False)  # (D,) the query in units of its spread
    thresholds: Tensor = field(compare=False)

    @property
    def summary(self) -> str:
        return (
            f"{self.bins} bins of "
            f"{self.query if self.query == 'brightness' else f'a {self.query} query'}"
        )

    def read(self, update: Update) -> Recovered:
        """Bin by bin: the difference of neighboring rows, divided; and whether one sample alone
        explains it."""
        rows = gradients_of(update, "rows")
        eps = torch.finfo(update.gradients["front.rows.weight"].dtype).eps
        dW, db, noise = _differences(*rows, eps)
        filled = (dW.norm(dim=1) > _CLEAR * noise) & (db != 0)
        places = filled.nonzero().flatten()
        dV, dc, witness_noise = _differences(*gradients_of(update, "witness"), eps)
        x = dW[places] / db[places, None]
        errors = noise[places] / dW[places].norm(dim=1)
        seen = dV[places, 1:] / dc[places, None]
        rough = witness_noise[places] / dc[places].abs() + errors * x.abs().amax(1)
        apart = (seen - block_means(x, blocks_of(x.shape[1]))).abs().amax(1)
        agree = (apart < torch.maximum(3 * rough, torch.full_like(rough, _AGREE))) & (
            rough < _TOO_ROUGH
        )
        possible = in_range(x, self.pixel_range, slack=2e-3) & self._in_bin(x, places)
        single, grid = possible & (agree | on_grid(x)), possible & on_grid(x)
        errors = errors.masked_fill(~single, math.inf)
        proved = single if counted(update, len(places)) else grid
        sure = grant_each(errors.masked_fill(~proved, math.inf), above=True)
        notes = self._notes(
            len(places),
            int(sure.sum()),
            int((sure & grid).sum()),
            int((single & ~sure).sum()),
            update,
        )
        return Recovered(x.float().view(-1, *self.shape), sure, errors, places, notes)

    def _in_bin(self, x: Tensor, places: Tensor) -> Tensor:
        """Fed to the layer again, the input falls into the bin it was found in, up to a hundredth
        of the bin's width."""
        low = self.thresholds.to(x)
        high = torch.cat([low[1:], low.new_tensor([math.inf])])
        slack = 1e-4 + 0.01 * (high - low).clamp_max(1.0)
        value = x @ self.h.to(x)
        return (value >= (low - slack)[places]) & (value <= (high + slack)[places])

    def _notes(self, found: int, sure: int, grid: int, open_: int, update: Update) -> list[str]:
        if not found:
            return [
                (
                    f"None of the {self.bins} bins stands out of the update's noise or rounding, "
                    "so nothing was read."
                )
            ]
        notes = {
            f"Of {self.bins} bins {found} are filled: {sure} hold one sample alone, which was read "
            f"exactly, and {found - sure - open_} hold several, whose mixture is shown and not "
            "vouched for.": True,
            f"{open_} more hold one sample, or several that resemble each other, whose mean is "
            "shown: off the grid of 8-bit pictures only the batch size would tell.": open_,
            (
                f"{grid} of the exact ones have all their pixels on the 1/255 grid of 8-bit "
                "pictures, as no mixture has."
            ): grid,
            (
                "Copies of one picture fall into one bin and come back as that picture, once; how "
                "many they are is unknown."
            ): sure,
            (
                "The update is a weight delta: samples that changed their bin between local steps "
                "count as mixtures."
            ): (update.kind == "delta"),
        }
        return [note for note, holds in notes.items() if holds]


def _differences(grad_W: Tensor, grad_b: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbors' differences (the last row stands for itself), and how large each is by rounding or
    noise alone."""
    following = partial(torch.roll, shifts=-1, dims=0)
    dW, db = grad_W - following(grad_W), grad_b - following(grad_b)
    dW[-1], db[-1] = grad_W[-1], grad_b[-1]
    norms = dW.norm(dim=1)
    rounding = eps * torch.maximum(grad_W.norm(dim=1), following(grad_W).norm(dim=1))
    low, quarter = norms.quantile(0.05), norms.quantile(0.25)
    # empty bins of a noisy update all look alike
    floor = quarter if quarter < 1.5 * low else low * 0
    return dW, db, torch.maximum(rounding, floor / _CLEAR * 2)


def chance_of_hits(samples: int, bins: int, auxiliary: int | None = None) -> float:
    """How many of `samples` are expected to fall into a bin alone.

    Independent samples, bins that are equally likely: n (1 − 1/k)^{n−1}. Where the k − 1 thresholds
    are themselves as many random samples (`auxiliary=bins - 1`), all orders of samples and
    thresholds are equally likely, every way to fill the bins is, too, and the published count
    holds: n k (k − 1) / ((n + k − 1)(n + k − 2)).

    >>> round(chance_of_hits(64, 128), 2), round(chance_of_hits(64, 128, auxiliary=127), 2)
    (39.05, 28.67)
    """
    n, k = samples, bins
    if auxiliary is None:
        return n * (1 - 1 / k) ** (n - 1)
    if auxiliary != k - 1:
        raise UnsumError(
            f"The count for thresholds that are samples themselves holds for {k - 1} of them, not "
            f"{auxiliary}."
        )
    return n * k * (k - 1) / ((n + k - 1) * (n + k - 2))
