"""How much text comes back from one gradient of a causal language model (GPT-2's architecture, in plain PyTorch).

uv run python benchmarks/language_models.py > tables.md        # the tables of docs/research/language-models.md
uv run python benchmarks/language_models.py --parts noise --seeds 1

At GPT-2's own size: `text_speed.py`.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import sys
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

import unsum
from plain_transformers import GPT2
from unsum.deadline import time_limit
from unsum.models.language import TextTask, text_loss

VOCABULARY, FEATURES, LAYERS = 2000, 128, 3
SHAPES = ((2, 9), (4, 9), (8, 9), (6, 17), (7, 17), (4, 32), (14, 10), (8, 17), (16, 17))  # sequences, tokens of each
PARTS = ("recovery", "noise", "conditions", "head")
NOISES = (1e-6, 1e-5, 3e-5, 1e-4, 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="batches of text for every line")
    parser.add_argument("--steps", type=int, default=300, help="training steps of the trained models")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    print(f"{platform.machine()}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)\n")
    text = corpus()
    models = {
        (tied, trained): made(tied, trained, text, options.steps) for tied in (False, True) for trained in (False, True)
    }
    if "recovery" in options.parts:
        print(recovery(models, text, options.seeds), flush=True)
    if "noise" in options.parts:
        print(noise(models, text, options.seeds), flush=True)
    if "conditions" in options.parts:
        print(conditions(models, text), flush=True)
    if "head" in options.parts:
        print(head_alone(models, text))


def corpus() -> Tensor:
    """The words and signs of this project's documentation, numbered by frequency; 0 is any other."""
    folder = Path(__file__).parents[1] / "docs"
    pages = [path for path in sorted(folder.rglob("*.md")) if "research" not in path.parts]
    words = re.findall(r"\w+|[^\w\s]", " ".join(path.read_text("utf-8") for path in pages))
    numbers = {word: i for i, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), 1)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def made(tied: bool, trained: bool, text: Tensor, steps: int, dropout: float = 0.0) -> GPT2:
    torch.manual_seed(0)
    model = GPT2(VOCABULARY, FEATURES, LAYERS, 4, 64, tied=tied, dropout=dropout)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(steps if trained else 0):
        batch = sampled(text, 16, 32, int(torch.randint(1 << 30, ())))
        loss = text_loss(TextTask.NEXT, model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (0, steps - 1):
            print(f"{'tied' if tied else 'untied'}, step {step + 1}: loss {float(loss):.2f}", file=sys.stderr)
    optimizer.zero_grad()
    return model


def sampled(text: Tensor, sequences: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(text) - length, (sequences,), generator=generator).tolist()
    return torch.stack([text[start : start + length] for start in starts])


def recovery(models: dict[tuple[bool, bool], GPT2], text: Tensor, seeds: int) -> str:
    lines = [
        "## Tokens recovered over the number of positions\n",
        f"H = {FEATURES}, vocabulary {VOCABULARY}, {LAYERS} layers; {seeds} batches each. Tokens in place / sequences whole / "
        "certified exact (wrongly: never, unless said); mean seconds.\n",
        "| positions (sequences × tokens) | untied, random | untied, trained | tied, random | tied, trained |",
        "|---|---|---|---|---|",
    ]
    for sequences, length in SHAPES:
        cells = []
        for model in models.values():
            rows = [run(model, sampled(text, sequences, length, seed)) for seed in range(seeds)]
            cells.append(cell(rows))
        lines.append(f"| {sequences * (length - 1)} ({sequences} × {length}) | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def run(model: GPT2, batch: Tensor, labels: Tensor | None = None, train: bool = False, **how: object):
    """(tokens, sequences, certified, certified wrongly, seconds) of one attack with nothing given."""
    update = unsum.capture_text(model, batch, labels, train=train, **how)
    leak = unsum.separate(model, update, "text")
    true = batch if labels is None else kept(batch, labels)
    scores = unsum.score(leak, tokens=true)
    right = scores["sequences_correct"] == 1 and scores["sequences_error"] == 0
    return scores["tokens_correct"], scores["sequences_correct"], leak.exact, leak.exact and not right, leak.seconds


def kept(batch: Tensor, labels: Tensor) -> list[list[int]]:
    """Each sequence up to its last label: what lies beyond has no gradient."""
    ends = [int((row >= 0).nonzero().max()) + 1 for row in labels]
    return [row[:end].tolist() for row, end in zip(batch, ends, strict=True)]


def cell(rows: list[tuple[float, float, bool, bool, float]]) -> str:
    n = len(rows)
    tokens, whole, seconds = (sum(row[i] for row in rows) / n for i in (0, 1, 4))
    wrong = sum(row[3] for row in rows)
    said = f"{100 * tokens:.0f} % / {100 * whole:.0f} % / {sum(row[2] for row in rows)} of {n}; {seconds:.1f} s"
    return said + (f" **{wrong} wrongly**" if wrong else "")


def noise(models: dict[tuple[bool, bool], GPT2], text: Tensor, seeds: int) -> str:
    lines = [
        "## Noise on every entry\n",
        "48 positions (6 × 9). Tokens in place / sequences whole / certified exact; mean seconds.\n",
        "| σ | untied, random | untied, trained | tied, random | tied, trained |",
        "|---|---|---|---|---|",
    ]
    for sigma in NOISES:
        cells = []
        for model in models.values():
            rows = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                rows.append(run(model, sampled(text, 6, 9, seed), defenses=unsum.Noise(sigma)))
            cells.append(cell(rows))
        lines.append(f"| {sigma:g} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def conditions(models: dict[tuple[bool, bool], GPT2], text: Tensor) -> str:
    batch = sampled(text, 6, 9, 7)
    repeated = batch.clone()
    repeated[1], repeated[2, :5] = repeated[0], repeated[0, :5]
    padded, prompt = batch.clone(), batch.clone()
    padded[0, 5:], padded[1, 3:], padded[2, 2:] = -100, -100, -100
    prompt[:, :5] = -100
    filled = batch.where(padded >= 0, 0)
    cases = {
        "plain": (batch, None, {}),
        "one sequence twice, another sharing five tokens with it": (repeated, None, {}),
        "padding on the right, ignored": (filled, padded, {}),
        "the first five labels ignored (a prompt)": (batch, prompt, {}),
        "clipped to norm 0.1": (batch, None, {"defenses": unsum.Clip(0.1)}),
        "sent as float16": (batch, None, {"defenses": unsum.Float16()}),
        "sent as bfloat16": (batch, None, {"defenses": unsum.BFloat16()}),
        "90 % of the entries pruned": (batch, None, {"defenses": unsum.Prune(0.9)}),
    }
    lines = [
        "## What else a client does\n",
        "6 sequences of 9 tokens, one batch. Tokens in place / sequences whole / certified exact; seconds.\n",
        "| case | untied, trained | tied, trained |",
        "|---|---|---|",
    ]
    for name, (tokens, labels, how) in cases.items():
        cells = [cell([run(models[tied, True], tokens, labels, **how)]) for tied in (False, True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def head_alone(models: dict[tuple[bool, bool], GPT2], text: Tensor) -> str:
    """`separate(method="exact")`: the head's gradient and nothing else, labels in no order; also under dropout."""
    lines = [
        "## The head's gradient alone\n",
        '`separate(…, "exact")` on untied models, one batch: next tokens found (as a bag), certified, seconds.\n',
        "| positions | random | trained | random, dropout 0.1 |",
        "|---|---|---|---|",
    ]
    dropped = made(False, False, text, 0, dropout=0.1)
    for sequences, length in ((1, 9), (2, 9)):
        cells = []
        for model, train in ((models[False, False], False), (models[False, True], False), (dropped, True)):
            batch = sampled(text, sequences, length, 0)
            leak = unsum.separate(model, unsum.capture_text(model, batch, train=train), "exact")
            true, found = Counter(batch[:, 1:].flatten().tolist()), Counter(leak.labels.tolist())
            share = (true & found).total() / true.total()
            cells.append(f"{100 * share:.0f} %, {'yes' if leak.exact else 'no'}, {leak.seconds:.1f} s")
        lines.append(f"| {sequences * (length - 1)} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
