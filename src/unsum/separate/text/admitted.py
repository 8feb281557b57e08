"""Which tokens the first layer admits at which position: it sees token and position alone, so the
vocabulary is tried there.

A vocabulary of V tokens at P positions costs V·P·H·R when each is computed. Nearly every model with
positions of its own adds them to the token before a LayerNorm, x = γ (e + d − mean)/s + β. Then
coordinates in the span are a token's part plus a position's: V·H·R once, and V·R for each position.
Whether a model does that is tried out, not believed.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from unsum.models.language import vocabulary_of
from unsum.separate.text.network import Layer, inputs_of_all, read_by

_BLOCK = 32  # positions that are tried at once
# Times what noise explains: the first layer only saves work, and a faint direction of its may have
# drowned.
_LENIENT = 10.0
ROOMY = 16  # dimensions outside a span in which hardly a stranger is near zero by chance
_PART = 4096  # tokens at a time
_SAME = 1e-5  # relative difference of two forward passes that compute the same
_PROBES = 8  # tokens and positions on which the structure is tried out


class Admitted:
    """The candidates that the first layer admits at a position; all of them where it cannot
    tell."""

    def __init__(self, model: nn.Module, first: Layer, candidates: Tensor, longest: int) -> None:
        self._model, self._first, self.candidates, self.longest = model, first, candidates, longest
        self._blocks: dict[int, list[Tensor]] = {}

    @property
    def firmly(self) -> bool:
        """Whether the span leaves so much room that hardly a stranger is admitted by chance."""
        return not self._tells_nothing and self._first.span.room >= ROOMY

    def at(self, place: int) -> Tensor:
        if self._tells_nothing or place >= self.longest:
            return self.candidates if place < self.longest else self.candidates[:0]
        if self._has_no_positions:
            place = 0
        start = place - place % _BLOCK
        if start not in self._blocks:
            end = 1 if self._has_no_positions else min(start + _BLOCK, self.longest)
            tried = (
                self._by_sums(start, end)
                if self._normalization is not None
                else self._one_by_one(start, end)
            )
            self._blocks[start] = [self.candidates[column < _LENIENT] for column in tried.T]
        return self._blocks[start][place - start]

    @cached_property
    def _tells_nothing(self) -> bool:
        return self._first.span.full or not reads_no_context(self._model, self._first)

    @cached_property
    def _has_no_positions(self) -> bool:
        read = read_by(self._model, self._first.module, self._probes, slice(None))
        return bool(((read - read[:, :1]).norm(dim=2) <= _SAME * read.norm(dim=2)).all())

    @cached_property
    def _probes(self) -> Tensor:
        """Some tokens, each over and over."""
        places = min(_PROBES, self.longest)
        return self.candidates[:: max(1, len(self.candidates) // _PROBES)][:_PROBES, None].expand(
            -1, places
        )

    @cached_property
    def _normalization(self) -> nn.LayerNorm | None:
        """The LayerNorm whose answer the first layer reads, if what it is given is a token's part
        plus a position's."""
        norms = [
            m for m in self._model.modules() if isinstance(m, nn.LayerNorm) and m.weight is not None
        ]
        reads = inputs_of_all(self._model, norms, self._first.module, self._probes)
        wanted = read_by(self._model, self._first.module, self._probes, slice(None))
        for norm in norms:
            given = reads.get(norm, wanted[:0])
            if given.shape == wanted.shape and torch.allclose(
                norm(given), wanted, rtol=_SAME, atol=_SAME
            ):
                summed = given[:, :1] + given[:1] - given[:1, :1]
                alike = (summed - given).norm(dim=2) <= _SAME * given.norm(dim=2)
                return norm if bool(alike.all()) else None
        return None

    def _one_by_one(self, start: int, end: int) -> Tensor:
        """(candidates, positions) how far outside each lies, by computing each."""
        outside = []
        for part in self.candidates[:, None].expand(-1, end).split(1024):
            read = read_by(self._model, self._first.module, part, slice(start, end))
            outside.append(self._first.span.outside(read.flatten(0, 1)).view(len(part), -1))
        return torch.cat(outside)

    def _by_sums(self, start: int, end: int) -> Tensor:
        """The same for x = γ (e + d)/s + β with e and d centered: lengths and coordinates are sums
        of e's part and d's."""
        norm, span = self._normalization, self._first.span
        assert norm is not None
        gamma, H = norm.weight.detach().double(), norm.weight.numel()
        beta = torch.zeros_like(gamma) if norm.bias is None else norm.bias.detach().double()
        one = self.candidates[:1, None]
        places = _centered(read_by(self._model, norm, one.expand(1, end), slice(start, end))[0])
        places = places - _centered(read_by(self._model, norm, one, 0))
        across, shift = (span.V * gamma).T, span.V @ beta
        answers = []
        for part in self.candidates.split(_PART):
            tokens = _centered(read_by(self._model, norm, part[:, None], 0))
            s = (_square_sums(tokens, places) / H + norm.eps).sqrt()
            squares = (
                _square_sums(tokens * gamma, places * gamma) / s.square() + beta.square().sum()
            )
            squares += 2 * ((tokens @ (gamma * beta))[:, None] + places @ (gamma * beta)) / s
            ours, theirs = tokens @ across, places @ across
            columns = [
                span.outside_by(squares[:, j], (ours + theirs[j]) / s[:, j, None] + shift)
                for j in range(end - start)
            ]
            answers.append(torch.stack(columns, 1))
        return torch.cat(answers)


def _centered(x: Tensor) -> Tensor:
    x = x.double()
    return x - x.mean(-1, keepdim=True)


def _square_sums(tokens: Tensor, places: Tensor) -> Tensor:
    """(T, P) ‖t + p‖²."""
    return tokens.square().sum(1)[:, None] + places.square().sum(1) + 2 * tokens @ places.T


def reads_no_context(model: nn.Module, layer: Layer) -> bool:
    """Whether what the layer reads at a position is the same whatever stands around it."""
    other = 2 if vocabulary_of(model) > 2 else 1
    around = torch.tensor([[0, 1, 0], [other, 1, other]], device=layer.gradient.device)
    one, other = read_by(model, layer.module, around, 1)
    return bool((one - other).norm() <= _SAME * one.norm())
