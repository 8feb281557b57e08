"""A whole attack: separate the batch, then peel its layers down to the input, or turn its features into pictures; or match the
whole gradient."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.pictures import HOPELESS, Inverses, with_pictures
from unsum.errors import UnsumError, unknown_name
from unsum.head import Head, find_head
from unsum.invert import load_inverse
from unsum.invert.refine import MODES, Mode
from unsum.labels import LABEL_RULES, gather
from unsum.leak import Leak
from unsum.losses import Loss
from unsum.match import MATCHERS, match
from unsum.models.language import is_language_model, is_tied
from unsum.peel import Peeled, obstacle, peel
from unsum.separate import SEPARATORS, separate
from unsum.separate.adaptive import recognize
from unsum.separate.misfit import relative_misfit
from unsum.update import Update

Say = Callable[[str], None]
AUTO = "auto"
_MATCH_OPTIONS = (
    "image_size",
    "auxiliary",
    "checkpoint",
    "checkpoint_seconds",
    "preview",
)  # of `match` itself, not of one method
_CLEARLY = 1.5  # times as much of the gradient left unexplained, which shrinking noisy features does not do
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
    options: Mapping[str, Any] | None = None,
    loss: str | Loss | None = None,
) -> Leak:
    """Everything that can be read out of one update: a `Leak`, with `.images` where layers peel, the model has an inverse, or
    the recipe matches gradients.

    Args:
        recipe: `auto` takes the exact solver, or `local-steps` where the update says that the client took several; the
            adaptive separator where that one is not certain and a defense left its marks (a noisy or pruned gradient, say); or
            the ratio method where the solver itself expects to fail. It then peels the layers down to the exact inputs where
            every layer can be undone; any other name is a separator or a gradient-matching method from `unsum list`, the latter
            with options as in `ig:steps=2000,restarts=4`. What a separator found goes to the inverse. A language
            model's text is read by `text`, into `leak.tokens`.
        labels, batch_size: what the attacker knows besides, as in `separate`.
        label_rule: a rule from `unsum list` that finds the labels first, instead of the recipe's own way.
        auxiliary: labeled samples of the attacker's own, for label rules that need them.
        inverse: a trained inverse for this model's backbone, or several; the embedded one by default. One for an inner layer is
            used where the layers above can be peeled, the next one otherwise.
        refine: change the inverse's pictures until they explain the leak: `features`, which raises PSNR, or a published mode
            (`f`, `g`, `gf`). The model must be in the mode, train or eval, that the client trained it in.
        progress: called with a sentence when a new stage begins.
        steps: called as `steps(step, *losses)` by recipes that iterate.
        loss: what the client minimized, if not cross-entropy, as in `separate`; for `auto` and `exact`.
        options: of a gradient-matching method, as `unsum.match.match` takes them: `{"image_size": 32, "steps": 2000}`.
    """
    check_recipe(recipe, label_rule, refine)
    if label_rule is not None and labels is not None:
        raise UnsumError("The labels are given, so there is none to find; leave out labels= or label_rule=.")
    if auxiliary is not None and label_rule is None and not (is_matcher(recipe) and uses_auxiliary(recipe)):
        raise UnsumError(
            "Only label rules use auxiliary data, and the attack 'lti'; name one of them, or leave auxiliary= out."
        )
    say = progress or (lambda _sentence: None)
    if is_matcher(recipe) and loss is not None:
        raise UnsumError(f"The attack {recipe!r} assumes cross-entropy; leave loss= out.")
    if is_matcher(recipe):
        granted = {"labels": labels, "batch_size": batch_size, "label_rule": label_rule, "auxiliary": auxiliary}
        where: dict[str, Any] = {"device": device, "seed": seed, "progress": steps}
        return _matched(model, update, recipe, inverse, refine, say, granted | where | dict(options or {}))
    if options:
        raise UnsumError(f"The attack {recipe!r} takes no options here; leave {next(iter(options))!r} out.")
    start = time.perf_counter()
    known: dict[str, Any] = {"batch_size": batch_size, "device": device, "seed": seed}
    if loss is not None:
        if label_rule is not None:
            raise UnsumError("Label rules assume cross-entropy; leave out label_rule= or loss=.")
        known["loss"] = loss
    if label_rule is None:
        say("Separating the batch")
        leak = _separate(model, update, recipe, known | {"labels": labels, "progress": steps})
    else:
        leak = _with_rule(model, update, recipe, label_rule, known | {"auxiliary": auxiliary}, say, steps)
    if leak.tokens is not None or is_language_model(model):  # text: there is nothing to draw
        return replace(leak, seconds=time.perf_counter() - start)
    if recipe == AUTO and inverse is None:
        leak = _peeled(model, update, leak, seed, say)
        if leak.inputs is not None and (leak.images is not None or leak.inputs.ndim == 2):
            return replace(leak, seconds=time.perf_counter() - start)
    leak = with_pictures(model, update, leak, inverse, refine, say, steps)
    return replace(leak, seconds=time.perf_counter() - start)


def _matched(
    model: nn.Module,
    update: Update,
    recipe: str,
    inverse: Inverses,
    refine: Mode | None,
    say: Say,
    given: dict[str, Any],
) -> Leak:
    """Gradient matching: the whole gradient to pictures, with no inverse between; one that is given tells their size."""
    if refine is not None:
        raise UnsumError("Gradient matching refines its pictures itself; leave refine= out.")
    name, options = _parsed(recipe)
    if inverse is not None:
        first = inverse if isinstance(inverse, str | Path) else inverse[0]
        given = {"image_size": int(load_inverse(model, first).card["size"])} | given
    say("Matching gradients")
    return match(model, update, name, **(given | options))


def _peeled(model: nn.Module, update: Update, leak: Leak, seed: int, say: Say) -> Leak:
    """The leak with its inputs, where every layer can be undone, and a note that says why not otherwise."""
    if leak.predicted_error >= HOPELESS or leak.method != "exact" or leak.loss != "cross-entropy":
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
    """Gray or colored, and large enough for a score of pictures."""
    shape = peeled.inputs.shape[1:]
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST_PICTURE


def check_recipe(recipe: str, label_rule: str | None = None, refine: str | None = None) -> None:
    """Refuse an unknown recipe, option, label rule or mode of refinement, before anything is computed for it."""
    name, options = _parsed(recipe)
    names = [AUTO, *(entry.name for entry in SEPARATORS), *(entry.name for entry in MATCHERS)]
    if name not in names:
        raise unknown_name("attack", name, names)
    if is_matcher(recipe):
        own = {key: value for key, value in options.items() if key not in _MATCH_OPTIONS}
        MATCHERS[name].check_options(own)
    elif options or ":" in recipe:
        raise UnsumError(f"The attack {name!r} takes no options here; leave {recipe.partition(':')[2]!r} out.")
    if label_rule is not None:
        LABEL_RULES[label_rule]
    if refine is not None and refine not in MODES:
        raise unknown_name("mode of refinement", refine, MODES)


def is_matcher(recipe: str) -> bool:
    """Whether a recipe, with or without options, is a gradient-matching method."""
    return recipe.partition(":")[0] in [entry.name for entry in MATCHERS]


def uses_auxiliary(recipe: str) -> bool:
    """Whether a gradient-matching method learns from photos of the attacker's own."""
    return MATCHERS[recipe.partition(":")[0]].needs.auxiliary


