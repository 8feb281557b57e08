"""How much of a client's text came back: sequences paired with the truth, then compared token by
token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from unsum.errors import UnsumError
from unsum.running.late_scipy import linear_sum_assignment

_ROUGE = ("rouge1", "rouge2", "rougeL")
Sequences = Tensor | Sequence[Sequence[int]]


def score_text(found: Sequence[Sequence[int]] | None, true: Sequences) -> dict[str, float]:
    """Shares of the true tokens found in their place, of the true sequences found whole, and
    ROUGE-1/2/L over tokens.

    `true` is a list of sequences, or (n, L) with −100 where they are padded.

    >>> scores = score_text([[4, 5, 6], [1, 2, 9]], [[1, 2, 3], [4, 5, 6]])
    >>> {name: round(score, 2) for name, score in scores.items() if name[0] != "r"}
    {'tokens_correct': 0.83, 'sequences_correct': 0.5, 'sequences_error': 0.0}
    >>> {name: round(score, 2) for name, score in scores.items() if name[0] == "r"}
    {'rouge_1': 0.83, 'rouge_2': 0.75, 'rouge_l': 0.83}
    """
    if found is None:
        raise UnsumError("This leak holds no text; attack a language model with the attack 'text'.")
    rows = _rows(true)
    pairs = pair_text(found, rows)
    return {
        "tokens_correct": sum(
            round(share * len(row)) for (_, share, _), row in zip(pairs, rows, strict=True)
        )
        / sum(map(len, rows)),
        "sequences_correct": sum(whole for _, _, whole in pairs) / len(rows),
        "sequences_error": float(len(found) - len(rows)),
        **rouge([[] if j is None else found[j] for j, _, _ in pairs], rows),
    }


def rouge(found: Sequence[Sequence[int]], true: Sequence[Sequence[int]]) -> dict[str, float]:
    """ROUGE-1, -2 and -L (F-measures, mean over pairs) with tokens as words: what papers on text
    report.

    >>> rouge([[1, 2, 3]], [[1, 3, 2]])
    {'rouge_1': 1.0, 'rouge_2': 0.0, 'rouge_l': 0.6666666865348816}
    """
    from torchmetrics.functional.text.rouge import rouge_score  # slow to import, and seldom needed

    def words(rows: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    scores = rouge_score(
        words(found), words(true), normalizer=str, tokenizer=str.split, rouge_keys=_ROUGE
    )
    return {f"rouge_{key[5:].lower()}": float(scores[f"{key}_fmeasure"]) for key in _ROUGE}


def pair_text(
    found: Sequence[Sequence[int]], true: Sequences
) -> list[tuple[int | None, float, bool]]:
    """For every true sequence: its partner in `found`, the share of its tokens that stand there in
    their place, and whether it is whole.

    >>> pair_text([[4, 5, 6], [1, 2, 9, 9]], [[1, 2], [4, 5, 6], [7, 8]])
    [(1, 1.0, False), (0, 1.0, True), (None, 0.0, False)]
    """
    rows = _rows(true)
    hits = np.array(
        [[sum(map(int.__eq__, row, other)) for other in found] for row in rows]
    ).reshape(len(rows), len(found))
    partner = {int(i): int(j) for i, j in zip(*linear_sum_assignment(-hits), strict=True)}
    answers: list[tuple[int | None, float, bool]] = []
    for i, row in enumerate(rows):
        j = partner.get(i)
        answers.append(
            (None, 0.0, False)
            if j is None
            else (j, int(hits[i, j]) / len(row), row == list(found[j]))
        )
    return answers


def _rows(true: Sequences) -> list[list[int]]:
    return [[int(token) for token in row if int(token) >= 0] for row in true]
