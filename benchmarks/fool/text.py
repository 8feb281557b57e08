"""False claims of the text path: batches of memorized and fresh sequences, changed on the way, and whether what is claimed is so.

A claim is false when a sequence or a label in it was not in the batch, when features are off by more than 1 %, or when a position
is missing that sends more than 1e-5 of the gradient.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections import Counter
from functools import lru_cache, reduce
from typing import Any

import torch
from common import Genome, TooLongError, Try, deadline
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import unsum
from unsum.errors import UnsumError
from unsum.models.language import gradients_of, logits_of, next_tokens

FALSE_CLAIM, TRACE = 1e-2, 1e-5
VOCABULARY, LONGEST, CANARIES = 40, 8, 3
STAGES = (0, 30, 100, 200, 300, 450, 600)  # steps of memorizing
GENES = {"noise": (-10.0, -3.0), "scale": (-3.0, 3.0)}  # logarithms of base ten
CHOICES: dict[str, tuple[Any, ...]] = {
    "model": tuple(range(3)),
    "tied": (False, True),
    "bias": (False, True),
    "width": (32, 64),
    "layers": (1, 2),
    "rate": (1e-3, 3e-3, 1e-2),
    "steps": STAGES,
    "memorized": (0, 1, 2, 3),
    "fresh": (0, 1, 2, 3),
    "length": (3, 4, 6, 8),
    "siblings": ("none", "none", "equal", "same beginning", "same end", "one token", "all twice"),
    "prompt": (0, 0, 0, 1, 2),  # labels that are ignored
    "dtype": ("float32", "float32", "float32", "float16", "bfloat16"),
    "noisy": (False, False, False, True),
    "scaled": ("no", "no", "half", "twice", "anyhow"),
    "reduction": ("mean", "mean", "mean", "sum"),
    "told": ("nothing", "nothing", "batch size"),
}
NETWORK = {"model", "tied", "bias", "width", "layers", "rate"}


def random_genome(chance: random.Random) -> Genome:
    return {name: chance.uniform(*ends) for name, ends in GENES.items()} | {
        name: chance.choice(values) for name, values in CHOICES.items()
    } | {"seed": chance.randrange(1 << 30)}  # fmt: skip


def child(first: Genome, second: Genome, chance: random.Random, step: float) -> Genome:
    """Genes of both parents and fresh ones; the network changes as a whole and rarely, for every other one must be trained."""
    genome, fresh = dict(first), random_genome(chance)
    other = fresh if chance.random() < 0.7 else second
    for name in genome.keys() - NETWORK:
        if chance.random() < max(0.15, step):
            genome[name] = other[name]
    return genome | ({name: fresh[name] for name in NETWORK} if chance.random() < 0.05 else {})


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    """The attack on the batch that a genome describes; `seconds` of computing at most."""
    model, tokens, labels = build(genome)
    update = _sent(genome, model, tokens, labels)
    if not all(bool(torch.isfinite(g).all()) for g in update.gradients.values()):
        return Try(genome, "refused")
    known = {"batch_size": int((next_tokens(labels) >= 0).sum())} if genome["told"] == "batch size" else {}
    start = time.process_time()
    try:
        with deadline(seconds):
            leak = unsum.separate(model, update, "text", **known)
    except TooLongError:
        return Try(genome, "stopped", seconds=time.process_time() - start)
    except UnsumError:
        return Try(genome, "refused", seconds=time.process_time() - start)
    return _judged(genome, model, tokens, labels, leak, time.process_time() - start)


def build(g: Genome) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, and the client's tokens and labels (n, L)."""
    key = g["model"], g["tied"], g["bias"], g["width"], g["layers"], g["rate"]
    generator = torch.Generator().manual_seed(g["seed"])
    fresh = torch.randint(VOCABULARY, (g["fresh"], LONGEST), generator=generator)
    tokens = torch.cat([_canaries(g["model"])[: g["memorized"]], fresh])
    if len(tokens) == 0:
        tokens = torch.randint(VOCABULARY, (1, LONGEST), generator=generator)
    tokens = _with_siblings(g, tokens[:, : g["length"]], generator)
    labels = tokens.clone()
    labels[:, : 1 + min(g["prompt"], g["length"] - 2)] = -100
    return _trained(key, STAGES.index(g["steps"])), tokens, labels


def _canaries(seed: int) -> Tensor:
    return torch.randint(VOCABULARY, (CANARIES, LONGEST), generator=torch.Generator().manual_seed(1000 + seed))