def _parsed(recipe: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of `name` or `name:key=value,key=value`."""
    name, _, text = recipe.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UnsumError(f"Options of an attack read NAME:KEY=VALUE,KEY=VALUE; {part!r} has no '='.")
        options[key.strip()] = _value(value.strip())
    return name, options


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def steps_of(recipe: str) -> int | None:
    """How many steps a recipe takes that iterates a fixed number of them."""
    name, options = _parsed(recipe)
    if is_matcher(recipe):
        found = options.get("steps", MATCHERS[name].options.get("steps"))
        return found if isinstance(found, int) else None
    if name not in [entry.name for entry in SEPARATORS]:
        return None
    option = inspect.signature(SEPARATORS[name]).parameters.get("steps")
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


def _text(model: nn.Module, update: Update, known: dict[str, Any]) -> Leak:
    """The whole text; where it is not certain, the head's own equation may still give every position, in no order."""
    leak = separate(model, update, "text", **known)
    if leak.exact or is_tied(model):
        return leak
    positions = separate(model, update, "exact", **known)
    if not positions.exact:
        return leak
    reason = (
        "The sequences were not found, so positions are given in no order: the head's equation needs no forward pass."
    )
    return replace(positions, seconds=leak.seconds + positions.seconds, notes=[reason, *leak.notes, *positions.notes])


def _contradicted(head: Head, other: Leak, leak: Leak) -> bool:
    """Whether the two found other labels and the second explains the gradient better: an error predicted for the wrong batch
    says nothing. An answer without hope contradicts nobody: pruned gradients are best fitted by too many samples."""
    if leak.predicted_error >= HOPELESS or other.labels.sort().values.tolist() == leak.labels.sort().values.tolist():
        return False
    left = [relative_misfit(head, one.logits, one.targets, one.scale * one.features) for one in (other, leak)]
    return left[0] > _CLEARLY * left[1]


def _auto(model: nn.Module, update: Update, known: dict[str, Any]) -> Leak:
    """The exact solver, or its like for several local steps; where it is not certain and a defense left its marks, the
    adaptive one; else the ratio method."""
    if is_language_model(model):
        return _text(model, update, known)
    several = update.training is not None and update.training.several_steps and update.kind == "delta"
    if several and known.get("loss") is None:
        leak = separate(model, update, "local-steps", **known)
        if leak.predicted_error < HOPELESS:
            return leak
    leak = separate(model, update, "exact", **known)
    if leak.exact or known.get("loss") is not None:
        return leak
    head = Head.of(model, update, known["device"])
    defended = recognize(head).kind != "none"
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
        if other.predicted_error < leak.predicted_error and not _contradicted(head, other, leak):
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
