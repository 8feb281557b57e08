"""What adapters of low rank (LoRA) give away of a text, over their rank, before any training and after some rounds.

uv run python benchmarks/lora.py                                   # all tables of docs/research/language-models.md
uv run python benchmarks/lora.py --models llama --ranks 8 --rounds 1 --tables read

Two classifiers: GPT-2's kind, whose queries, keys and values are one layer with one adapter, and Llama's kind (rotary positions,
RMSNorm, grouped queries) with adapters beside queries and values. Only the adapters and the head are trained and sent, as peft
does it: what a layer reads goes through A (rank × width) and B (outputs × rank), and B begins with zeros.
"""

from __future__ import annotations

import argparse
import platform
import time

import torch
from torch import Tensor, nn

import unsum
from plain_transformers import GPT2, Llama
from unsum.separate.text.network import joined, linear_layers, read_by

VOCABULARY, WIDTH, LAYERS, CLASSES = 500, 256, 3, 2
RANKS, ROUNDS = (4, 8, 32, 128, 256), (0, 1, 5)
SHAPES = ((1, 3), (1, 7), (1, 20), (3, 10), (6, 10), (12, 10))  # sequences, tokens of each
KINDS = {"gpt2": "GPT-2's kind, one adapter for q, k and v", "llama": "Llama's kind, adapters for q and v"}
TABLES = ("read", "layers")


class Adapted(nn.Module):
    """A frozen layer with adapters beside it, one for each of some parts of what it writes."""

    def __init__(self, layer: nn.Linear, rank: int, parts: list[slice]) -> None:
        super().__init__()
        self.layer, self.parts = layer.requires_grad_(False), parts
        self.lora_A = nn.ModuleList(nn.Linear(layer.in_features, rank, bias=False) for _ in parts)
        self.lora_B = nn.ModuleList(nn.Linear(rank, part.stop - part.start, bias=False) for part in parts)
        for B in self.lora_B:
            nn.init.zeros_(B.weight)

    def forward(self, x: Tensor) -> Tensor:
        written = self.layer(x).clone()
        for A, B, part in zip(self.lora_A, self.lora_B, self.parts, strict=True):
            written[..., part] = written[..., part] + B(A(x))
        return written


class Classifier(nn.Module):
    """A causal body; the class is read off the last position."""

    text_task = "class"

    def __init__(self, kind: str, rank: int) -> None:
        super().__init__()
        if kind == "gpt2":
            body: nn.Module = GPT2(VOCABULARY, WIDTH, LAYERS, 4, 64)
        else:
            body = Llama(VOCABULARY, WIDTH, LAYERS, heads=8, keys=4, inner=512)
        self.tokens, self.blocks, self.norm = body.tokens, body.blocks, body.norm
        self.positions = getattr(body, "positions", None)
        self.requires_grad_(False)
        for block in self.blocks:
            block.attention.read = Adapted(block.attention.read, rank, parts_of(kind, block.attention))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x))[:, -1])


