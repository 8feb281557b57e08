"""Prefixes under noise: a beam of those that several layers together say were read.

Without noise one layer's span admits a prefix or does not (`walk`). Noise and sixteen-bit rounding
leave no such line, but every layer weighs a prefix by its likelihood (`graded`), and the nats of
all layers that show the text add up. The likeliest prefixes are kept at every length; which of them
make up the batch is told by the replayed gradient (`chosen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.running.deadline import out_of_time
from unsum.separate.text.admitted import reads_no_context
from unsum.separate.text.graded import GradedSpan
from unsum.separate.text.network import Layer, inputs_of_all, read_at_ends

_WIDTH = 48  # [prefixes] kept at every length. Chosen by: six sequences need about a third.
_TRIALS = 6000  # [prefixes] tried for one more token. Chosen by: a second for three small layers.
_AT_ONCE = 1 << 14  # [positions] in one pass. Chosen by: memory of a small model's layers.
# [of the largest rank] a layer's directions from which it is believed: one of fewer misses
# positions, and strangers resemble what it shows. Chosen by: 0.4 to 0.6 in layers that mislead.
_SHOWN = 0.75
# [of the usual likelihood of a kept token] below which the best one at a length is a stranger: no
# sequence is that long. Chosen by: strangers have a tenth to a half.
_ENDED = 0.5
# [of the strongest token of a length] a token's likelihood to be kept. Chosen by: half of the
# faintest that was seen, 0.2.
_FAINTEST = 0.1


@dataclass(frozen=True)
class Prefix:
    """Tokens from the beginning of a sequence, and by how many nats all layers say so: of all of
    them, and of the last alone."""

    tokens: tuple[int, ...]
    nats: float
    last: float


class Judges:
    """The layers that show most of the text, each with its blurred span without what sequences read
    that are `known`."""

    def __init__(
        self,
        model: nn.Module,
        layers: list[Layer],
        known: Sequence[tuple[int, ...]] = (),
        *,
        rounded: bool,
    ) -> None:
        self._model = model
        self.known = {one[:end] for one in known for end in range(1, len(one))}
        spans = []
        for layer in layers:
            if out_of_time("layers that tell prefixes apart"):
                break
            taken = read_at_ends(model, layer.module, list(self.known)) if self.known else None
            spans.append((layer, GradedSpan(layer.gradient, rounded=rounded, known=taken)))
        self.most = max((span.rank for _, span in spans), default=0)
        self._spans = [(x, span) for x, span in spans if 0 < span.rank >= _SHOWN * self.most]

    def __bool__(self) -> bool:
        """Whether any of them reads context: else no prefix is told from another."""
        return any(not reads_no_context(self._model, layer) for layer, _ in self._spans)

    def first(self, tokens: Tensor) -> Tensor:
        """(n,) what the first of the layers alone says of the last of tokens (n, L)."""
        return self._weighed(tokens, self._spans[:1])

    def all(self, tokens: Tensor) -> Tensor:
        """(n,) what all layers say together."""
        return self._weighed(tokens, self._spans)

    def _weighed(self, tokens: Tensor, spans: list[tuple[Layer, GradedSpan]]) -> Tensor:
        modules = [layer.module for layer, _ in spans]
        parts = []
        for part in tokens.split(max(1, _AT_ONCE // tokens.shape[1])):
            if out_of_time("further prefixes"):
                parts.append(torch.zeros(len(part), dtype=torch.float64, device=part.device))
                continue
            read = inputs_of_all(self._model, modules, modules[-1], part)
            nats = torch.zeros(len(part), dtype=torch.float64, device=part.device)
            for layer, span in spans:
                nats += span.likelihood(read[layer.module].view(*part.shape, -1)[:, -1])
            parts.append(nats)
        return torch.cat(parts)


def search(judges: Judges, candidates: Tensor, longest: int) -> list[Prefix]:
    """The likeliest prefixes of every length, until none is likely any more."""
    kept: list[Prefix] = []
    stems = [Prefix((), 0.0, 0.0)]
    usual: list[float] = []
    for length in range(1, longest + 1):
        if out_of_time("longer sequences"):
            break
        heads = torch.tensor([stem.tokens for stem in stems], device=candidates.device).long()
        here = _likely(judges, heads[:1], candidates, max(1, _TRIALS // len(stems)))
        trials = torch.cat(
            [heads.repeat_interleave(len(here), 0), here.repeat(len(stems))[:, None]], 1
        )
        nats = judges.all(trials)
        best = float(nats.max())
        if judges.known:  # what is known is taken out of the spans, and may go on otherwise
            there = [i for i, row in enumerate(trials.tolist()) if tuple(row) in judges.known]
            nats[there] = best
        if length > 1 and best < _ENDED * sorted(usual)[len(usual) // 2]:
            break
        usual.append(best)
        so_far = torch.tensor([stem.nats for stem in stems], dtype=nats.dtype).to(nats)
        total = (so_far[:, None] + nats.view(len(stems), -1)).flatten()
        total[nats < _FAINTEST * best] = -torch.inf
        stems = [
            Prefix(tuple(trials[i].tolist()), float(total[i]), float(nats[i]))
            for i in _wide(total.view(len(stems), -1))
        ]
        kept += stems
    return kept


def ends(prefixes: list[Prefix]) -> list[Prefix]:
    """Those that may be whole: nothing likely goes on with them."""
    on: dict[tuple[int, ...], float] = {}
    for prefix in prefixes:
        stem = prefix.tokens[:-1]
        on[stem] = max(on.get(stem, 0.0), prefix.last)
    return [prefix for prefix in prefixes if on.get(prefix.tokens, 0.0) < _ENDED * prefix.last]


def _likely(judges: Judges, head: Tensor, candidates: Tensor, most: int) -> Tensor:
    """The `most` candidates that the first layer finds likeliest behind a stem."""
    if len(candidates) <= most:
        return candidates
    nats = judges.first(torch.cat([head.expand(len(candidates), -1), candidates[:, None]], 1))
    return candidates[nats.topk(most).indices.sort().values]


def _wide(total: Tensor) -> list[int]:
    """Of (stems, tokens) the likeliest, and of the likeliest stems the best: a strong sequence with
    any token would leave no place for a faint one."""
    flat = total.flatten()
    order = flat.argsort(descending=True)[: _WIDTH // 2].tolist()
    best, token = total.max(1)
    stems = best.argsort(descending=True)[:_WIDTH]
    order += (stems * total.shape[1] + token[stems]).tolist()
    kept = [i for i in dict.fromkeys(order) if float(flat[i]) > -torch.inf]
    return kept[:_WIDTH]
