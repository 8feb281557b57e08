"""Two answers, yes and no: a sample and its negative with all labels exchanged send one gradient
where no bias tells them apart.

σ(−l) − (1 − y) = −(σ(l) − y), and −f undoes the sign. A bias b turns l into −l + 2b and shows it,
if it is large enough. So it is under binary cross-entropy, and for a softmax over two classes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from unsum.certify.candidate import reweighted
from unsum.certify.question import Question
from unsum.losses import Softmax

_TRIED = 8  # samples that are mirrored one by one; all at once is tried as well


def doubt_mirror(question: Question) -> list[str]:
    """The doubt that some samples are the negatives of what was found."""
    candidate = question.candidate
    Y, loss = candidate.equation.Y, question.observation.loss
    two = isinstance(loss, Softmax) and candidate.equation.classes == 2
    if not (two or loss.name == "bce") or question.knowledge.labels is not None or Y is None:
        return []
    B = len(Y)
    for kept in [torch.arange(B) == i for i in range(min(B, _TRIED))] + [
        torch.ones(B, dtype=torch.bool)
    ]:
        turned = kept.to(Y.device)[:, None]
        at = replace(candidate.at, T=torch.where(turned, -candidate.at.T, candidate.at.T))
        equation = replace(candidate.equation, Y=torch.where(turned, 1 - Y, Y))
        if reweighted(question.observation, equation, at).certificate.misfit < 2 * question.misfit:
            return [
                (
                    "A sample and its negative with all labels exchanged look alike here: no bias "
                    "tells them apart."
                )
            ]
    return []