def parts_of(kind: str, attention: nn.Module) -> list[slice]:
    """Which outputs have an adapter of their own, as peft chooses by default: GPT-2's c_attn, Llama's q_proj and v_proj."""
    whole = attention.read.out_features
    if kind == "gpt2":
        return [slice(0, whole)]
    return [slice(0, attention.heads * attention.size), slice(whole - attention.keys * attention.size, whole)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--rounds", type=int, nargs="+", default=ROUNDS, help="of training before the update is sent")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--seconds", type=float, default=60, help="for one cell at most")
    options = parser.parse_args()
    print(f"{platform.machine()}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    print(f"Width {WIDTH}, vocabulary {VOCABULARY}, {LAYERS} layers, {CLASSES} classes.\n")
    start = time.perf_counter()
    if "read" in options.tables:
        read_table(options)
    if "layers" in options.tables:
        layers_table(options)
    print(f"\n{time.perf_counter() - start:.0f} s in all")


def read_table(options: argparse.Namespace) -> None:
    """Tokens in place, and whether certified, over the number of tokens in the batch."""
    heads = "".join(f" {n * length} tokens |" for n, length in SHAPES)
    print(f"| model | rank | rounds | sent |{heads}")
    print("|---|---|---|---|" + "---|" * len(SHAPES))
    for kind in options.models:
        for rounds in options.rounds:
            for rank in options.ranks:
                model = trained(kind, rank, rounds)
                cells = [cell(model, n, length, options.seconds) for n, length in SHAPES]
                print(f"| {KINDS[kind]} | {rank} | {rounds} | {share(model)} | {' | '.join(cells)} |", flush=True)
    print()


def share(model: nn.Module) -> str:
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return f"{100 * sum(n for n, sent in sizes if sent) / sum(n for n, _ in sizes):.1f} %"


def trained(kind: str, rank: int, rounds: int) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(kind, rank)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    for _ in range(rounds):
        tokens, labels = torch.randint(VOCABULARY, (8, 15)), torch.randint(CLASSES, (8,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    return model.eval()


def batch(sequences: int, length: int) -> tuple[Tensor, Tensor]:
    """No token twice: the first of a text, repeated, reads the same as once where positions are rotary."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randperm(VOCABULARY, generator=generator)[: sequences * length].view(sequences, length)
    return tokens, torch.arange(sequences) % CLASSES


def cell(model: Classifier, sequences: int, length: int, seconds: float) -> str:
    tokens, labels = batch(sequences, length)
    update = unsum.capture_text(model, tokens, labels, train=False)
    leak = unsum.separate(model, update, "text", time_limit=seconds)
    if not leak.tokens:
        return "not decided"
    scores = unsum.score(leak, tokens=tokens)
    if leak.exact and (scores["sequences_correct"] < 1 or scores["sequences_error"] > 0):
        return "**certified wrongly**"
    return f"{100 * scores['tokens_correct']:.0f} %, {'certified' if leak.exact else 'not certified'}"


def layers_table(options: argparse.Namespace) -> None:
    """Directions of every layer's gradients, of a batch of 30 tokens, and how well the first ones rank tokens where r < 30."""
    tokens, labels = batch(3, 10)
    print(
        "| model | rank | rounds |" + "".join(f" layer {i + 1}: ∇B, ∇A |" for i in range(LAYERS)) + " tokens ranked |"
    )
    print("|---|---|---|" + "---|" * (LAYERS + 1))
    for kind in options.models:
        for rounds in options.rounds:
            for rank in options.ranks:
                model = trained(kind, rank, rounds)
                update = unsum.capture_text(model, tokens, labels, train=False)
                layers = joined(model, linear_layers(model, update.gradients))
                cells = []
                for i in range(LAYERS):
                    mine = [layer for layer in layers if f"blocks.{i}." in layer.name]
                    ranks = [max(directions(x.gradient) for x in mine if letter in x.name) for letter in ("_B", "_A")]
                    cells.append(f"{ranks[0]}, {ranks[1]}")
                first = [layer for layer in layers if "blocks.0." in layer.name]
                told = max(ranked(model, layer, tokens) for layer in first)
                print(f"| {KINDS[kind]} | {rank} | {rounds} | {' | '.join(cells)} | {told:.2f} |", flush=True)


def directions(gradient: Tensor) -> int:
    values = torch.linalg.svdvals(gradient.double())
    return int((values > 1e-6 * values.max()).sum()) if float(values.max()) > 0 else 0


def ranked(model: Classifier, layer: object, tokens: Tensor) -> float:
    """Area under the curve: how often a token of the batch, in its place, lies more inside a layer's directions than any other
    one there; 0.5 is chance. Directions count by their singular values, so that it says something where none is left out."""
    values, V = torch.linalg.svd(layer.gradient.double(), full_matrices=False)[1:]
    if not float(values.max()) > 0:
        return 0.5
    shares = []
    for place in range(tokens.shape[1]):
        every = torch.arange(VOCABULARY)[:, None].expand(-1, place + 1)
        x = read_by(model, layer.module, every, place).double()
        size = ((x @ V.T) * (values / values.max())).norm(dim=1) / x.norm(dim=1)
        there = torch.zeros(VOCABULARY, dtype=torch.bool)
        there[tokens[:, place]] = True
        shares.append((size[there][:, None] > size[~there]).double().mean())
    return float(torch.stack(shares).mean())


if __name__ == "__main__":
    main()
