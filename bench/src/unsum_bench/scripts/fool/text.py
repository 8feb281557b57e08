"""False claims of the text path: batches of memorized and fresh sequences, changed on the way, and
whether what is claimed is so.

Small models of every family in plain PyTorch: next tokens (GPT-2's and Llama's kind), classes of
whole texts (both, and BERT's kind), masked tokens (BERT's), and classes where only adapters of low
rank and the head are trained (LoRA). A claim is false when a sequence or a label in it was not in
the batch, when features are off by more than 1 %, or when a position is missing that sends more
than 1e-5 of the gradient.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections import Counter
from functools import lru_cache, partial
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import unsum
from unsum.errors import UnsumError
from unsum.models.language import IGNORED, TextTask, gradients_of, targets, task_of, text_loss
from unsum_bench.scripts.adapters import Adapted, parts_of
from unsum_bench.scripts.fool.common import (
    WEIGHTS,
    Genome,
    TooLongError,
    Try,
    deadline,
    false_count,
    relative_weights,
)
from unsum_bench.scripts.plain_transformers import BERT, GPT2, Llama

FALSE_CLAIM, TRACE = 1e-2, 1e-5
VOCABULARY, LONGEST, CANARIES, CLASSES, MASK = 40, 8, 3, 3, 0
FAMILIES = (
    "gpt2", "gpt2", "llama", "gpt2 classifier", "llama classifier", "bert classifier",
    "bert masked", "gpt2 lora", "llama lora",
)  # fmt: skip
STAGES = (0, 30, 100, 200, 300, 450, 600)  # steps of memorizing
GENES = {"noise": (-10.0, -3.0), "scale": (-3.0, 3.0)}  # logarithms of base ten
CHOICES: dict[str, tuple[Any, ...]] = {
    "family": FAMILIES,
    "model": tuple(range(3)),
    "tied": (False, True),
    "bias": (False, True),
    "width": (32, 64),
    "layers": (1, 2, 3),
    "rank": (4, 8, 16, 24),  # of adapters
    "init": (0.02, 0.1),
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
    "weights are": WEIGHTS,  # of tokens
}
NETWORK = {"family", "model", "tied", "bias", "width", "layers", "rank", "init", "rate"}


def random_genome(chance: random.Random, *, tame: bool = False) -> Genome:
    """Any case, or a `tame` one: of a model that was not trained, which takes no time, and of a
    gradient as it is."""
    genome = {name: chance.uniform(*ends) for name, ends in GENES.items()} | {
        name: chance.choice(values) for name, values in CHOICES.items()
    } | {"seed": chance.randrange(1 << 30)}  # fmt: skip
    return genome | ({"steps": 0, "noisy": False, "dtype": "float32"} if tame else {})


def child(first: Genome, second: Genome, chance: random.Random, step: float) -> Genome:
    """Genes of both parents and fresh ones; the network changes as a whole and rarely, for every
    other one must be trained."""
    genome, fresh = dict(first), random_genome(chance)
    other = fresh if chance.random() < 0.7 else second
    for name in genome.keys() - NETWORK:
        if chance.random() < max(0.15, step):
            genome[name] = other[name]
    return genome | ({name: fresh[name] for name in NETWORK} if chance.random() < 0.05 else {})


def attempt(genome: Genome, seconds: float = math.inf) -> Try:
    """The attack on the batch that a genome describes; `seconds` of computing at most."""
    torch.set_grad_enabled(True)  # a try that was stopped may have left it off
    torch.set_default_dtype(torch.float32)
    model, tokens, labels = build(genome)
    update = _sent(genome, model, tokens, labels)
    if not all(bool(torch.isfinite(g).all()) for g in update.gradients.values()):
        return Try(genome, "refused")
    known = (
        {"batch_size": int((targets(task_of(model), labels) >= 0).sum())}
        if genome["told"] == "batch size"
        else {}
    )
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
    """The model, and the client's tokens (n, L) with labels (n, L), or (n,) classes."""
    key = tuple(
        g[name]
        for name in ("family", "model", "tied", "bias", "width", "layers", "rank", "init", "rate")
    )
    generator = torch.Generator().manual_seed(g["seed"])
    fresh = torch.randint(VOCABULARY, (g["fresh"], LONGEST), generator=generator)
    tokens = torch.cat([_canaries(g["model"])[: g["memorized"]], fresh])
    if len(tokens) == 0:
        tokens = torch.randint(VOCABULARY, (1, LONGEST), generator=generator)
    tokens = _with_siblings(g, tokens[:, : g["length"]], generator)
    model = _trained(key, STAGES.index(g["steps"]))
    if task_of(model) is TextTask.CLASS:
        classes = torch.randint(CLASSES, (len(tokens),), generator=generator)
        classes[: g["memorized"]] = torch.arange(len(classes[: g["memorized"]])) % CLASSES
        return model, tokens, classes
    if task_of(model) is TextTask.MASKED:
        return model, *_masked(
            tokens, torch.randint(g["length"], (len(tokens), 1 + g["prompt"]), generator=generator)
        )
    labels = tokens.clone()
    labels[:, : 1 + min(g["prompt"], g["length"] - 2)] = IGNORED
    return model, tokens, labels


