"""The space of maps: what a convolution read, up to the mixing of the batch, by linear algebra
alone.

Row space V of ∇W holds every patch that the convolution read. A map whose every overlapping patch
lies in V is a mixture of the batch's maps. The padding says where to begin: of all vectors in V
only mixtures of the first corner's patches have zeros above and on the left. That null space has
one dimension for each sample. The next patch overlaps it, and one small least-squares solve over V
tells the rest of it; so the maps grow, place by place, until a patch ends in the zeros of the other
side. Nobody needs to know the maps' size, nor the batch's.

BatchNorm in train mode makes ∂loss/∂z sum to zero, so V holds patches less their mean. Then the
maps that grow are those of differences of samples, one dimension less. One map more, `origin`, has
patches that all leave V in the same direction; it is the one eigenvector that is missing (Lanczos).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unsum.head import orthonormal_rows
from unsum.spans.basis import LayerSpan

# of a patch where padding is, or outside V, squared: always zero; never zero
_SURE, _MOST = 1e-9, 2e-2
_NOISY = 100.0  # times what noise should leave there
# of a patch beyond its middle: no more than that is left of the column after the last
_CLOSED = 0.1
_STEPS = 120  # of Lanczos: forty are enough where the next eigenvalue is 0.93
_PRECISE = 1e-10  # of the eigenvalue's residual


@dataclass(frozen=True)
class MapSpace:
    """Mixtures of the batch's maps: (K, C, h, w), orthonormal. Where `origin` (C, h, w) is given,
    every sample is origin plus a mixture; if patches are `centered`, it is a multiple of that, the
    same for all, and perhaps a negative one."""

    maps: Tensor
    origin: Tensor | None
    centered: bool = False

    @property
    def samples(self) -> int:
        return len(self.maps) + (self.origin is not None)

    @property
    def every(self) -> Tensor:
        """(B, C, h, w) all directions."""
        return (
            self.maps
            if self.origin is None
            else torch.cat([(self.origin / self.origin.norm())[None], self.maps])
        )

    @property
    def sides(self) -> tuple[int, int]:
        return self.maps.shape[-2], self.maps.shape[-1]


def map_space(
    span: LayerSpan, channels: int, kernel: tuple[int, int], *, centered: bool | None
) -> MapSpace | None:
    """The space of a convolution's maps, or None where no map fits.

    `centered` says whether patches are believed to be known less their mean, None that they are
    not. The numbers know better: B samples have B·places directions, or one less.
    """
    V = span.rows.view(len(span), channels, *kernel)
    grown = _grow(V, _corners(span, V))
    if grown is None:
        side = math.isqrt(len(span) + 1)
        if centered is None or side * side != len(span) + 1:
            return None
        grown = V.new_zeros(0, channels, side, side)  # of one sample there are no differences
    places = grown.shape[-2] * grown.shape[-1]
    whole, less = len(span) == len(grown) * places, len(span) == (len(grown) + 1) * places - 1
    if centered is not None and whole != less:
        centered = less
    maps = orthonormal_rows(grown.flatten(1)).view_as(grown) if len(grown) else grown
    if not centered:
        return MapSpace(maps, None)
    origin = _origin(V, maps)
    return None if origin is None else MapSpace(maps, origin, centered=True)


def with_lengths(
    space: MapSpace, span: LayerSpan, kernel: tuple[int, int], grad_b: Tensor
) -> MapSpace:
    """The space of samples among all mixtures, told by the gradient of a bias: it reads a 1 from
    every patch.

    A patch p = Σ t_r a_r has the sum of its coefficients Σ t_r = ∇b · ∇W⁺ᵀ p; a sample's is 1.
    """
    patches = F.unfold(space.maps, kernel, padding=(kernel[0] // 2, kernel[1] // 2)).mT  # (K, P, n)
    reading = torch.linalg.solve(span.core, span.columns @ grad_b.double())
    sums = ((patches @ span.rows.T) @ reading).mean(1)
    if not float(sums.norm()) > 0:
        return space
    shortest = sums / sums.square().sum()
    turned = torch.linalg.qr(sums[:, None], mode="complete")[0][:, 1:].T
    return MapSpace(
        torch.tensordot(turned, space.maps, 1), torch.tensordot(shortest, space.maps, 1)
    )


def _corners(span: LayerSpan, V: Tensor) -> Tensor:
    """(b, N) coordinates in V of what has zeros wherever the first corner's patches have the
    padding's."""
    rows, columns = V.shape[2] // 2, V.shape[3] // 2
    outside = torch.ones(V.shape[2:], dtype=torch.bool, device=V.device)
    outside[rows:, columns:] = False
    padding = V[:, :, outside].flatten(1)
    squares, vectors = torch.linalg.eigh(padding @ padding.T)
    noise = span.noise**2 * padding.shape[1] * (vectors.T / span.values).square().sum(1)
    zero = squares < (_NOISY * noise).clamp(_SURE, _MOST)
    return vectors.T[: int(zero.long().cumprod(0).sum())]


