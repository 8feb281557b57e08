"""Which sequences make up the batch: those whose replayed gradient explains most of what was sent.

Every candidate's gradient is computed, and a sketch of it kept: some entries of every tensor, where
each tensor counts by its size, or by its noise where that is larger. Non-negative least squares
tell what one sequence weighs; then sequences are added, dropped and exchanged one at a time as long
as the residual shrinks, and at last their tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from unsum.models.language import gradients_of, logits_of, vocabulary_of
from unsum.running.deadline import out_of_time
from unsum.separate.text.network import device_of
from unsum.update import Update

_ENTRIES = 4096  # [entries] of a tensor in a sketch. Chosen by: 300 sequences in 50 MB.
_ROWS = 8  # times so many of a matrix with a row for each token: most of it is of other tokens
# [of a tensor's size] below which its noise does not count: rounding is no measure of importance.
# Chosen by: arbitrary margin.
_FLOOR = 0.02
# [of a sequence's own square] by which the residual's must shrink for it to be added. Chosen by:
# one that is there takes off about all of it, a stranger next to nothing.
_GAIN = 0.1
_SWEEPS = 400  # [sweeps] of the least squares. Chosen by: weights settle to 1 % in about 100.
_STEPS = 200  # [changes] of the chosen set at most. Chosen by: a batch takes two for a sequence.
# [trials] whose gradients are computed for one place. Chosen by: the right one was among the first
# three.
_REPLAYED = 4
_REPLAYED_LAST = 12  # likewise at the end, where frequent labels send little
# [of its present token's slope] a trial's from which it is replayed. Chosen by: arbitrary margin.
_AS_STEEP = 0.97
# [of the weights' size] by which weights move for a slope. Chosen by: a thousand times float32's
# rounding of a loss.
_MOVE = 1e-3
_ROUNDS = 3  # [rounds] of token exchanges. Chosen by: two were needed.
# [of what was sent] residual by which an exchange must improve. Chosen by: fluctuations of noise.
_BETTER = 1e-4


class SentSketch:
    """Some entries of a gradient, each tensor in units of its size, and sequences' own beside
    it."""

    def __init__(self, model: nn.Module, update: Update, tokens: Tensor, deviation: float) -> None:
        generator = torch.Generator().manual_seed(0)
        V = vocabulary_of(model)
        vocabulary = {name for name, g in update.gradients.items() if g.ndim == 2 and len(g) == V}
        self._model, self._update, self._names = model, update, list(update.gradients)
        self._at: dict[str, Tensor] = {}
        self._unit: dict[str, float] = {}
        parts = []
        for name, sent in update.gradients.items():
            if name in vocabulary:
                width, most = sent.shape[1], _ENTRIES * _ROWS
                where = (tokens.cpu()[:, None] * width + torch.arange(width)).flatten()
            else:
                where, most = torch.arange(sent.numel()), _ENTRIES
            if len(where) > most:
                where = where[torch.randperm(len(where), generator=generator)[:most]]
            where = where.to(sent.device)
            values = sent.flatten()[where].double()
            size = max(float(values.square().mean().sqrt()), deviation / _FLOOR, 1e-300)
            self._at[name], self._unit[name] = where, size
            parts.append(values / size)
        self.sent = torch.cat(parts).float()

    def of(self, sequence: Sequence[int]) -> Tensor:
        """What a sequence sends: the sum over its positions."""
        tokens = torch.tensor([list(sequence)], device=device_of(self._model))
        found = gradients_of(self._model, tokens, tokens, self._names)
        times = len(sequence) - 1
        return torch.cat([
            found[name].flatten()[at].to(self.sent) * (times / self._unit[name])
            if name in found else torch.zeros(len(at)).to(self.sent)
            for name, at in self._at.items()
        ])  # fmt: skip

    def of_all(self, sequences: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], Tensor]:
        """Sequences and what they send (n, entries), as many as there is time for."""
        rows: list[Tensor] = []
        for sequence in sequences:
            if out_of_time("the gradients of further sequences"):
                break
            rows.append(self.of(sequence))
        return list(sequences[: len(rows)]), torch.stack(rows) if rows else self.sent[None, :0]

    def slopes(
        self, sequences: Sequence[tuple[int, ...]], alpha: float
    ) -> Callable[[Sequence[tuple[int, ...]]], Tensor]:
        """How steeply the loss of any trials of one length rises along the residual of
        `sequences`."""
        device = device_of(self._model)
        left = {name: sent.to(device).float() for name, sent in self._update.gradients.items()}
        for sequence in sequences:
            tokens = torch.tensor([list(sequence)], device=device)
            for name, g in gradients_of(self._model, tokens, tokens, self._names).items():
                left[name] = left[name] - alpha * (len(sequence) - 1) * g.view_as(left[name])
        weights = dict(self._model.named_parameters())
        along = {name: left[name] / self._unit[name] ** 2 for name in self._names}
        size = torch.stack([weights[name].detach().norm() for name in self._names]).norm()
        step = _MOVE * float(size / torch.stack([x.norm() for x in along.values()]).norm())
        moved = [self._moved(along, step), self._moved(along, -step)]

        def slope(trials: Sequence[tuple[int, ...]]) -> Tensor:
            if not trials:
                return torch.zeros(0)
            tokens = torch.tensor([list(trial) for trial in trials], device=device)
            ends = []
            with torch.no_grad():
                for model in moved:
                    logits = logits_of(model(tokens))
                    told = logits[:, :-1].gather(2, tokens[:, 1:, None])[:, :, 0]
                    ends.append((logits[:, :-1].logsumexp(2) - told).double().sum(1))
            # less of the loss along the residual is more of the residual in the gradient
            return (ends[0] - ends[1]) / (2 * step)

        return slope

    def _moved(self, along: dict[str, Tensor], step: float) -> nn.Module:
        """A copy with other weights: a search that is interrupted must not leave them in the
        model."""
        moved = copy.deepcopy(self._model)
        with torch.no_grad():
            for name, direction in along.items():
                weight = moved.get_parameter(name)
                weight.add_(direction.view_as(weight), alpha=step)
        return moved


class Chosen:
    """How often each of n sequences stands in the batch, and what one position weighs."""

    def __init__(
        self, sequences: Sequence[tuple[int, ...]], rows: Tensor, sent: Tensor, most: int
    ) -> None:
        wide = rows.double()
        self._gram, self._along = wide @ wide.T, wide @ sent.double()
        self._whole = float(sent.double().square().sum())
        self._lengths = torch.tensor([len(sequence) - 1 for sequence in sequences])
        self._most = most
        stems = {one[:-1]: number for number, one in enumerate(sequences)}
        self._stems = torch.tensor([stems[one[:-1]] for one in sequences])
        self.times = torch.zeros(len(rows), dtype=torch.long)
        self.alpha = self._unit()
        for _ in range(3):  # the weight tells the set, and the set the weight
            self._improve()
            if int(self.times.sum()) == 0:
                break
            n = self.times.to(wide)
            fitted = float(n @ self._along) / max(float(n @ self._gram @ n), 1e-300)
            if abs(fitted / self.alpha - 1) < 1e-3:
                break
            self.alpha = fitted
        common = math.gcd(*self.times.tolist())
        if common > 1:  # the same batch several times: copies of all are not told from none
            self.times, self.alpha = self.times // common, self.alpha * common

    @property
    def left(self) -> float:
        """The share of what was sent that is left."""
        n = self.alpha * self.times.to(self._gram)
        left = self._whole - 2 * float(n @ self._along) + float(n @ self._gram @ n)
        return (max(left, 0.0) / max(self._whole, 1e-300)) ** 0.5

    def _unit(self) -> float:
        """Non-negative least squares by coordinates; what the heavier half of them weighs."""
        weights = torch.zeros_like(self._along)
        slope = -self._along.clone()
        size = self._gram.diagonal().clamp_min(1e-300)
        for sweep in range(_SWEEPS):
            if out_of_time("how often sequences occur"):
                break
            active = range(len(weights)) if sweep < 3 else weights.nonzero()[:, 0].tolist()
            for i in active:
                new = max(0.0, float(weights[i] - slope[i] / size[i]))
                if new != float(weights[i]):
                    slope += self._gram[i] * (new - weights[i])
                    weights[i] = new
        # labels that resemble each other share what one sequence weighs
        weights = torch.zeros_like(weights).index_add_(0, self._stems.to(weights.device), weights)
        heavy = weights[weights > 0.5 * weights.max()]
        return float(heavy.median()) if len(heavy) else 1.0

    def _improve(self) -> None:
        """Add, drop or exchange one sequence at a time, as long as the residual shrinks."""
        a, own = self.alpha, self._gram.diagonal()
        for _ in range(_STEPS):
            if out_of_time("sequences that explain the gradient"):
                return
            n = self.times.to(self._gram)
            toward = self._along - a * (self._gram @ n)  # ⟨residual, each sequence⟩
            added = 2 * a * toward - a * a * own
            added -= _GAIN * a * a * own
            dropped = -2 * a * toward - a * a * own + _GAIN * a * a * own
            dropped[self.times == 0] = -torch.inf
            used = int(self._lengths @ self.times)
            there = self.times.nonzero()[:, 0]
            free = self._most - used
            one = added.where(self._lengths.to(added.device) <= free, -torch.inf)
            best, move = float(one.max()), (int(one.argmax()), -1)
            if float(dropped.max()) > best:
                best, move = float(dropped.max()), (-1, int(dropped.argmax()))
            if len(there):
                both = dropped[there, None] + added - 2 * a * a * -self._gram[there]
                fits = self._lengths - self._lengths[there][:, None] <= free
                both = both.where(fits.to(both.device), -torch.inf)
                both[torch.arange(len(there)), there] = -torch.inf
                if float(both.max()) > best:
                    best = float(both.max())
                    row, column = divmod(int(both.argmax()), both.shape[1])
                    move = column, int(there[row])
            if best <= 1e-9 * self._whole:
                return
            if move[0] >= 0:
                self.times[move[0]] += 1
            if move[1] >= 0:
                self.times[move[1]] -= 1


def choose(
    sketch: SentSketch, sequences: Sequence[tuple[int, ...]], most: int
) -> tuple[list[tuple[int, ...]], Chosen | None]:
    """Those of the sequences that explain what was sent, with `most` positions at most."""
    kept, rows = sketch.of_all(sequences)
    if not kept:
        return [], None
    chosen = Chosen(kept, rows, sketch.sent, most)
    return [s for s, n in zip(kept, chosen.times.tolist(), strict=True) for _ in range(n)], chosen


class Exchange:
    """Sequences whose tokens are exchanged, appended and taken off, and which are dropped, as long
    as their replayed gradient explains more of what was sent.

    How a trial's gradient lies along the residual is the slope of its loss when the weights move
    along the residual: two passes tell it for all trials at once, and only the steepest are
    replayed.
    """

    def __init__(
        self,
        sketch: SentSketch,
        sequences: list[tuple[int, ...]],
        others: tuple[Tensor, Tensor],
        most: int,
        longest: int,
        enough: float,
    ) -> None:
        self._sketch, self._most = sketch, most
        self._inputs, self._labels = (some.tolist() for some in others)
        self._longest = longest
        self._enough = enough  # [of what was sent] residual at which nothing is left to exchange
        self.sequences, rows = sketch.of_all(sequences)
        self._rows = list(rows)
        self.alpha = self._fitted()
        self._tolerated = _BETTER * float(sketch.sent.square().sum())

    @property
    def left(self) -> Tensor:
        """The residual, as a sketch."""
        sent = self._sketch.sent
        return sent - self.alpha * torch.stack(self._rows).sum(0) if self._rows else sent

    @property
    def share(self) -> float:
        """The share of what was sent that is left."""
        return float(self.left.norm() / self._sketch.sent.norm().clamp_min(1e-30))

    def run(self) -> None:
        for number in range(_ROUNDS):
            before = list(self.sequences)
            for row in reversed(range(len(self.sequences))):
                if self.share < self._enough or out_of_time("tokens in the place of others"):
                    return
                self._improve(row, 0 if number else 2)
            self.alpha = self._fitted()
            if number and self.sequences == before:
                return

    def _fitted(self) -> float:
        if not self._rows:
            return 1.0
        own = torch.stack(self._rows).sum(0).double()
        return float(own @ self._sketch.sent.double()) / max(float(own @ own), 1e-30)

    def _improve(self, row: int, ends: int) -> None:
        """Every place of one sequence, its end first, or its last `ends` alone; then one that
        explains nothing goes."""
        slopes = self._sketch.slopes(self.sequences[:row] + self.sequences[row + 1 :], self.alpha)
        without = self.left + self.alpha * self._rows[row]
        best = float(self.left.square().sum())
        place = len(self.sequences[row])
        while place >= (len(self.sequences[row]) - ends if ends else 0):
            if out_of_time("tokens in the place of others"):
                break
            sequence = self.sequences[row]
            others = self._inputs if place < len(sequence) - 1 else self._labels
            trials = [(*sequence[:place], token, *sequence[place + 1 :]) for token in others]
            if place == len(sequence) and not self._grows(sequence):
                trials = []
            steep = slopes(trials)
            if place < len(sequence) and sequence[place] in others:
                steep[steep < _AS_STEEP * steep[others.index(sequence[place])]] = -torch.inf
            replayed = _REPLAYED if place < len(sequence) - 1 else _REPLAYED_LAST
            order = steep.topk(min(replayed, len(trials))).indices.tolist()
            trials = [
                trials[i] for i in order if float(steep[i]) > -torch.inf and trials[i] != sequence
            ]
            if place == len(sequence) - 1 and place >= 2:
                trials.append(sequence[:-1])
            found = False
            for trial in trials:
                sends = self._sketch.of(trial)
                size = float((without - self.alpha * sends).square().sum())
                if size < best - self._tolerated:
                    self.sequences[row], self._rows[row], best, found = trial, sends, size, True
            # a longer sequence may go on; a shorter one may be shorter still
            if found and len(self.sequences[row]) != len(sequence):
                place = len(self.sequences[row])
            else:
                place -= 1
        if float(without.square().sum()) <= best + self._tolerated:
            del self.sequences[row], self._rows[row]

    def _grows(self, sequence: tuple[int, ...]) -> bool:
        """Whether one more position is allowed."""
        used = sum(len(one) - 1 for one in self.sequences)
        return used < self._most and len(sequence) < self._longest
