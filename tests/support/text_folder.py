"""A small language model with a tokenizer of whole words, in a folder as `save_pretrained` writes
it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    set_seed,
)

LINES = ["We moved the patient to Friday .", "My code is four seven nine ."]
WORDS = ["<unk>", *dict.fromkeys(" ".join(LINES).split())]


def save_language_model(folder: Path) -> None:
    vocabulary = {
        word: number
        for number, word in enumerate([*WORDS, *(f"w{i}" for i in range(150 - len(WORDS)))])
    }
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    set_seed(0)
    size = {
        "vocab_size": 150,
        "n_positions": 24,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 3,
        "initializer_range": 0.1,
    }
    still = {
        "resid_pdrop": 0,
        "embd_pdrop": 0,
        "attn_pdrop": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    GPT2LMHeadModel(GPT2Config(**size, **still)).save_pretrained(folder)


def save_encoder(folder: Path, *, masked: bool) -> None:
    """An encoder of the same words, with a tokenizer that opens and closes each text as BERT's
    does."""
    special = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
    }
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[1:]]
    vocabulary = {
        word: number
        for number, word in enumerate([*names, *(f"w{i}" for i in range(150 - len(names)))])
    }
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    frame = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=frame
    )
    given = ["input_ids", "token_type_ids", "attention_mask"]  # as BERT's tokenizers give them
    PreTrainedTokenizerFast(
        tokenizer_object=words, model_input_names=given, **special
    ).save_pretrained(folder)
    set_seed(0)
    size = {
        "vocab_size": 150,
        "max_position_embeddings": 24,
        "hidden_size": 48,
        "intermediate_size": 96,
    }
    still = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.1}
    config = BertConfig(
        **size, **still, num_hidden_layers=2, num_attention_heads=3, num_labels=2, pad_token_id=0
    )
    (BertForMaskedLM if masked else BertForSequenceClassification)(config).save_pretrained(folder)