def _masked(tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens with some of them out of sight, and those as labels."""
    hidden = torch.zeros_like(tokens, dtype=torch.bool).scatter(1, places, True)
    return tokens.where(~hidden, MASK), tokens.where(hidden, IGNORED)


def _canaries(seed: int) -> Tensor:
    return torch.randint(
        VOCABULARY, (CANARIES, LONGEST), generator=torch.Generator().manual_seed(1000 + seed)
    )


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
    seed, rate = key[1], key[-1]
    if stage == 0:
        return _fresh_model(*key[:-1])
    model = copy.deepcopy(_trained(key, stage - 1))
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], rate, fused=True
    )
    tokens, task = _canaries(seed), task_of(model)
    labels = torch.arange(CANARIES) % CLASSES if task is TextTask.CLASS else tokens
    if task is TextTask.MASKED:
        tokens, labels = _masked(tokens, torch.arange(CANARIES)[:, None])
    for _ in range(STAGES[stage] - STAGES[stage - 1]):
        optimizer.zero_grad()
        text_loss(task, model(tokens), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def _fresh_model(
    family: str, seed: int, tied: bool, bias: bool, width: int, layers: int, rank: int, init: float
) -> nn.Module:
    torch.manual_seed(seed)
    kind, _, use = family.partition(" ")
    if kind == "bert":
        model: nn.Module = BERT(
            VOCABULARY, width, layers, 2, LONGEST, CLASSES, masked=use == "masked"
        )
    elif kind == "gpt2":
        model = GPT2(VOCABULARY, width, layers, 2, LONGEST, tied=tied)
    else:
        model = Llama(VOCABULARY, width, layers, heads=4, keys=2, inner=2 * width)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.ndim == 2):
            parameter.mul_(init / 0.02)  # what they are made with
    if use == "lora":
        model.requires_grad_(False)
        for block in model.blocks:
            block.attention.read = Adapted(
                block.attention.read, rank, parts_of(kind, block.attention)
            )
    if use in ("classifier", "lora") and kind != "bert":
        model.head = nn.Linear(width, CLASSES)
        model = _OfTexts(model)
    elif bias and not (kind == "gpt2" and tied) and kind != "bert":
        model.head.bias = nn.Parameter(0.1 * torch.randn(VOCABULARY))
    return model.eval()


class _OfTexts(nn.Module):
    """A causal model that reads a class off its last position."""

    text_task = "class"

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)[:, -1]


def _sent(g: Genome, model: nn.Module, tokens: Tensor, labels: Tensor) -> unsum.Update:
    """Summed, scaled, noisy and rounded, in this order."""
    update = unsum.capture_text(model, tokens, labels)
    gradients = (
        update.gradients
        if g.get("weights are", "alike") == "alike"
        else _weighted(g, model, tokens, labels)
    )
    factor = {"no": 1.0, "half": 0.5, "twice": 2.0, "anyhow": 10 ** g["scale"]}[g["scaled"]]
    if g["reduction"] == "sum":
        factor *= int((targets(task_of(model), labels) >= 0).sum())
    size = max(float(t.abs().max()) for t in gradients.values())
    generator = torch.Generator().manual_seed(g["seed"])
    sent = {}
    for name, tensor in gradients.items():
        if g["noisy"]:
            tensor = tensor + 10 ** g["noise"] * size * torch.randn(
                tensor.shape, generator=generator
            )
        sent[name] = (factor * tensor).to(getattr(torch, g["dtype"]))
    return unsum.Update(sent, reduction=g["reduction"])


def _weighted(g: Genome, model: nn.Module, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of a mean in which tokens weigh differently."""
    wanted = targets(task_of(model), labels)
    logits = model(tokens)
    logits = (logits[:, : wanted.shape[1]] if logits.ndim == 3 else logits[:, None])[wanted >= 0]
    each = nn.functional.cross_entropy(logits, wanted[wanted >= 0], reduction="none")
    each = each * relative_weights(g["weights are"], wanted[wanted >= 0], g["seed"]).to(each)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(each.mean(), list(parameters.values()), allow_unused=True)
    return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}


