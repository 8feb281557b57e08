"""What a page may ask for, and what it asks for, checked entry by entry before anything is
computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch

from unsum.app.shelf import Photo, Shelf
from unsum.data import Batch, share_label, tags
from unsum.defend import DEFENSES, Defense
from unsum.defend.defense import Axis, Switch, has_strength
from unsum.defend.dp import DPSGD, privacy_spent
from unsum.errors import UnsumError, check_name

STOPS = 25  # of a slider
MOST_PHOTOS = 16  # of one round
DELTA = 1e-5  # for which the ε of one step of DP-SGD is said
# Weakest and strongest, wide enough to see the leak come and go on the embedded model, and noise
# prove its ceiling. Not here: `secagg`, which needs other clients' updates; `soteria`, whose many
# backward passes are too slow to watch.
_ENDS = {
    "dp": (0.01, 10.0),
    "noise": (1e-5, 100.0),
    "laplace": (1e-5, 100.0),
    "clip": (100.0, 1e-3),
    "clip-layers": (10.0, 1e-3),
    "prune": (0.0, 0.99),
    "prune-global": (0.0, 0.99),
    "smooth": (0.0, 0.9),
    "mixup": (0.01, 10.0),
    "qsgd": (65536.0, 1.0),
    "quantize": (24.0, 2.0),
}


@dataclass(frozen=True)
class Offer:
    """One line of the menu; a switch has no strengths. A request names a stop, so no other number
    reaches a defense."""

    name: str
    summary: str
    meaning: str
    strengths: list[float]
    # what each strength is worth, where that can be proved
    promises: list[str] = field(default_factory=list)

    def at(self, stop: int) -> Defense:
        kind = DEFENSES[self.name]
        if not self.strengths:
            return cast("type[Switch]", kind)()
        if not 0 <= stop < len(self.strengths):
            raise UnsumError(
                f"The strength of {self.name!r} is one of {len(self.strengths)} stops, counted "
                "from 0."
            )
        return kind(self.strengths[stop])


@cache
def menu() -> dict[str, Offer]:
    """Name → offer, in the order of `unsum list`."""
    offers = {}
    for entry in DEFENSES:
        if not has_strength(entry.method):
            offers[entry.name] = Offer(entry.name, entry.summary, "", [])
        elif entry.name in _ENDS:
            axis = entry.method.axis
            strengths = stops(axis, *_ENDS[entry.name])
            promises = [_epsilon(noise) for noise in strengths] if entry.method is DPSGD else []
            offers[entry.name] = Offer(entry.name, entry.summary, axis.meaning, strengths, promises)
    return offers


def _epsilon(noise: float) -> str:
    """Of one step that every sample takes part in."""
    try:
        spent = privacy_spent(noise, steps=1, sampling_rate=1.0, delta=DELTA, accountant="rdp")
    except UnsumError:  # no Opacus: choosing the defense says how to get it
        return ""
    return f"ε = {spent:.2g} for this update, at δ = {DELTA:g}"


def offer(name: str) -> Offer:
    check_name("defense on this page", name, menu())
    return menu()[name]


def stops(axis: Axis, weakest: float, strongest: float) -> list[float]:
    """Evenly spaced as the axis wants it, in numbers short enough to be read and typed again.

    >>> stops(Axis("bits", spacing="linear", rising=False, whole=True), 4, 2)
    [4.0, 3.0, 2.0]
    """
    places = [i / (STOPS - 1) for i in range(STOPS)]
    if axis.spacing == "geometric":
        values = [float(f"{weakest * (strongest / weakest) ** place:.2g}") for place in places]
    else:
        values = [round(weakest + (strongest - weakest) * place, 2) for place in places]
    if axis.whole:
        values = [float(round(value)) for value in values]
    return sorted(set(values), reverse=strongest < weakest)


@dataclass(frozen=True)
class Order:
    """One round to play: the client's batch, what the photos are called on the page, and the
    defense."""

    truth: Batch
    keys: list[str]
    defense: Defense | None

    @property
    def train(self) -> bool:
        """BatchNorm's mode: DP-SGD has to know one sample's gradient from another's, which the
        batch's statistics mix."""
        return not isinstance(self.defense, DPSGD)


def read_order(content: Any, shelf: Shelf, page: str) -> Order:
    """`{"photos": [{"id", "label"}], "same_label": 0, "defense": null or {"name", "stop"}}`, or one
    sentence."""
    if not isinstance(content, dict):
        raise UnsumError("A round is asked for with a JSON object.")
    rows = content.get("photos")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_PHOTOS:
        raise UnsumError(f"Choose 1 to {MOST_PHOTOS} photos.")
    keys = [_text(row, "id") for row in rows]
    if len(set(keys)) < len(keys):
        raise UnsumError("A photo can be chosen only once.")
    photos = [shelf.get(key, page) for key in keys]
    names = tags()
    labels = [_label(row, photo, names) for row, photo in zip(rows, photos, strict=True)]
    labels = share_label(labels, _whole(content.get("same_label", 0), "same_label"), len(names))
    images = torch.stack([photo.pixels for photo in photos])
    # what somebody's own photos show, no list of tags knows
    if any(photo.page is not None for photo in photos):
        shown = {photo.label for photo in photos}
        names = [
            name if number in shown else f"class {number + 1}" for number, name in enumerate(names)
        ]
    truth = Batch(images, torch.tensor(labels), [photo.title for photo in photos], names)
    wanted = content.get("defense")
    chosen = (
        None
        if wanted is None
        else offer(_text(wanted, "name")).at(_whole(wanted.get("stop", 0), "stop"))
    )
    return Order(truth, keys, chosen)


def _label(row: dict[str, Any], photo: Photo, names: list[str]) -> int:
    if row.get("label") is None and photo.label is not None:
        return photo.label
    label = _text(row, "label")
    if label not in names:
        raise UnsumError(f"There is no label {label[:40]!r}; choose one of the {len(names)} tags.")
    return names.index(label)


def _text(content: Any, field: str) -> str:
    value = content.get(field) if isinstance(content, dict) else None
    if not isinstance(value, str):
        raise UnsumError(f"The field {field!r} must be a text.")
    return value


def _whole(value: Any, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnsumError(f"The field {field!r} must be a whole number.")
    return value
