"""A small language model with a tokenizer of whole words, in a folder as `save_pretrained` writes it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

LINES = ["We moved the patient to Friday .", "My code is four seven nine ."]
WORDS = ["<unk>", *dict.fromkeys(" ".join(LINES).split())]


def save_language_model(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate([*WORDS, *(f"w{i}" for i in range(150 - len(WORDS)))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    set_seed(0)
    size = {"vocab_size": 150, "n_positions": 24, "n_embd": 48, "n_layer": 2, "n_head": 3, "initializer_range": 0.1}
    still = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**size, **still)).save_pretrained(folder)