def _with_siblings(g: Genome, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """One more sequence that resembles the first, or all of them again."""
    kind, sibling = g["siblings"], tokens[:1].clone()
    if kind == "none":
        return tokens
    if kind == "all twice":
        return torch.cat([tokens, tokens])
    other = torch.randint(VOCABULARY, sibling.shape, generator=generator)
    half = sibling.shape[1] // 2
    if kind == "same beginning":
        sibling[:, half:] = other[:, half:]
    if kind == "same end":
        sibling[:, :half] = other[:, :half]
    if kind == "one token":
        place = int(torch.randint(sibling.shape[1], (), generator=generator))
        sibling[:, place] = other[:, place]
    return torch.cat([tokens, sibling])


@lru_cache(maxsize=256)
def _trained(key: tuple[Any, ...], stage: int) -> nn.Module:
    """The model after so many stages of memorizing its canaries."""
    seed, tied, bias, width, layers, rate = key
    if stage == 0:
        return _fresh_model(seed, tied, bias, width, layers)
    model = copy.deepcopy(_trained(key, stage - 1))
    optimizer = torch.optim.Adam(model.parameters(), rate, fused=True)
    canaries = _canaries(seed)
    for _ in range(STAGES[stage] - STAGES[stage - 1]):
        optimizer.zero_grad()
        flat = logits_of(model(canaries))[:, :-1].flatten(0, 1)
        nn.functional.cross_entropy(flat, canaries[:, 1:].flatten()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def _fresh_model(seed: int, tied: bool, bias: bool, width: int, layers: int) -> nn.Module:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LONGEST, n_embd=width, n_layer=layers, n_head=2, tie_word_embeddings=tied,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    if bias:
        model.lm_head.bias = nn.Parameter(0.1 * torch.randn(VOCABULARY))
    return model


def _sent(g: Genome, model: nn.Module, tokens: Tensor, labels: Tensor) -> unsum.Update:
    """Summed, scaled, noisy and rounded, in this order."""
    update = unsum.capture_text(model, tokens, labels)
    factor = {"no": 1.0, "half": 0.5, "twice": 2.0, "anyhow": 10 ** g["scale"]}[g["scaled"]]
    if g["reduction"] == "sum":
        factor *= int((next_tokens(labels) >= 0).sum())
    size = max(float(t.abs().max()) for t in update.gradients.values())
    generator = torch.Generator().manual_seed(g["seed"])
    gradients = {}
    for name, tensor in update.gradients.items():
        if g["noisy"]:
            tensor = tensor + 10 ** g["noise"] * size * torch.randn(tensor.shape, generator=generator)
        gradients[name] = (factor * tensor).to(getattr(torch, g["dtype"]))
    return unsum.Update(gradients, reduction=g["reduction"])


def _judged(g: Genome, model: nn.Module, tokens: Tensor, labels: Tensor, leak: unsum.Leak, seconds: float) -> Try:
    copies = reduce(math.gcd, Counter(map(tuple, tokens.tolist())).values())
    rows = [row for row, times in Counter(map(tuple, tokens.tolist())).items() for _ in range(times // copies)]
    tokens, labels = torch.tensor(rows), labels[:1].where(labels[:1] < 0, torch.tensor(rows))
    ended = "claimed" if leak.exact else "not claimed"
    predicted = math.inf if math.isnan(leak.predicted_error) else leak.predicted_error
    if not leak.exact:
        return Try(g, ended, predicted=predicted, seconds=seconds)
    error, label_error = _errors(model, tokens, labels, leak)
    bad = "features" if not error <= FALSE_CLAIM else "labels" if label_error else ""
    if not bad and not _beginnings(leak.tokens or [], rows):
        bad = "tokens"
    return Try(g, ended, error, label_error, predicted, bad, seconds)


def _beginnings(claimed: list[list[int]], rows: list[tuple[int, ...]]) -> bool:
    """Whether every claimed sequence is one of the true ones, or its beginning, each for itself."""
    wrong = torch.tensor([[tuple(found) != row[: len(found)] for row in rows] for found in claimed]).double()
    found, true = linear_sum_assignment(wrong)
    return len(found) == len(claimed) and float(wrong[found, true].sum()) == 0


def _errors(model: nn.Module, tokens: Tensor, labels: Tensor, leak: unsum.Leak) -> tuple[float, float]:
    """Of features and of labels; infinite where a position was made up, or is missing though it sends something."""
    kept = next_tokens(labels) >= 0
    with torch.no_grad():
        hidden = model.transformer(tokens)[0][:, :-1][kept].double()  # type: ignore[operator, union-attr]
    true, found = next_tokens(labels)[kept], leak.labels
    apart = torch.cdist(leak.features.double(), hidden) / hidden.norm(dim=1)
    wrong = found[:, None] != true
    ours, theirs = linear_sum_assignment(apart + 10 * wrong)
    missing = sorted(set(range(len(true))) - set(theirs.tolist()))
    if len(ours) < len(found) or any(_share(model, tokens, labels, kept.nonzero()[i]) > TRACE for i in missing):
        return math.inf, math.inf
    return float(apart[ours, theirs].max()), float(wrong[ours, theirs].any())


def _share(model: nn.Module, tokens: Tensor, labels: Tensor, position: Tensor) -> float:
    """What one position sends, of the whole gradient."""
    row, place = position.tolist()
    alone = torch.full_like(labels, -100)
    alone[row, place + 1] = labels[row, place + 1]
    names = [name for name, _ in model.named_parameters()]
    sizes = [
        torch.stack([g.double().norm() for g in gradients_of(model, tokens, some, names).values()]).norm()
        for some in (alone, labels)
    ]
    return float(sizes[0] / sizes[1].clamp_min(1e-300)) / int((next_tokens(labels) >= 0).sum())
