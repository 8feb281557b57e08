"""Small models of the families that clients fine-tune, as Hugging Face has them: rotary decoders,
encoders, classifiers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    OPTConfig,
    OPTForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

VOCABULARY, WIDTH = 120, 48
_SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 24,
}  # fmt: skip
_INNER = _SIZE | {"intermediate_size": 96, "initializer_range": 0.1}
_STILL = _INNER | {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
_GROUPED = _INNER | {
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def made(
    kind: str, *, tied: bool = False, classes: int = 3, seed: int = 0, layers: int = 2
) -> nn.Module:
    torch.manual_seed(seed)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**_GROUPED, tie_word_embeddings=tied))
    if kind == "neox":
        return GPTNeoXForCausalLM(GPTNeoXConfig(**_INNER))
    if kind == "opt":  # its MLP reads all positions of all sequences in one row
        opt = _SIZE | {"ffn_dim": 96, "word_embed_proj_dim": WIDTH, "dropout": 0.0, "init_std": 0.1}
        return OPTForCausalLM(OPTConfig(**opt))
    if kind == "llama classifier":
        return LlamaForSequenceClassification(
            LlamaConfig(**_GROUPED | {"num_hidden_layers": layers}, num_labels=classes)
        )
    if kind == "gpt2 classifier":
        still = {
            "resid_pdrop": 0,
            "embd_pdrop": 0,
            "attn_pdrop": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
        }
        size = {
            "vocab_size": VOCABULARY,
            "n_positions": 24,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": 4,
        }
        return GPT2ForSequenceClassification(
            GPT2Config(**size, **still, initializer_range=0.1, num_labels=classes)
        )
    if kind == "bert classifier":
        return BertForSequenceClassification(BertConfig(**_STILL, num_labels=classes))
    if kind == "roberta classifier":
        return RobertaForSequenceClassification(
            RobertaConfig(**_STILL, num_labels=classes, pad_token_id=1)
        )
    assert kind == "bert"
    return BertForMaskedLM(BertConfig(**_STILL, tie_word_embeddings=tied))


def trained(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, steps: int) -> nn.Module:
    """After some steps on a batch of its own."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(tokens, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank beside it, as peft builds it: B begins with
    zeros."""

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.layer = layer
        outputs, inputs = layer.weight.shape
        if not isinstance(layer, nn.Linear):  # GPT-2's own kind of layer
            inputs, outputs = outputs, inputs
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.lora_B(self.lora_A(x))


def adapted(model: nn.Module, rank: int) -> nn.Module:
    """GPT-2's or Llama's classifier: only adapters of its attention (as peft chooses them), and its
    head, are trained."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if name.endswith(("c_attn", "q_proj", "v_proj")):
            model.set_submodule(name, Adapted(module, rank))
    model.score.requires_grad_()
    return model


class PeftLayer(nn.Module):
    """A layer as `peft` lays it out: the frozen one is `base_layer`, adapters have names, and B A
    counts alpha / r times."""

    def __init__(self, layer: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        outputs, inputs = (
            layer.weight.shape if isinstance(layer, nn.Linear) else layer.weight.T.shape
        )
        self.base_layer, self.scaling = layer, {"default": alpha / rank}
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.lora_A["default"](self.lora_dropout["default"](x))
        return self.base_layer(x) + self.lora_B["default"](inner) * self.scaling["default"]


class PeftHead(nn.Module):
    """A layer that is trained whole: `peft` keeps the old one beside a copy of it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.original_module = layer
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(layer).requires_grad_()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.modules_to_save["default"](x)


class PeftModel(nn.Module):
    """A classifier as `peft.get_peft_model` wraps it, with the names that its update has."""

    def __init__(self, model: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        model.requires_grad_(False)
        for name, module in list(model.named_modules()):
            if name.endswith(("c_attn", "q_proj", "v_proj")):
                model.set_submodule(name, PeftLayer(module, rank, alpha))
        if hasattr(model, "score"):  # of a causal model peft trains no head
            model.score = PeftHead(model.score)
        self.base_model = nn.Module()
        self.base_model.model = model

    def get_base_model(self) -> nn.Module:
        return self.base_model.model

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.model.get_input_embeddings()

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.base_model.model(*given, **named)
