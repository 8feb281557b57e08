"""When an attack on the last layer says nothing about samples that it did not find: causes, in
words, never "0 %"."""

from __future__ import annotations

from unsum.equation.observation import observe
from unsum.head import Head
from unsum.leak import Leak
from unsum.separate.adaptive import recognize
from unsum.update import Update

# of the gradient, and of its noise: what is left beyond is of another kind
UNEXPLAINED, _MORE_THAN_NOISE = 0.01, 1.5
HOPELESS = 0.3  # predicted relative error above which features are worth little


def is_hopeless(leak: Leak) -> bool:
    return not leak.predicted_error < HOPELESS  # nor is an error that is not known


def most_samples(classes: int, width: int, loss: str = "cross-entropy") -> int:
    """How many samples the last layer can tell apart: under softmax its rows sum to zero, which
    takes one direction away."""
    return min(max(classes - 1, 1) if loss == "cross-entropy" else classes, width)


def too_many(samples: int, classes: int, width: int, loss: str = "cross-entropy") -> str:
    """Why a batch of so many cannot be taken apart at the last layer alone; empty where it can."""
    most = most_samples(classes, width, loss)
    if samples <= most:
        return ""
    cannot = (
        f"the last layer alone cannot tell more than {most} sample{'s' if most > 1 else ''} apart"
    )
    if most == width:
        return f"the batch is larger than the number of features, {width}: {cannot}"
    return f"the batch is at least as large as the number of classes: {cannot}"


def blind_at_the_head(head: Head, update: Update, leak: Leak) -> str:
    """Why this answer, given by the last layer, says nothing about samples that it lacks; empty
    where the method applies."""
    if leak.exact:
        return ""
    training = update.training
    followed = leak.method == "local-steps" and not is_hopeless(leak)
    # the others take all steps for one
    if training is not None and training.several_steps and not followed:
        return f"the client took {training.steps} local steps, more than the attack undoes"
    if leak.method == "crowded" and not is_hopeless(leak):
        return ""
    classes, width = head.W.shape
    known = leak.knowledge.known_batch_size
    if known is not None:
        return too_many(known, classes, width, leak.loss)
    size, marks = float(head.row_norms(head.grad_W).norm()), recognize(head)
    if not size or marks.kind not in ("none", "noise"):  # other defenses change the rank
        return ""
    most = most_samples(classes, width, leak.loss)
    if observe(head, None).rank >= most:
        return (
            f"the last layer's gradient has its full rank of {most}: the batch may be as large as "
            "the number of classes or larger, and the last layer alone cannot tell so many apart"
        )
    if (
        leak.residual
        > UNEXPLAINED + _MORE_THAN_NOISE * marks.sigma * head.grad_W.numel() ** 0.5 / size
    ):
        return (
            f"the attack's answer leaves {100 * leak.residual:.2g} % of the gradient unexplained, "
            "more than noise: the client may have trained in another way than assumed"
        )
    return ""
