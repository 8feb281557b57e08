"""What a matcher is: a function from a `Problem` to `Matched` pictures, with what it cannot do
without."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unsum.errors import UnsumError, refuse
from unsum.match.engine import Matched
from unsum.match.problem import Problem
from unsum.registry import Registry
from unsum.separate.options import check_options, whole, yes_or_no
from unsum.update import Update

Find = Callable[..., Matched]


@dataclass(frozen=True)
class MatcherNeeds:
    """How the labels are found where they are not granted, and what else is asked for."""

    # the label rule that goes first; "" where labels are optimized along with the pictures
    rule: str = ""
    # that goes first and finds batch size, targets and features, instead of a rule
    separator: str = ""
    batch_size: bool = False  # it must be granted, or disclosed by the update, where labels are not
    one_sample: bool = False  # the method is for a single sample
    scale: bool = False  # the gradient itself, not a multiple of it
    auxiliary: bool = False  # photos of the attacker's own
    extra: str = ""  # anything else, in words; the method itself refuses to go without

    def __str__(self) -> str:
        labels = "labels found along with the pictures"
        if self.separator:
            labels = f"labels and features by the separator {self.separator!r}"
        elif self.rule:
            labels = f"labels, granted or by the rule {self.rule!r}"
        texts = {
            "image size": True,
            "gradients of all layers": True,
            labels: True,
            "batch size": self.batch_size,
            "one sample": self.one_sample,
            "gradient's scale": self.scale,
            "auxiliary photos": self.auxiliary,
            self.extra: bool(self.extra),
        }
        return ", ".join(text for text, needed in texts.items() if needed)

    def check(
        self, name: str, update: Update, batch_size: int | None, *, auxiliary: bool = True
    ) -> None:
        reasons = {
            f"{name!r} learns from photos of the attacker's own; give auxiliary=(images, labels), "
            f"or on the command line {name}:auxiliary=FILE.npz with arrays images and "
            "labels.": self.auxiliary and not auxiliary,
            f"{name!r} needs the gradient's scale; give the learning rate of the delta, or use "
            "'ig', which works at any scale.": self.scale and not update.scale_known,
            f"{name!r} is for one sample; for {batch_size} samples use 'ig' or 'gradinversion'.": (
                self.one_sample and batch_size not in (None, 1)
            ),
            f"{name!r} needs the batch size; give batch_size= (unsum audit: --batch-size-known), "
            "or use 'ig', which finds it.": self.batch_size and batch_size is None,
        }
        refuse(reasons)


@dataclass(frozen=True)
class Matcher:
    """A method of the registry; keyword-only arguments of `find` with defaults are its options."""

    name: str
    needs: MatcherNeeds
    find: Find

    @property
    def options(self) -> dict[str, Any]:
        parameters = inspect.signature(self.find).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def __call__(self, problem: Problem, **options: Any) -> Matched:
        return self.find(problem, **options)

    def check_options(self, options: dict[str, Any]) -> None:
        """Refuse the first option that the method does not have, or that is of another kind than
        its default."""
        check_options(self.name, self.find, options)
        for name, value in options.items():
            default = self.options[name]
            number = (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and 0 <= value < float("inf")
            )
            if isinstance(default, bool):
                yes_or_no(name, value)
            elif isinstance(default, int):
                whole(name, value, 1)
            elif isinstance(default, float) and not number:
                raise UnsumError(
                    f"The option {name!r} must be a number of at least 0, not {value!r}."
                )


MATCHERS: Registry[Matcher] = Registry("attack", "unsum.attacks")


def matcher(name: str, *, summary: str, needs: MatcherNeeds) -> Callable[[Find], Find]:
    """Decorator that makes a function known as the matcher `name`; its needs are checked before it
    is called."""

    def add(find: Find) -> Find:
        MATCHERS.register(name, summary=summary, needs=str(needs))(Matcher(name, needs, find))
        return find

    return add
