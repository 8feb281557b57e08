"""From a leak to pictures: peel down to the layer that an inverse reads, decode, and refine where
asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from unsum.attack.peeling import peeled_or_refused
from unsum.attack.reach import HOPELESS
from unsum.errors import UnsumError, needed
from unsum.invert import Inverse, invert, load_inverse
from unsum.invert.pixels import find_reach, guess_pixels, solve_pixels
from unsum.invert.refine import Mode
from unsum.invert.refine import refine as refine_pictures
from unsum.leak import Leak
from unsum.models.built import looks_at_pictures
from unsum.notes import Code, Note
from unsum.peel import Peeled
from unsum.running.deadline import out_of_time
from unsum.running.progress import SILENT, Progress
from unsum.update import Update

Inverses = str | Path | Sequence[str | Path] | None
_BLURRED = (
    "Pictures are blurred as far as features are uncertain, up to the mean of public photos where "
    "nothing is known."
)
_RESEMBLES = 0.2  # misfit to a map up to which a picture shows what is on the true one
_PATIENCE = 300.0  # seconds for pixels: a GPU needs one of them for pictures of 32², two cores most


def with_pictures(
    model: nn.Module,
    update: Update,
    leak: Leak,
    inverses: Inverses,
    mode: Mode | None = None,
    progress: Progress = SILENT,
) -> Leak:
    """The leak with pictures from the first inverse that can be used: one for an inner layer needs
    that layer peeled first."""
    given = inverses is not None
    paths = [inverses] if inverses is None or isinstance(inverses, str | Path) else list(inverses)
    try:
        loaded = [load_inverse(model, path) for path in paths]
    except UnsumError as reason:
        if given:  # asked for by name: a refusal must not pass as a note
            raise
        if not looks_at_pictures(model):  # of sequences or rows there is nothing to draw
            return leak
        said = [Note(str(reason), Code.NEEDS_INVERSE)]
        said += [_other_layer(model, leak)] if leak.inner else []
        return replace(leak, notes=[*leak.notes, *said])
    for inverse in sorted(loaded, key=lambda found: found.layer is None):
        leak = _read_by(model, update, leak, inverse, progress)
        if inverse.layer is None or inverse.layer in leak.inner:
            break
    else:
        return leak  # its notes say why
    progress.say("Turning features into pictures")
    images = invert(model, leak, inverse=inverse)
    knowledge = replace(leak.knowledge, auxiliary_photos=inverse.photos)
    blank = inverse.blank(images.shape[-1]) if inverse.blurs(leak) else None
    leak = replace(leak, images=images, knowledge=knowledge, blank=blank)
    if inverse.blurs(leak) and float(needed(leak.errors, "An error").max()) > HOPELESS:
        leak = replace(leak, notes=[*leak.notes, _BLURRED])
    return leak if mode is None else _refined(model, update, leak, mode, inverse, progress)


def walked_down(
    model: nn.Module, update: Update, leak: Leak, seed: int, progress: Progress = SILENT
) -> Leak:
    """The leak with what the convolutions below its maps read, as far down as blocks can be undone;
    a note says how far."""
    if not any(found.ndim == 4 for found in leak.inner.values()) or out_of_time(
        "blocks below the maps"
    ):
        return leak
    progress.say("Undoing block after block")
    try:
        shape = find_reach(model, leak).shape
        peeled = peeled_or_refused(model, update, leak, "residual", shape=shape, seed=seed)
    except UnsumError as error:
        return replace(leak, notes=[*leak.notes, str(error)])
    inner, notes = leak.inner | peeled.inner, [*leak.notes, *peeled.notes]
    return replace(leak, inner=inner, partly=peeled.partly, hint=peeled.hint, notes=notes)


def with_pixels(
    model: nn.Module, update: Update, leak: Leak, seed: int, progress: Progress = SILENT
) -> Leak:
    """The leak with its pictures solved for, where it holds a map that tells them, else with a note
    that says why not."""
    if (
        not any(found.ndim == 4 for found in leak.inner.values())
        or not leak.predicted_error < HOPELESS
    ):
        return leak
    if out_of_time("pixels out of the maps"):
        return leak
    try:
        found = solve_pixels(model, update, leak, seed=seed, seconds=_PATIENCE, progress=progress)
    except UnsumError as error:
        return replace(leak, notes=[*leak.notes, str(error)])
    notes = [*leak.notes, *found.notes]
    if not bool((found.misfit < _RESEMBLES).any()):
        return replace(
            leak,
            notes=[
                *notes,
                "No picture was found that explains its map, so the pixels stay unknown.",
            ],
        )
    images = found.images.float()
    if not bool(found.errors.isfinite().any()):  # something alike, which is no input
        return replace(leak, images=images, notes=notes)
    return replace(leak, images=images, inputs=found.images, inputs_exact=found.exact, notes=notes)


def with_guess(model: nn.Module, leak: Leak, seed: int, progress: Progress = SILENT) -> Leak:
    """The leak with blurred pictures, where it holds a map that tells so much, and nothing drew
    better ones."""
    held = any(found.ndim == 4 for found in leak.inner.values()) and leak.predicted_error < HOPELESS
    if leak.images is not None or not held or out_of_time("a guess at the pictures"):
        return leak
    progress.say("Guessing the pictures")
    try:
        images, note = guess_pixels(model, leak, seed=seed)
    except UnsumError:  # the notes say already that the map does not determine the pixels
        return leak
    return replace(leak, images=images.float(), notes=[*leak.notes, note])


def _read_by(
    model: nn.Module, update: Update, leak: Leak, inverse: Inverse, progress: Progress
) -> Leak:
    """The leak with what the inverse's layer read, or with a note that says why not."""
    layer = inverse.layer
    if layer is None or layer in leak.inner:
        return leak
    if leak.inner:
        return replace(
            leak,
            notes=[
                *leak.notes,
                f"The inverse reads what {layer!r} reads. {_other_layer(model, leak)}",
            ],
        )
    if not leak.exact:
        return _another_attempt(leak, layer)
    progress.say("Peeling down to an inner layer")
    try:
        peeled = _peeled_to(model, update, leak, layer, int(inverse.card["size"]))
    except UnsumError as error:
        return replace(leak, notes=[*leak.notes, str(error)])
    sure = (
        f"predicted error {float(peeled.errors.max()):.1g}"
        if bool(peeled.exact.all())
        else "not certified"
    )
    note = (
        f"The layers above {layer!r} were peeled ({sure}), and the pictures are made of what it "
        "read."
    )
    return replace(
        leak, inner={**leak.inner, layer: peeled.inputs}, notes=[*leak.notes, *peeled.notes, note]
    )


