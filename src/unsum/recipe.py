"""A whole attack: separate the batch, then peel its layers down to the input, or turn its features into pictures."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, unknown_name
from unsum.head import Head, find_head
from unsum.invert.refine import MODES, Mode
from unsum.labels import LABEL_RULES, gather
from unsum.leak import Leak
from unsum.peel import Peeled, obstacle, peel
from unsum.picturing import HOPELESS, Inverses, with_pictures
from unsum.separate import SEPARATORS, separate
from unsum.separate.adaptive import recognise
from unsum.update import Update

Say = Callable[[str], None]
AUTO = "auto"
_SMALLEST_PICTURE = 11  # side of the window that structural similarity is measured in


def attack(
    model: nn.Module,
    update: Update,
    recipe: str = AUTO,
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    label_rule: str | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    inverse: Inverses = None,
    refine: Mode | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Say | None = None,
    steps: Callable[..., None] | None = None,
) -> Leak:
    """Everything that can be read out of one update: a `Leak`, with `.images` where layers peel or the model has an inverse.

    Args:
        recipe: `auto` takes the exact solver; the adaptive separator where that one is not certain and a defence left its
            marks (a noisy or pruned gradient, say); or the ratio method where the solver itself expects to fail. It then
            peels the layers down to the exact inputs where every layer can be undone; any other name is a separator from
            `unsum list`. What cannot be peeled goes to the inverse.
        labels, batch_size: what the attacker knows besides, as in `separate`.
        label_rule: a rule from `unsum list` that finds the labels first, instead of the recipe's own way.
        auxiliary: labelled samples of the attacker's own, for label rules that need them.
        inverse: a trained inverse for this model's backbone, or several; the embedded one by default. One for an inner layer is
            used where the layers above can be peeled, the next one otherwise.
        refine: change the inverse's pictures until they explain the leak: `features`, which raises PSNR, or a published mode
            (`f`, `g`, `gf`). The model must be in the mode, train or eval, that the client trained it in.
        progress: called with a sentence when a new stage begins.
        steps: called as `steps(step, *losses)` by recipes that iterate.
    """
    check_recipe(recipe, label_rule, refine)
    if label_rule is not None and labels is not None:
        raise UnsumError("The labels are given, so there is none to find; leave out labels= or label_rule=.")
    if auxiliary is not None and label_rule is None:
        raise UnsumError("Only label rules use auxiliary data; name one with label_rule=, or leave auxiliary= out.")
    say = progress or (lambda _sentence: None)
    start = time.perf_counter()
    known: dict[str, Any] = {"batch_size": batch_size, "device": device, "seed": seed}
    if label_rule is None:
        say("Separating the batch")
        leak = _separate(model, update, recipe, known | {"labels": labels, "progress": steps})
    else:
        leak = _with_rule(model, update, recipe, label_rule, known | {"auxiliary": auxiliary}, say, steps)
    if recipe == AUTO and inverse is None:
        leak = _peeled(model, update, leak, seed, say)
        if leak.inputs is not None and (leak.images is not None or leak.inputs.ndim == 2):
            return replace(leak, seconds=time.perf_counter() - start)
    leak = with_pictures(model, update, leak, inverse, refine, say, steps)
    return replace(leak, seconds=time.perf_counter() - start)


def _peeled(model: nn.Module, update: Update, leak: Leak, seed: int, say: Say) -> Leak:
    """The leak with its inputs, where every layer can be undone, and a note that says why not otherwise."""
    if leak.predicted_error >= HOPELESS or leak.method != "exact":
        return leak
    reason = obstacle(model, update)
    if reason is not None:
        return replace(leak, notes=[*leak.notes, f"The layers cannot be peeled down to the input: {reason}."])
    say("Peeling layer after layer")
    try:
        peeled = peel(model, update, leak, seed=seed)
    except UnsumError as error:
        return replace(leak, notes=[*leak.notes, f"The layers cannot be peeled: {error}"])
    notes = [*leak.notes, *peeled.notes]
    if not peeled.complete or float(peeled.errors.min()) >= HOPELESS:
        return replace(leak, notes=[*notes, "Peeling did not reach the inputs, so they stay unknown."])
    count = int(peeled.exact.sum())
    notes.append(f"Inputs were peeled layer by layer: {count} of {leak.batch_size} certified exact.")
    images = peeled.inputs.float() if _are_pictures(peeled) else None
    return replace(leak, inputs=peeled.inputs, inputs_exact=peeled.exact, images=images, notes=notes)


def _are_pictures(peeled: Peeled) -> bool:
    """Grey or coloured, and large enough for a score of pictures."""
    shape = peeled.inputs.shape[1:]
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST_PICTURE


def check_recipe(recipe: str, label_rule: str | None = None, refine: str | None = None) -> None:
    """Refuse an unknown recipe, label rule or mode of refinement, before anything is computed for it."""
    names = [AUTO, *(entry.name for entry in SEPARATORS)]
    if recipe not in names:
        raise unknown_name("attack", recipe, names)
    if label_rule is not None:
        LABEL_RULES[label_rule]
    if refine is not None and refine not in MODES:
        raise unknown_name("mode of refinement", refine, MODES)


def steps_of(recipe: str) -> int | None:
    """How many steps a recipe takes that iterates a fixed number of them."""
    if recipe not in [entry.name for entry in SEPARATORS]:
        return None
    option = inspect.signature(SEPARATORS[recipe]).parameters.get("steps")
    return None if option is None else int(option.default)


def _separate(model: nn.Module, update: Update, recipe: str, known: dict[str, Any]) -> Leak:
    return _auto(model, update, known) if recipe == AUTO else separate(model, update, recipe, **known)


def _with_rule(
    model: nn.Module,
    update: Update,
    recipe: str,
    name: str,
    known: dict[str, Any],
    say: Say,
    steps: Callable[..., None] | None,
) -> Leak:
    """Labels by a rule, then the batch with those labels. What was found is not recorded as granted."""
    say("Finding the labels")
    start = time.perf_counter()
    rule, evidence = LABEL_RULES[name], gather(model, update, **known)
    found = rule(evidence)
    say("Separating the batch")
    granted = {"labels": found, "device": known["device"], "seed": known["seed"], "progress": steps}
    leak = _separate(model, update, recipe, granted)
    remarks = rule.needs.remarks(name, evidence.head, model, evidence.knowledge)
    return replace(
        leak,
        knowledge=evidence.knowledge,
        seconds=time.perf_counter() - start,
        notes=[f"Labels were found by the rule {name!r}.", *remarks, *leak.notes],
    )


def _without_bias(model: nn.Module, update: Update) -> Update:
    name = ".".join(filter(None, [find_head(model)[0], "bias"]))
    return replace(update, gradients={key: g for key, g in update.gradients.items() if key != name})


def _auto(model: nn.Module, update: Update, known: dict[str, Any]) -> Leak:
    """The exact solver; where it is not certain and a defence left its marks, the adaptive one; else the ratio method."""
    leak = separate(model, update, "exact", **known)
    if leak.exact:
        return leak
    head = Head.of(model, update, known["device"])
    defended = recognise(head).kind != "none"
    if not defended and head.grad_b is not None:
        alone = separate(model, _without_bias(model, update), "exact", **known)
        if alone.exact:
            reason = (
                "The gradients of the head's weights and of its bias disagree, as clipping each by itself makes them; "
                "the weights' alone was used."
            )
            return replace(alone, seconds=leak.seconds + alone.seconds, notes=[reason, *alone.notes])
    if defended or not bool(head.grad_W.any(0).all()):  # columns held back, as Soteria does
        other = separate(model, update, "adaptive", **known)
        if other.predicted_error < leak.predicted_error:
            reason = (
                f"The exact solver predicted an error of {leak.predicted_error:.1g}, the adaptive separator one of "
            )
            notes = [f"{reason}{other.predicted_error:.1g}, so its answer is given.", *other.notes]
            return replace(other, seconds=leak.seconds + other.seconds, notes=notes)
    if leak.predicted_error < HOPELESS:
        return leak
    try:
        crude = separate(model, update, "fgla", **known)
    except UnsumError:  # no bias gradient, or every class present: nothing to fall back to
        return leak
    reason = f"The exact solver predicted an error of {leak.predicted_error:.1g}, so the ratio method (fgla) was used instead."
    return replace(crude, seconds=leak.seconds + crude.seconds, notes=[reason, *crude.notes])
