"""What adapters of low rank (LoRA) give away of a text, over their rank, before any training and after some rounds.

uv run python benchmarks/lora.py        # the table of docs/research/language-models.md, minutes on one core

A classifier of GPT-2's kind; only the adapters of its attention and its head are trained and sent, as peft does it:
what a layer reads goes through A (rank × width) and B (outputs × rank), and B begins with zeros.
"""

from __future__ import annotations

import argparse
import platform

import torch
from torch import Tensor, nn

import unsum
from plain_transformers import GPT2

VOCABULARY, WIDTH, LAYERS, CLASSES = 500, 256, 3, 2
RANKS = (4, 16, 64, 256)
SHAPES = ((1, 3), (1, 10), (4, 10), (12, 10))  # sequences, tokens of each


class Adapted(nn.Module):
    """A frozen layer with an adapter beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.lora_B(self.lora_A(x))


class Classifier(nn.Module):
    """GPT-2's body; the class is read off the last position."""

    text_task = "class"

    def __init__(self, rank: int) -> None:
        super().__init__()
        body = GPT2(VOCABULARY, WIDTH, LAYERS, 4, 64)
        self.tokens, self.positions, self.blocks, self.norm = body.tokens, body.positions, body.blocks, body.norm
        self.requires_grad_(False)
        for block in self.blocks:
            block.attention.read = Adapted(block.attention.read, rank)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x))[:, -1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument(
        "--rounds", type=int, nargs="+", default=(0, 5), help="of training before the update that is read"
    )
    options = parser.parse_args()
    print(f"{platform.machine()}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)\n")
    print(f"Width {WIDTH}, vocabulary {VOCABULARY}, {LAYERS} layers. Tokens in place, and whether certified.\n")
    print(
        "| rank | rounds | share of the parameters sent |" + "".join(f" {n * length} tokens |" for n, length in SHAPES)
    )
    print("|---|---|---|" + "---|" * len(SHAPES))
    for rounds in options.rounds:
        for rank in options.ranks:
            model = trained(rank, rounds)
            sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
            share = sum(n for n, sent in sizes if sent) / sum(n for n, _ in sizes)
            cells = [cell(model, n, length) for n, length in SHAPES]
            print(f"| {rank} | {rounds} | {100 * share:.1f} % | {' | '.join(cells)} |", flush=True)


def trained(rank: int, rounds: int) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(rank)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    for _ in range(rounds):
        tokens, labels = torch.randint(VOCABULARY, (8, 15)), torch.randint(CLASSES, (8,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()
    return model.eval()


def cell(model: Classifier, sequences: int, length: int) -> str:
    tokens = torch.randint(VOCABULARY, (sequences, length), generator=torch.Generator().manual_seed(1))
    update = unsum.capture_text(model, tokens, torch.arange(sequences) % CLASSES, train=False)
    leak = unsum.separate(model, update, "text", time_limit=60)
    if not leak.tokens:
        return "not decided"
    share = unsum.score(leak, tokens=tokens)["tokens_correct"]
    return f"{100 * share:.0f} %, {'certified' if leak.exact else 'not certified'}"


if __name__ == "__main__":
    main()
