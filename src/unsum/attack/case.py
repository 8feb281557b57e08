"""One update under attack: what is known of it, the best answer so far, and every answer and
refusal on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor, nn

from unsum.attack.fitted import fits_noise
from unsum.attack.options import AttackOptions
from unsum.attack.reach import blind_at_the_head, is_hopeless
from unsum.errors import UnsumError
from unsum.head import Head
from unsum.labels.feature_prior import FeaturePrior, feature_prior
from unsum.leak import Attempt, Leak
from unsum.models.language import is_language_model
from unsum.network.chain import find_chain
from unsum.peel.ratio import read_rows
from unsum.running.deadline import out_of_time
from unsum.running.progress import Progress
from unsum.separate import answered as separate  # which keeps the errors that answers are chosen by
from unsum.separate.adaptive import recognize
from unsum.spans.pair import dense_steps
from unsum.update import Update

UNREAD = (
    "entries of the update were removed or rounded, and no attack that was tried reads the dense "
    "layers below the last one from what is left"
)
ADAPTIVE = "adaptive"  # the separator whose answers hold the noise's own size
_BLIND_BELOW = {
    "spans": "samples may be there that these layers do not tell apart",
    "tokens": "pictures may be there that the first layers do not tell apart",
}


@dataclass
class Case:
    """One update under attack, and the best answer so far with the method that gave it."""

    model: nn.Module
    update: Update
    options: AttackOptions
    progress: Progress
    best: Leak | None = None
    by: str = ""
    tried: list[Attempt] = field(default_factory=list)

    @property
    def answer(self) -> Leak:
        if self.best is None:
            raise UnsumError("No attack before this one gave an answer that it could improve on.")
        return self.best

    @cached_property
    def language(self) -> bool:
        return is_language_model(self.model)

    @cached_property
    def head(self) -> Head:
        return Head.of(self.model, self.update, self.options.device)

    @cached_property
    def defended(self) -> bool:
        return recognize(self.head).kind != "none"

    @cached_property
    def noisy(self) -> bool:
        """Whether every entry was sent with an error of its own."""
        return recognize(self.head).kind == "noise"

    @cached_property
    def noise_added(self) -> bool:
        """Whether that error is a defense: not the rounding of weights, nor left by local steps."""
        marks = recognize(self.head)
        return self.noisy and not marks.rounding and not self.options.follows_steps(self.update)

    @cached_property
    def feature_prior(self) -> FeaturePrior | None:
        """What features look like before the update is seen, where that can be told."""
        return feature_prior(self.head, self.model, self.options.public, self.options.seed)

    @property
    def useless(self) -> bool:
        """Whether there is no answer yet that is worth anything."""
        return self.best is None or is_hopeless(self.best)

    @property
    def unfollowed_steps(self) -> list[str]:
        """Why several local steps could not be followed."""
        return [one.refused for one in self.tried if one.method == "local-steps" and one.refused]

    @property
    def uncertain(self) -> bool:
        """Whether the solver answered, is not certain, and others may know better: they assume
        cross-entropy."""
        solver = self.by in ("exact", "crowded") or (
            self.by == "local-steps" and is_hopeless(self.answer)
        )
        return solver and not self.answer.exact and not self.options.other_loss

    def separate(
        self, method: str, update: Update | None = None, how: str = "", *, asked: bool = False
    ) -> Leak:
        """One separator's answer, remembered whether it becomes the best one or not. One that fits
        the noise is refused, unless it was `asked` for by name: any other answer is better."""
        leak = separate_by(method, self.model, update or self.update, self.options, self.progress)
        told = self.noise_added and not asked and method != ADAPTIVE and not self.language
        reason = fits_noise(self.head, leak, self.feature_prior) if told else ""
        if reason:
            self.tried.append(Attempt(method + how, refused=reason))
            return replace(leak, predicted_error=math.inf)
        self.tried.append(
            Attempt(method + how, leak, blind="" if self.language else self._blind(leak))
        )
        return leak

    def separate_with(self, labels: Tensor, rule: str, method: str, doubt: str = "") -> Leak:
        """One separator's answer with the labels that a rule found, not recorded as granted; never
        certain under a doubt."""
        found = replace(self.options, labels=labels, batch_size=None)
        leak = separate_by(method, self.model, self.update, found, self.progress)
        knowledge = self.options.clues(self.model, self.update).knowledge
        leak = replace(leak, knowledge=knowledge)
        if doubt:
            leak = replace(leak, exact=False)
        blind = blind_at_the_head(self.head, self.update, leak) or doubt
        self.tried.append(Attempt(f"{method}, labels by {rule}", leak, blind=blind))
        return leak

    @cached_property
    def changed(self) -> bool:
        """Whether entries were removed or rounded: their rows and columns span other directions
        than the samples do."""
        return recognize(self.head).kind not in ("none", "noise")

    @cached_property
    def unread(self) -> str:
        """Why more may be in the layers below the head: they would be read (`spans`), were they
        whole."""
        try:
            dense = (
                dense_steps(find_chain(self.model, self.update, self.options.device))
                if self.changed
                else []
            )
        except UnsumError:  # nothing can be traced below the head
            return ""
        return UNREAD if len(dense) > 1 else ""

    def _blind(self, leak: Leak) -> str:
        if out_of_time("a look at what the last layer cannot show"):
            return "time was over"
        return blind_at_the_head(self.head, self.update, leak) or (
            "" if leak.exact else self.unread
        )

    def read_below(self, method: str) -> Leak:
        """Layers below the head, which may hold more than it can tell apart: two (`spans`), a
        transformer's first (`tokens`)."""
        leak = separate_by(method, self.model, self.update, self.options, self.progress)
        self.tried.append(
            Attempt(method, leak, blind="" if leak.exact else _BLIND_BELOW[method], at_head=False)
        )
        return leak

    def read_rows(self) -> Leak:
        """The ratio at every dense layer, which finds only samples that some unit sees alone."""
        known = self.options.batch_size if self.options.labels is None else len(self.options.labels)
        leak = read_rows(self.model, self.update, batch_size=known, seed=self.options.seed)
        self.tried.append(
            Attempt("ratio", leak, blind="a unit may see several samples", at_head=False)
        )
        return leak


def separate_by(
    method: str, model: nn.Module, update: Update, options: AttackOptions, progress: Progress
) -> Leak:
    """One separator, with what the options grant it."""
    given = options.shared
    return separate(
        model,
        update,
        method,
        labels=options.labels,
        progress=progress,
        loss=options.loss,
        public=options.public,
        **given,
    )
