"""Transformers of the usual shapes in plain PyTorch, for machines without Hugging Face's library:
GPT-2, Llama, BERT.

They are the published architectures layer by layer, under names of their own and with random
weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu


class Attention(nn.Module):
    """Queries, keys and values in one layer (GPT-2), or in three with fewer keys than queries and
    rotary positions (Llama)."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, rotary: bool = False, keys: int | None = None
    ) -> None:
        super().__init__()
        self.heads, self.keys, self.causal, self.rotary = heads, keys or heads, causal, rotary
        self.size = width // heads
        self.read = nn.Linear(width, (heads + 2 * self.keys) * self.size, bias=not rotary)
        self.write = nn.Linear(width, width, bias=not rotary)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        sizes = [self.heads * self.size, self.keys * self.size, self.keys * self.size]
        q, k, v = (
            part.view(n, length, -1, self.size).transpose(1, 2)
            for part in self.read(x).split(sizes, 2)
        )
        if self.rotary:
            q, k = turned(q), turned(k)
        k, v = (part.repeat_interleave(self.heads // self.keys, 1) for part in (k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.write(mixed.transpose(1, 2).reshape(n, length, width))


def turned(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    speeds = 10000 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * speeds
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(
        self,
        attention: Attention,
        mlp: nn.Module,
        norms: tuple[nn.Module, nn.Module],
        *,
        first: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention, self.mlp, self.first, self.drop = attention, mlp, first, nn.Dropout(dropout)
        self.norm1, self.norm2 = norms

    def forward(self, x: Tensor) -> Tensor:
        if self.first:  # normalized before each part, as all but BERT's kind are
            x = x + self.drop(self.attention(self.norm1(x)))
            return x + self.drop(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class GPT2(nn.Module):
    """Learned positions, head and embedding shared, or not where it is not `tied`."""

    def __init__(
        self,
        vocabulary: int = 50257,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        positions: int = 1024,
        *,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(positions, width),
        )
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(
            Block(
                Attention(width, heads, causal=True), _mlp(width),
                (nn.LayerNorm(width), nn.LayerNorm(width)), first=True, dropout=dropout,
            )
            for _ in range(layers)
        ))  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_small)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        return self.head(self.norm(self.blocks(self.drop(x))))


class Llama(nn.Module):
    """Rotary positions, RMSNorm, gated MLPs, grouped queries, no biases, a head of its own."""

    def __init__(
        self,
        vocabulary: int = 32000,
        width: int = 2048,
        layers: int = 22,
        heads: int = 32,
        keys: int = 4,
        inner: int = 5632,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(
            Block(
                Attention(width, heads, causal=True, rotary=True, keys=keys), Gated(width, inner),
                (nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)), first=True,
            )
            for _ in range(layers)
        ))  # fmt: skip
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_small)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens))))


class BERT(nn.Module):
    """Reads both sides, normalizes after each part, and classifies by its first position, or
    predicts masked tokens."""

    def __init__(
        self,
        vocabulary: int = 30522,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        positions: int = 512,
        classes: int = 2,
        *,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self.text_task = "masked" if masked else "class"
        self.tokens, self.positions = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(positions, width),
        )
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(
            Block(Attention(width, heads, causal=False), _mlp(width),
            (nn.LayerNorm(width), nn.LayerNorm(width)), first=False)
            for _ in range(layers)
        ))  # fmt: skip
        self.pool = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary if masked else classes)
        self.apply(_small)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        x = self.blocks(self.norm(x))
        return self.head(torch.tanh(self.pool(x if self.text_task == "masked" else x[:, 0])))


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _small(module: nn.Module) -> None:
    """As all of them are initialized: N(0, 0.02²), biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
