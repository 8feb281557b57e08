"""What every sequence, position and token of a batch sends, read off one backward pass.

A sequence's share of a linear layer's gradient is Σᵢ δᵢ xᵢᵀ over its positions, so its norm is that
of two small Gram matrices: ‖Σ δᵢ xᵢᵀ‖² = Σᵢⱼ (δᵢ·δⱼ)(xᵢ·xⱼ). No gradient of a single sequence is
formed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor, nn

from unsum.head import find_head
from unsum.models.language import targets, task_of
from unsum.separate.text.network import by_sequence, device_of, linear_modules
from unsum.separate.text.recovered import Text, at_label_places


class Watch:
    """`parts` (n, tensors) is what each of n sequences adds to the tensors of linear layers; it
    need not be seen in others.

    `traces` (n, L) is what arrives at the embedding.
    """

    def __init__(
        self, model: nn.Module, names: list[str], text: Text, embedding: nn.Embedding
    ) -> None:
        self._model, self._names, self._text, self._embedding = model, names, text, embedding
        self._head = find_head(model)[1]
        self._rows, self._share = [0], 1.0
        self._calls: Counter[nn.Module] = Counter()
        n, device = len(text.tokens), device_of(model)
        self.parts = torch.zeros(n, len(names), dtype=torch.float64, device=device)
        self.traces = torch.zeros(n, max(map(len, text.tokens)), dtype=torch.float64, device=device)
        self._at_head: dict[int, tuple[Tensor, Tensor]] = {}
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        for module, name in linear_modules(self._model).items():
            hook = module.register_forward_hook(self._linear(module, name))
            self._hooks.enter_context(hook)
        self._hooks.enter_context(self._embedding.register_forward_hook(self._token))
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def begin(self, rows: list[int], share: float) -> None:
        """The next pass is of these sequences, and counts for `share` of the whole."""
        self._rows, self._share = rows, share
        self._calls.clear()

    def positions(self) -> tuple[Tensor, Tensor]:
        """(M, H) what the head read at the positions with labels, and (M,) what each sent to it."""
        features, sent = zip(
            *(self._at_head[row] for row in range(len(self._at_head))), strict=True
        )
        return torch.cat(features), torch.cat(sent)

    def _token(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        def arrived(delta: Tensor) -> None:
            self.traces[self._rows, : delta.shape[1]] += self._share * delta.norm(dim=-1)

        output.register_hook(arrived)

    def _linear(self, module: nn.Module, name: str) -> Any:
        columns = [self._names.index(f"{name}.{kind}") if f"{name}.{kind}" in self._names else None
                   for kind in ("weight", "bias")]  # fmt: skip

        def called(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._calls[module] += 1
            X = by_sequence(inputs[0].detach(), len(self._rows))
            if output.requires_grad:
                output.register_hook(
                    lambda delta: self._arrived(module, columns, X, delta.reshape(*X.shape[:2], -1))
                )

        return called

    def _arrived(
        self, module: nn.Module, columns: list[int | None], X: Tensor, delta: Tensor
    ) -> None:
        weight, bias = columns
        again = self._calls[module] > 1  # a layer that is used twice: the two may cancel
        if weight is not None:
            square = ((delta @ delta.mT) * (X @ X.mT)).sum((1, 2))
            self.parts[self._rows, weight] = (
                0.0 if again else self._share * square.clamp_min(0).sqrt()
            )
        if bias is not None:
            self.parts[self._rows, bias] = 0.0 if again else self._share * delta.sum(1).norm(dim=1)
        if module is self._head:
            self._head_read(X, delta)

    def _head_read(self, X: Tensor, delta: Tensor) -> None:
        task = task_of(self._model)
        sizes = self._share * at_label_places(task, delta.norm(dim=2) * X.norm(dim=2))
        features = at_label_places(task, X)
        for row, read, size in zip(self._rows, features, sizes, strict=True):
            kept = targets(task, torch.tensor([self._text.labels[row]], device=X.device))[0] >= 0
            self._at_head[row] = read[kept], size[kept]
