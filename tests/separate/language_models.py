"""Small language models of GPT-2's architecture, and batches of tokens for them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY, FEATURES = 150, 48


def gpt2(*, tied: bool, dropout: float = 0.0, seed: int = 0) -> GPT2LMHeadModel:
    """Two layers; weights larger than GPT-2's own start, so that attention and softmax are far from
    uniform."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=24, n_embd=FEATURES, n_layer=2, n_head=3,
        tie_word_embeddings=tied, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=0, eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def batch(sequences: int, length: int, seed: int = 1) -> Tensor:
    """Tokens of a skewed vocabulary, as text has them: some come again and again."""
    generator = torch.Generator().manual_seed(seed)
    return (VOCABULARY * torch.rand(sequences, length, generator=generator) ** 2).long()
