"""How deep into the network the attack read: its layers from the input to the head, and which of their inputs came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from unsum.leak import Leak

_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class LayerDepth:
    """A layer with weights, and whether what it read is known: it came back, or a layer below came back and the model tells."""

    name: str
    read: bool = False


@dataclass(frozen=True)
class DepthRead:
    """All of them in the order of the model; empty where the attack read nothing below the head."""

    layers: Sequence[LayerDepth] = ()
    numbers: int = 0  # of each sample, that the deepest one read

    @classmethod
    def of(cls, model: nn.Module, leak: Leak) -> DepthRead:
        counts = {name: maps[0].numel() for name, maps in leak.inner.items() if len(maps)}
        names = [name for name, module in model.named_modules() if isinstance(module, _KINDS)]
        if leak.inputs is not None and len(leak.inputs) and names:
            counts.setdefault(names[0], leak.inputs[0].numel())
        deepest = next((i for i, name in enumerate(names) if name in counts), None)
        if deepest is None:
            return cls()
        layers = [LayerDepth(name, i >= deepest) for i, name in enumerate(names)]
        return cls(layers, counts[names[deepest]])

    @property
    def deepest(self) -> LayerDepth:
        return next(layer for layer in self.layers if layer.read)

    @property
    def sentence(self) -> str:
        where = "the model's own input" if self.layers[0].read else f"what the layer {self.deepest.name!r} read"
        return (
            f"The attack read down to {where}: {self.numbers:,} numbers of each sample. Its notes say how sure it is."
        )

    def to_dict(self) -> list[dict[str, object]]:
        return [{"layer": layer.name, "read": layer.read} for layer in self.layers]