def _judged(
    g: Genome, model: nn.Module, tokens: Tensor, labels: Tensor, leak: unsum.Leak, seconds: float
) -> Try:
    """How often a text occurs counts only where the answer says that this is certain."""
    pairs = Counter(
        zip(
            map(tuple, tokens.tolist()),
            map(tuple, labels.view(len(labels), -1).tolist()),
            strict=True,
        )
    )
    rows = [
        pair for pair, times in pairs.items() for _ in range(times if leak.counts_certain else 1)
    ]
    tokens = torch.tensor([row for row, _ in rows])
    labels = torch.tensor([row for _, row in rows]).view(len(rows), *labels.shape[1:])
    ended = "claimed" if leak.exact else "not claimed"
    predicted = math.inf if math.isnan(leak.predicted_error) else leak.predicted_error
    if not leak.exact:
        return Try(g, ended, predicted=predicted, seconds=seconds)
    error, label_error = _errors(model, tokens, labels, leak)
    bad = "features" if not error <= FALSE_CLAIM else "labels" if label_error else ""
    seen = tokens.where(labels < 0, labels) if task_of(model) is TextTask.MASKED else tokens
    whole = task_of(model) is not TextTask.NEXT
    claimed = leak.tokens or []
    if not leak.counts_certain:  # each for itself
        claimed = [list(one) for one in dict.fromkeys(map(tuple, claimed))]
    beginnings = partial(_beginnings, true=list(map(tuple, seen.tolist())), whole=whole)
    if not bad and not (
        beginnings(claimed) if leak.counts_certain else all(beginnings([one]) for one in claimed)
    ):
        bad = "tokens"
    bad = bad or false_count(
        leak, targets(task_of(model), labels)[targets(task_of(model), labels) >= 0]
    )
    return Try(g, ended, error, label_error, predicted, bad, seconds)


def _beginnings(claimed: list[list[int]], true: list[tuple[int, ...]], *, whole: bool) -> bool:
    """Whether every claimed sequence is one of the true ones, or its beginning if not `whole`, each
    for itself."""
    wrong = torch.tensor([
        [tuple(found) != (row if whole else row[: len(found)]) for row in true] for found in claimed
    ]).double()  # fmt: skip
    found, whose = linear_sum_assignment(wrong)
    return len(found) == len(claimed) and float(wrong[found, whose].sum()) == 0


def _errors(
    model: nn.Module, tokens: Tensor, labels: Tensor, leak: unsum.Leak
) -> tuple[float, float]:
    """Of features and of labels; infinite where a position was made up, or is missing though it
    sends something."""
    wanted = targets(task_of(model), labels)
    kept = wanted >= 0
    hidden = _head_inputs(model, tokens)
    hidden = hidden[:, -1:] if task_of(model) is TextTask.CLASS else hidden[:, : kept.shape[1]]
    hidden = hidden[kept].double()
    true, found = wanted[kept], leak.labels
    apart = torch.cdist(leak.features.double(), hidden) / hidden.norm(dim=1)
    wrong = found[:, None] != true
    if not leak.counts_certain:
        off = apart + 10 * wrong
        unfound = (off.amin(0) > FALSE_CLAIM).nonzero()[:, 0].tolist()
        if any(_share(model, tokens, labels, kept.nonzero()[i]) > TRACE for i in unfound):
            return math.inf, math.inf
        mine = off.argmin(1, keepdim=True)
        return float(apart.gather(1, mine).max()), float(wrong.gather(1, mine).any())
    ours, theirs = linear_sum_assignment(apart + 10 * wrong)
    missing = sorted(set(range(len(true))) - set(theirs.tolist()))
    if len(ours) < len(found) or any(
        _share(model, tokens, labels, kept.nonzero()[i]) > TRACE for i in missing
    ):
        return math.inf, math.inf
    return float(apart[ours, theirs].max()), float(wrong[ours, theirs].any())


def _head_inputs(model: nn.Module, tokens: Tensor) -> Tensor:
    """(n, positions, H) what the head reads."""
    read: list[Tensor] = []
    head = next(
        module for name, module in model.named_modules() if name.rpartition(".")[2] == "head"
    )
    with head.register_forward_pre_hook(lambda _, given: read.append(given[0])), torch.no_grad():
        model(tokens)
    return read[0] if read[0].ndim == 3 else read[0][:, None]


def _share(model: nn.Module, tokens: Tensor, labels: Tensor, position: Tensor) -> float:
    """What one position sends, of the whole gradient."""
    row, place = position.tolist()
    task = task_of(model)
    at = (row,) if task is TextTask.CLASS else (row, place + (task is TextTask.NEXT))
    alone = torch.full_like(labels, IGNORED)
    alone[at] = labels[at]
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    sizes = [
        torch.stack(
            [g.double().norm() for g in gradients_of(model, tokens, some, names).values()]
        ).norm()
        for some in (alone, labels)
    ]
    return float(sizes[0] / sizes[1].clamp_min(1e-300)) / int((targets(task, labels) >= 0).sum())
