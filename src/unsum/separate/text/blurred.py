"""Next tokens under noise and sixteen-bit rounding: what a span no longer admits or refuses is
weighed.

Rows of the embedding and of the head name the tokens. A beam keeps the prefixes that several layers
find likely, and the replayed gradient tells which sequences there are. What these leave of the
gradient is searched once more: fewer sequences are in it, so faint ones stand out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.equation.noise import unit_of
from unsum.head import find_head
from unsum.knowledge import Knowledge
from unsum.running.deadline import out_of_time
from unsum.separate.text.beam import Judges, Prefix, ends, search
from unsum.separate.text.chosen import Exchange, SentSketch, choose
from unsum.separate.text.graded import GradedSpan
from unsum.separate.text.network import device_of, joined, linear_layers, read_at_ends
from unsum.separate.text.recovered import Text
from unsum.separate.text.replay import embedding, name_of
from unsum.update import Update

_SIXTEEN_BITS = 1e-4  # [relative] from which the distance of numbers is that of sixteen bits
_ENDINGS = 2  # [labels] tried at the end of each prefix. Chosen by: the first was right mostly.
# [of the mean over the eight largest] a row's size that names a token. Chosen by: rows of tokens
# had 0.1 at least, those of absent ones 0.02.
_NAMED = 0.03
# [of the gradient] noise up to which prefixes are walked as without any. Chosen by: float16 makes
# up 3e-4 and is read so; bfloat16 3e-3.
_FINE = 1e-3
# [of all directions] a layer's rank from which its smallest ones are text as well, and no noise.
# Chosen by: arbitrary margin.
_FULL = 0.75
# [times the smallest] the largest deviation of layers with the same noise. Chosen by: they
# agreed to a tenth; faint text in full layers differs several times.
_ALIKE = 2.0
_CLEAR = 2.0  # [times noise alone] likewise. Chosen by: 128 entries fluctuate by 6 %.
_MOST_TOKENS = 256  # [tokens] tried at a place. Chosen by: time.
_WHOLE = 1.05  # [times 1/α] positions at most: the weight of one is known to a few per cent
_SEARCHES = 4  # [searches] of what is left. Chosen by: the third found nothing more.
_ROUNDS = 2  # [rounds] of searches and exchanges of tokens. Chosen by: time.
_PROGRESS = 0.02  # [of the residual] by which a search must lessen it. Chosen by: arbitrary margin.
# [of the longest sequence] from which one counts as whole, and is taken off before the next search.
# Chosen by: arbitrary; a shorter one is found again.
_LONG = 0.9
ENOUGH = 1.3  # [times the noise] residual at which nothing is left to be found


@dataclass(frozen=True)
class Blur:
    """What keeps a gradient from being exact: noise of a `deviation`, or rounding (`rounded`).

    `share` is the part of the whole gradient that it makes up.
    """

    deviation: float
    rounded: bool
    share: float


def blur_of(model: nn.Module, update: Update) -> Blur | None:
    """The noise of an update; None where it is too little to blur anything."""
    matrices = [g for g in update.gradients.values() if g.ndim == 2 and min(g.shape) > 1]
    if not matrices:
        return None
    unit = min(unit_of(g) for g in matrices)
    whole = float(torch.stack([g.double().norm() for g in update.gradients.values()]).norm())
    if unit > _SIXTEEN_BITS:
        # half a unit, uniform: a third of it is its deviation
        return None if unit / 3 < _FINE else Blur(0.0, True, unit / 3)
    layers = [layer for layer in linear_layers(model, update.gradients) if layer.span.noisy]
    if not layers:
        return None
    spans = [GradedSpan(layer.gradient) for layer in layers]
    sides = [min(layer.gradient.shape) for layer in layers]
    spans = [s for s, side in zip(spans, sides, strict=True) if s.rank < _FULL * side]
    if not spans:
        return None
    deviations = sorted(span.deviation for span in spans)
    if deviations[-1] > _ALIKE * deviations[0]:  # what is left over is text, not noise
        return None
    deviation = deviations[len(deviations) // 2]
    entries = sum(g.numel() for g in update.gradients.values())
    share = min(1.0, deviation * entries**0.5 / max(whole, 1e-300))
    return None if share < _FINE else Blur(deviation, False, share)


def read_blurred(
    model: nn.Module, update: Update, knowledge: Knowledge, blur: Blur, longest: int
) -> Text | None:
    """The sequences, or None where no layer tells prefixes apart."""
    device = device_of(model)
    layers = joined(model, linear_layers(model, update.gradients))
    inputs, labels = _named(model, update, blur)
    most = knowledge.known_batch_size or embedding(model).embedding_dim - 1
    sketch = SentSketch(model, update, torch.cat([inputs, labels]).unique(), blur.deviation)
    found: list[tuple[int, ...]] = []
    share, enough = 1.0, ENOUGH * blur.share
    for number in range(_ROUNDS):
        for searched in range(_SEARCHES):
            known = _trusted(found) if number or searched else []
            judges = Judges(model, layers, known, rounded=blur.rounded)
            if not judges or out_of_time("what is left of the gradient"):
                break
            prefixes = ends(search(judges, inputs.to(device), longest))
            pool = _ended(model, update, prefixes, judges.known, labels)
            pool = list(dict.fromkeys([*found, *_combined(found, longest + 1), *pool]))
            chosen, weighed = choose(sketch, pool, most)
            if weighed is None or weighed.left >= share * (1 - _PROGRESS):
                break
            found, share = chosen, weighed.left
            if update.reduction == "mean" and update.scale_known:
                most = min(most, int(_WHOLE / weighed.alpha))
            if share < enough:
                break
        if not found or out_of_time("tokens in the place of others"):
            break
        better = Exchange(sketch, found, (inputs, labels), most, longest + 1, enough)
        better.run()
        if better.share >= share * (1 - _PROGRESS):
            break
        found, share = better.sequences, better.share
        if share < enough:
            break
    return Text([list(one) for one in found], [list(one) for one in found]) if found else None


def _named(model: nn.Module, update: Update, blur: Blur) -> tuple[Tensor, Tensor]:
    """The tokens that stand in the text, and those that are labels, by rows of the embedding and of
    the head."""
    tables = []
    for weight in (embedding(model).weight, find_head(model)[1].weight):
        gradient = update.gradients.get(name_of(model, weight))
        if gradient is None:
            tables.append(torch.arange(len(weight)))
            continue
        sizes = gradient.double().norm(dim=1).cpu()
        noise = _CLEAR * blur.deviation * gradient.shape[1] ** 0.5
        usual = float(sizes.topk(min(8, len(sizes))).values.mean())
        order = sizes.argsort(descending=True)[:_MOST_TOKENS]
        tables.append(order[sizes[order] > max(noise, _NAMED * usual)])
    inputs, labels = tables
    return inputs, labels[:_MOST_TOKENS]


def _trusted(found: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    longest = max(map(len, found), default=0)
    return [one for one in found if len(one) >= _LONG * longest]


def _combined(found: list[tuple[int, ...]], longest: int) -> list[tuple[int, ...]]:
    """One sequence that goes on with another: parts of one are found apart where a token between
    them is faint."""
    short = [one for one in found if one not in _trusted(found)]
    both = [(*one, *other) for one in short for other in short if one is not other]
    return [one for one in both if len(one) <= longest]


def _ended(
    model: nn.Module,
    update: Update,
    prefixes: list[Prefix],
    known: set[tuple[int, ...]],
    labels: Tensor,
) -> list[tuple[int, ...]]:
    """Each prefix with the labels whose rows of the head's gradient point most against what the
    head reads of it alone, beside what it reads of the `known` ones."""
    weight = find_head(model)[1]
    gradient = update.gradients.get(name_of(model, weight.weight))
    if gradient is None or not prefixes:
        return []
    labels = labels.to(gradient.device)
    features = read_at_ends(model, weight, [prefix.tokens for prefix in prefixes]).double()
    if 0 < len(known) < features.shape[1]:
        basis = torch.linalg.qr(read_at_ends(model, weight, list(known)).double().T)[0]
        features = features - (features @ basis) @ basis.T
    against = -(features @ gradient[labels].double().T)
    best = labels[against.topk(min(_ENDINGS, len(labels)), dim=1).indices].tolist()
    return [
        (*prefix.tokens, label)
        for prefix, some in zip(prefixes, best, strict=True)
        for label in some
    ]