def _grow(V: Tensor, corners: Tensor) -> Tensor | None:
    """(b, C, h, w) maps from their first patches, row by row; None where they do not end."""
    kernel = V.shape[2:]
    middle = (kernel[0] // 2, kernel[1] // 2)
    grams = {
        (i, j): V[:, :, i, j] @ V[:, :, i, j].T for i in range(kernel[0]) for j in range(kernel[1])
    }
    factors: dict[tuple[tuple[int, int], ...], Tensor] = {}
    pixels: dict[tuple[int, int], Tensor] = {}
    most = len(V) // max(len(corners), 1) + 1
    nothing = V.new_zeros(len(corners), V.shape[1])
    width = most
    row, column = 0, 0
    while len(corners) and row < most and column < most:
        at = {(i, j): (row + i - middle[0], column + j - middle[1]) for i, j in grams}
        known = {
            position: nothing if min(pixel) < 0 or pixel[1] >= width else pixels[pixel]
            for position, pixel in at.items()
            if min(pixel) < 0 or pixel[1] >= width or pixel in pixels
        }
        if row == column == 0:
            patch = torch.einsum("bn,ncij->bcij", corners, V)
        else:
            key = tuple(known)
            if key not in factors:
                factors[key] = torch.linalg.cholesky_ex(
                    sum(grams[p] for p in key) + 1e-14 * torch.eye(len(V)).to(V)
                )[0]
            seen = torch.stack([value @ V[:, :, i, j].T for (i, j), value in known.items()]).sum(0)
            patch = torch.einsum("bn,ncij->bcij", torch.cholesky_solve(seen.T, factors[key]).T, V)
        pixels |= {pixel: patch[:, :, i, j] for (i, j), pixel in at.items() if (i, j) not in known}
        size = float(patch.norm())
        if width == most and float(patch[..., middle[1] + 1].norm()) < _CLOSED * size:
            width = column + 1
        column += 1
        if column == width:
            below = torch.stack([pixels[row + 1, c] for c in range(width)])
            here = torch.stack([pixels[row, c] for c in range(width)])
            row, column = row + 1, 0
            if float(below.norm()) < _CLOSED * float(here.norm()):
                return torch.stack(
                    [torch.stack([pixels[r, c] for c in range(width)], -1) for r in range(row)], -2
                )
    return None


def inside(V: Tensor, maps: Tensor) -> Tensor:
    """What of maps (K, C, h, w) has patches that leave V all in the same direction: a projection of
    patches, folded again.

    Each pixel is divided by the number of patches it is in, so that eigenvalues lie between 0 and
    1, and those of mixtures are 1.
    """
    kernel, sides = (V.shape[2], V.shape[3]), maps.shape[2:]
    padding = (kernel[0] // 2, kernel[1] // 2)
    count = F.fold(
        F.unfold(torch.ones_like(maps[:1, :1]), kernel, padding=padding),
        sides,
        kernel,
        padding=padding,
    )
    patches = F.unfold(maps / count.sqrt(), kernel, padding=padding).mT  # (K, P, C k k)
    mean = patches.mean(1, keepdim=True)
    rows = V.flatten(1)
    within = ((patches - mean) @ rows.T) @ rows
    within = within - within.mean(1, keepdim=True) + mean
    return F.fold(within.mT, sides, kernel, padding=padding) / count.sqrt()


def _origin(V: Tensor, maps: Tensor) -> Tensor | None:
    """(C, h, w) the map beside differences: Lanczos for the largest eigenvalue beside theirs; None
    where that is not 1."""
    sides = maps.shape[2:]
    kernel, padding = (V.shape[2], V.shape[3]), (V.shape[2] // 2, V.shape[3] // 2)
    ones = maps.new_ones(1, 1, *sides)
    weight = F.fold(F.unfold(ones, kernel, padding=padding), sides, kernel, padding=padding).sqrt()[
        0
    ]
    known = orthonormal_rows((maps * weight).flatten(1)) if len(maps) else maps.flatten(1)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, known.shape[1], generator=generator, dtype=torch.float64).to(V)
    basis = F.normalize(start - (start @ known.T) @ known)
    images = torch.zeros_like(basis[:0])
    for _ in range(_STEPS):
        image = inside(V, basis[-1].view(1, *maps.shape[1:])).flatten(1)
        images = torch.cat([images, image])
        values, vectors = torch.linalg.eigh(images @ basis.T)
        found = vectors[:, -1] @ basis
        if float((vectors[:, -1] @ images - values[-1] * found).norm()) < _PRECISE:
            break
        for _ in range(2):
            image = image - (image @ known.T) @ known
            image = image - (image @ basis.T) @ basis
        basis = torch.cat([basis, F.normalize(image)])
    if not float(values[-1]) > 1 - _MOST:
        return None
    origin = found.view(maps.shape[1:]) / weight
    flat = maps.flatten(1)
    origin = origin - (origin.flatten() @ flat.T @ flat).view_as(origin)
    return origin / origin.norm()