def _other_layer(model: nn.Module, leak: Leak) -> Note:
    """Which inverse would draw what the spans and the walk found: one of the deepest map, which
    tells the most."""
    name = next(name for name, _ in model.named_modules() if name in leak.inner)
    made = f"`unsum train-inverse --layer {name}` makes an inverse for that."
    return Note(f"The attack found what {name!r} reads; {made}", Code.NEEDS_INVERSE)


def _another_attempt(leak: Leak, layer: str) -> Leak:
    """The spans' answer, where the head's was preferred: neither is certain, and of the head's
    there is nothing to draw."""
    for found in (attempt.leak for attempt in leak.tried):
        if found is not None and layer in found.inner and found.predicted_error < HOPELESS:
            note = (
                f"The pictures are made of what {layer!r} read, so the answer of {found.method!r} "
                "is given."
            )
            return replace(found, notes=[note, *found.notes], tried=leak.tried)
    return replace(
        leak,
        notes=[*leak.notes, f"{layer!r} was not peeled, because the features are not certified."],
    )


def _peeled_to(model: nn.Module, update: Update, leak: Leak, layer: str, size: int) -> Peeled:
    """What `layer` read: dense layers are undone as far down as they go, blocks of convolutions
    down to the layer."""
    if not isinstance(model.get_submodule(layer), nn.Linear):
        return peeled_or_refused(
            model, update, leak, "residual", layer=layer, shape=(3, size, size)
        )
    peeled = peeled_or_refused(model, update, leak, "layers")
    end = (
        "the input"
        if peeled.complete
        else repr(peeled.layers[-1].name)
        if peeled.layers
        else "the head"
    )
    if end != repr(layer):
        raise UnsumError(f"The inverse reads what {layer!r} reads, and peeling ends at {end}.")
    return peeled


def _refined(
    model: nn.Module, update: Update, leak: Leak, mode: Mode, inverse: Inverse, progress: Progress
) -> Leak:
    """The leak with refined pictures, or a note that says why they stayed as they were."""
    if not leak.predicted_error < HOPELESS or leak.images is None:
        return replace(
            leak,
            notes=[*leak.notes, "The pictures were not refined: the features are too uncertain."],
        )
    progress.say("Refining the pictures")
    found = refine_pictures(
        model, update, leak, leak.images, mode=mode, inverse=inverse, progress=progress
    )
    watched = found.history["watched"]
    if not found.improved:
        note = (
            "Refined pictures explained the gradients held out no better, so the inverse's own "
            "were kept."
        )
    else:
        note = (
            f"The pictures were refined (mode {mode}): their misfit to gradients held out fell "
            f"from {watched[0]:.2g} to {watched.min():.2g}."
        )
    return replace(leak, images=found.images, notes=[*leak.notes, note])
