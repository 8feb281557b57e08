"""Adapters of low rank (LoRA) as peft lays them.

What a layer reads goes through A (rank × width) and B (outputs × rank), and B begins with zeros.
"""

from __future__ import annotations

from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen layer with adapters beside it, one for each of some parts of what it writes."""

    def __init__(self, layer: nn.Linear, rank: int, parts: list[slice]) -> None:
        super().__init__()
        self.layer, self.parts = layer.requires_grad_(False), parts
        self.lora_A = nn.ModuleList(nn.Linear(layer.in_features, rank, bias=False) for _ in parts)
        self.lora_B = nn.ModuleList(
            nn.Linear(rank, part.stop - part.start, bias=False) for part in parts
        )
        for B in self.lora_B:
            nn.init.zeros_(B.weight)

    def forward(self, x: Tensor) -> Tensor:
        written = self.layer(x).clone()
        for A, B, part in zip(self.lora_A, self.lora_B, self.parts, strict=True):
            written[..., part] = written[..., part] + B(A(x))
        return written


def parts_of(kind: str, attention: nn.Module) -> list[slice]:
    """Which outputs have an adapter of their own, as peft chooses by default: GPT-2's c_attn,
    Llama's q_proj and v_proj."""
    whole = attention.read.out_features
    if kind == "gpt2":
        return [slice(0, whole)]
    return [
        slice(0, attention.heads * attention.size),
        slice(whole - attention.keys * attention.size, whole),
    ]
