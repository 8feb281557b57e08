"""Batches of sentences at the sizes of DAGER's tables (Petrov et al., NeurIPS 2024): GPT-2 and BERT base, a class for each text.

uv run python benchmarks/text_batches.py --device cuda
uv run python benchmarks/text_batches.py --models bert --lengths 11 --batches 1 2 4 8

Weights are random and texts are random tokens, framed and padded as a tokenizer does; lengths vary by a third around a mean that
is usual for the data that the paper has. So nothing is guessed from language, and nothing is known of it.
"""

from __future__ import annotations

import argparse
import math
import platform
import time

import torch
from torch import Tensor, nn

import unsum
from unsum import UnsumError
from unsum.deadline import time_limit

LENGTHS = {9: "as CoLA's", 13: "as SST-2's", 27: "as Rotten Tomatoes'"}  # tokens of a sentence
PADDING, OPENS, CLOSES = 0, 101, 102
SIZES = {"base": (768, 12, 12), "tiny": (64, 3, 4)}  # width, layers, heads


def made(name: str, size: str, device: str) -> nn.Module:
    """GPT-2's or BERT's published shape, with a head of two classes, random weights and no dropout."""
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    width, layers, heads = SIZES[size]
    if name == "gpt2":
        shape = {"n_embd": width, "n_layer": layers, "n_head": heads, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        model = GPT2ForSequenceClassification(GPT2Config(**shape, attn_pdrop=0.0, pad_token_id=PADDING))
    else:
        shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = BertForSequenceClassification(BertConfig(**shape, **without, intermediate_size=4 * width))
    return model.to(device).eval()


def sentences(number: int, length: int, vocabulary: int, *, framed: bool, seed: int) -> tuple[Tensor, Tensor]:
    """(tokens, mask), padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    spread = max(1, length // 3)
    lengths = torch.randint(length - spread, length + spread + 1, (number,), generator=generator)
    tokens = torch.randint(1000, vocabulary, (number, int(lengths.max())), generator=generator)
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    if framed:
        tokens[:, 0] = OPENS
        tokens[torch.arange(number), lengths - 1] = CLOSES
    return tokens.where(mask, PADDING), mask


def row(name: str, model: nn.Module, number: int, length: int, args: argparse.Namespace) -> str:
    framed, vocabulary = name == "bert", model.config.vocab_size
    tokens, mask = sentences(number, length, vocabulary, framed=framed, seed=args.seed)
    truth = [one[kept].tolist() for one, kept in zip(tokens, mask, strict=True)]
    labels = torch.arange(number) % 2
    given = (part.to(args.device) for part in (tokens, labels, mask))
    update = unsum.capture_text(model, *list(given)[:2], mask=mask.to(args.device), train=False)
    begin = f"| {name} | {LENGTHS.get(length, '')} ({length}) | {number} | {int(mask.sum())} "
    start = time.perf_counter()
    try:
        leak = unsum.separate(model, update, "text")
    except UnsumError as error:
        return f"{begin}| refused | – | – | {time.perf_counter() - start:.1f} | {error} |"
    seconds = time.perf_counter() - start
    scores = unsum.score(leak, tokens=truth)
    rouge = " / ".join(f"{100 * scores[kind]:.1f}" for kind in ("rouge_1", "rouge_2") if kind in scores) or "–"
    whole = f"{100 * scores['sequences_correct']:.0f} %" if leak.tokens else "0 %"
    why = "" if leak.exact else leak.notes[0] if leak.notes else ""
    return f"{begin}| {whole} | {rouge} | {'yes' if leak.exact else 'no'} | {seconds:.1f} | {why} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("gpt2", "bert"), default=["gpt2", "bert"])
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
    print(f"{where}, PyTorch {torch.__version__}, {torch.get_num_threads()} thread(s)\n")
    print("| model | sentences (mean tokens) | B | tokens | whole | ROUGE-1 / 2 | certified | seconds | why not |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in args.models:
        model = made(name, args.size, args.device)
        for length in args.lengths:
            for number in args.batches:
                print(row(name, model, number, length, args), flush=True)


if __name__ == "__main__":
    with time_limit(math.inf):  # figures must not depend on how fast the machine is
        main()
