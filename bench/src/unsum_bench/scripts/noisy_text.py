"""How much text noise and sixteen-bit rounding leave of a small trained language model.

    python -m unsum_bench.scripts.noise text  # the table of docs/research/language-models.md
    python -m unsum_bench.scripts.noise text --batches 1 --cases bfloat16 --seconds 60

GPT-2's architecture with three layers of width 128 and 2000 words of this project's documentation,
trained on it; 6 sequences of 9 tokens. Nothing is given but the model and the update.
"""

from __future__ import annotations

import argparse
import platform
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import unsum
from unsum.models.language import TextTask, text_loss
from unsum.running.deadline import time_limit
from unsum_bench.scripts.plain_transformers import GPT2

VOCABULARY, WIDTH, LAYERS, LONGEST = 2000, 128, 3, 64
SEQUENCES, LENGTH = 6, 9
CASES = {"1e-4": unsum.Noise(1e-4), "bfloat16": unsum.BFloat16()}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=3, help="batches of text for every line")
    parser.add_argument("--steps", type=int, default=300, help="training steps of the models")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each attack")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args(arguments)
    print(f"{platform.machine()}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)")
    print("\n| model | sent with | tokens | sequences returned | predicted | claimed | seconds |")
    print("|---|---|---|---|---|---|---|")
    text = corpus()
    for tied in (False, True):
        model = trained(text, options.steps, tied=tied)
        for case in options.cases:
            rows = [measured(model, text, case, i, options.seconds) for i in range(options.batches)]
            cells = (", ".join(column) for column in zip(*rows, strict=True))
            print(f"| {'tied' if tied else 'untied'} | {case} | {' | '.join(cells)} |", flush=True)


def measured(
    model: GPT2, text: Tensor, case: str, seed: int, seconds: float
) -> tuple[str, str, str, str, str]:
    """Tokens in place, sequences returned, the predicted error, the claim, and seconds."""
    batch = sampled(text, SEQUENCES, LENGTH, seed)
    torch.manual_seed(seed)
    update = unsum.capture_text(model, batch, defenses=CASES[case])
    with time_limit(seconds):
        leak = unsum.separate(model, update, "text")
    right = unsum.score(leak, tokens=batch)["tokens_correct"]
    return (
        f"{100 * right:.0f} %",
        str(len(leak.tokens or [])),
        f"{leak.predicted_error:.1g}",
        "yes" if leak.exact else "no",
        f"{leak.seconds:.0f}",
    )


def corpus() -> Tensor:
    """The words and signs of this project's documentation, numbered by frequency; 0 is any
    other."""
    folder = Path(__file__).parents[4] / "docs"
    pages = [path for path in sorted(folder.rglob("*.md")) if "research" not in path.parts]
    words = re.findall(r"\w+|[^\w\s]", " ".join(path.read_text("utf-8") for path in pages))
    numbers = {word: i for i, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), 1)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def sampled(text: Tensor, sequences: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(text) - length, (sequences,), generator=generator).tolist()
    return torch.stack([text[start : start + length] for start in starts])


def trained(text: Tensor, steps: int, *, tied: bool) -> GPT2:
    torch.manual_seed(0)
    model = GPT2(VOCABULARY, WIDTH, LAYERS, 4, LONGEST, tied=tied)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        batch = sampled(text, 16, 32, int(torch.randint(1 << 30, ())))
        optimizer.zero_grad()
        text_loss(TextTask.NEXT, model(batch), batch).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval()
