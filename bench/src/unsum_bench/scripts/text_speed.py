"""How long text takes to read at published sizes, and how much memory, in plain PyTorch.

# and an older state beside it
python -m unsum_bench.scripts.text_speed --cases gpt2 --against OLD_CHECKOUT/src
python -m unsum_bench.scripts.text_speed --device cuda \\
    --cases gpt2 gpt2-8 gpt2-16 gpt2-32 llama bert-1 bert-4 bert-8

Tokens are random numbers of the whole vocabulary, so nothing is guessed from language.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor

import unsum
from unsum.running.deadline import time_limit
from unsum_bench.scripts.plain_transformers import BERT, GPT2, Llama


def small_llama() -> Llama:
    """48 million parameters."""
    return Llama(8000, 768, 6, 12, 4, 2048)


# sequences and tokens of each: 23 is a usual sentence of Rotten Tomatoes in GPT-2's tokens
CASES = {
    "gpt2": (GPT2, 4, 17), "gpt2-8": (GPT2, 8, 23), "gpt2-16": (GPT2, 16, 23),
    "gpt2-32": (GPT2, 32, 23), "llama": (Llama, 16, 23), "llama-4": (Llama, 4, 23),
    "llama-small": (small_llama, 8, 23), "bert-1": (BERT, 1, 23), "bert-2": (BERT, 2, 23),
    "bert-4": (BERT, 4, 23), "bert-8": (BERT, 8, 23), "bert-16": (BERT, 16, 23),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["gpt2"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--against", help="the src folder of another checkout: run it too, right after this one"
    )
    parser.add_argument(
        "--batch-size-known",
        action="store_true",
        help="tell the attacker how many positions there are",
    )
    parser.add_argument(
        "--notes", action="store_true", help="and what the attack says about each answer"
    )
    parser.add_argument("--json", action="store_true", help="only the figures, for --against")
    options = parser.parse_args()
    if not options.json:
        where = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
        print(f"{where}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)\n")
        print(
            "| case | tokens | sequences whole | ROUGE-1/2/L | certified | seconds | processor "
            "seconds | peak memory |"
        )
        print("|---|---|---|---|---|---|---|---|")
    for case in options.cases:
        figures = measured(case, options.device, known=options.batch_size_known)
        if options.json:
            print(json.dumps(figures))
            continue
        print(row(case, figures), flush=True)
        if options.notes:
            print("\n".join(f"    {note}" for note in figures["notes"]), flush=True)
        if options.against:
            before = elsewhere(case, options)
            print(row(f"{case}, before", before))
            print(
                f"\n{case}: {before['processor'] / figures['processor']:.1f} times faster in "
                "processor seconds\n"
            )


def measured(case: str, device: str, *, known: bool = False) -> dict[str, Any]:
    kind, sequences, length = CASES[case]
    torch.manual_seed(0)
    model = kind().to(device).eval()
    tokens = torch.randint(0, model.tokens.num_embeddings, (sequences, length))
    labels: Tensor = tokens
    if kind is BERT:
        # as its tokenizer opens and closes
        tokens[:, 0], tokens[:, -1], labels = 101, 102, torch.arange(sequences) % 2
    update = unsum.capture_text(model, tokens.to(device), labels.to(device), train=False)
    if device == "cuda":
        warm_up(device)
    start, processor = time.perf_counter(), time.process_time()
    positions = len(labels) if kind is BERT else sequences * (length - 1)
    leak = unsum.separate(model, update, "text", batch_size=positions if known else None)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    scores = unsum.score(leak, tokens=tokens)
    memory = (
        torch.cuda.max_memory_allocated() / 1e9
        if device == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    )
    return scores | {
        "exact": leak.exact,
        "notes": leak.notes,
        "seconds": seconds,
        "processor": processor,
        "memory": memory,
    }


def warm_up(device: str) -> None:
    """Libraries of the device are loaded at their first call."""
    model = GPT2(100, 64, 2, 2, 32).to(device).eval()
    unsum.separate(
        model,
        unsum.capture_text(model, torch.randint(0, 100, (2, 8), device=device), train=False),
        "text",
    )


def row(case: str, figures: dict[str, Any]) -> str:
    rouge = (
        "/".join(
            f"{figures[name]:.3f}" for name in ("rouge_1", "rouge_2", "rouge_l") if name in figures
        )
        or "–"
    )
    return (
        f"| {case} | {100 * figures['tokens_correct']:.1f} % | "
        f"{100 * figures['sequences_correct']:.1f} % | {rouge} | "
        f"{'yes' if figures['exact'] else 'no'} | {figures['seconds']:.1f} | "
        f"{figures['processor']:.1f} | {figures['memory']:.1f} GB |"
    )


def elsewhere(case: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--json", "--cases", case, "--device", options.device]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": options.against},
        capture_output=True,
        check=True,
        text=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
