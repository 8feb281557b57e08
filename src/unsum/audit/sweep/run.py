"""Which strengths of a defense to try, from what the user wrote: `noise=1e-3..10/6`,
`clip=4,1,0.25` or `sign`; and every one of them tried: the same batch, the same attack, the same
training; only the defense changes."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from unsum.audit.bounds import LIMIT, Bounds
from unsum.audit.groups import (
    Attacker,
    AuditLimits,
    ClientSamples,
    ClientTraining,
    Loading,
    grouped,
)
from unsum.audit.inputs import Data, Inputs
from unsum.audit.leakage import DEFAULT_LEVEL
from unsum.audit.provenance import Privacy, Provenance, fingerprint, samples_of
from unsum.audit.result import Setting
from unsum.audit.sweep.bench import Bench, Point, SampleLeak, shown
from unsum.audit.sweep.report import Sweep
from unsum.audit.sweep.result import DEFAULT_RANGE, Curve
from unsum.audit.sweep.task import Accuracy, describe, photo_tiles, pictures_from_file
from unsum.audit.text import is_text
from unsum.client.step import ordered
from unsum.data.table_file import is_table
from unsum.defend import DEFENSES, Defense, Noise
from unsum.defend.defense import Axis, Switch, has_strength
from unsum.errors import UnsumError
from unsum.files.report_folder import UNFINISHED
from unsum.files.tensor_file import read_tensors
from unsum.files.writing import save_tensors, write_whole
from unsum.models import DEFAULT_MODEL
from unsum.running.progress import SILENT, Progress
from unsum.running.sharing import sharing_models
from unsum.running.watching import shown_in_notebooks
from unsum.score.labels import LabelsRead

DEFAULT_STEPS = 6  # strengths from one end to the other, where nobody says otherwise
MOST_STEPS = 24  # strengths of one defense: a budget
_STRONGER = math.sqrt(10)  # times a noise that is not proven, to look for one that is
# times at most: ten thousand times the strongest that was asked for. Chosen by: arbitrary budget
_REACH = 8


@dataclass(frozen=True)
class Strengths:
    """One defense at several strengths, the weakest first; a switch has no axis and one state to
    try."""

    name: str
    axis: Axis | None
    defenses: list[Defense]
    ranged: bool = False  # from one end to the other, instead of one by one


def plan(text: str) -> Strengths:
    """Read one `--sweep`.

    >>> plan("noise=1e-4..1e-1/4").defenses
    [Noise(0.0001), Noise(0.001), Noise(0.01), Noise(0.1)]
    >>> plan("clip=0.5,4").defenses
    [Clip(4), Clip(0.5)]
    """
    name, equals, wanted = (part.strip() for part in text.partition("="))
    kind = DEFENSES[name]
    if not has_strength(kind):
        if equals:
            raise UnsumError(
                f"The sweep {text!r} cannot be read: {name!r} is on or off; write it as {name!r}."
            )
        return Strengths(name, None, [cast("type[Switch]", kind)()])
    if not wanted:
        raise _unreadable(text, "its strengths are missing", name)
    if ".." in wanted:
        strengths = _range(text, name, wanted, kind.axis)
    else:
        strengths = [_number(text, name, part) for part in wanted.split(",")]
    if len(strengths) > MOST_STEPS:
        raise UnsumError(
            f"The sweep {text!r} has {len(strengths)} strengths; try at most {MOST_STEPS} at a "
            "time."
        )
    weakest_first = sorted(set(strengths), reverse=not kind.axis.rising)
    return Strengths(
        name, kind.axis, [kind(strength) for strength in weakest_first], ranged=".." in wanted
    )


def _range(text: str, name: str, wanted: str, axis: Axis) -> list[float]:
    bounds, slash, count = wanted.partition("/")
    low_text, _, high_text = bounds.partition("..")
    low, high = _number(text, name, low_text), _number(text, name, high_text)
    steps = int(count[:9]) if count.isdecimal() else 0 if slash else DEFAULT_STEPS
    if not 2 <= steps <= MOST_STEPS:
        raise UnsumError(
            f"The sweep {text!r} cannot be read: after the slash comes a whole number of strengths "
            f"from 2 to {MOST_STEPS}."
        )
    if not low < high:
        raise UnsumError(
            f"The sweep {text!r} cannot be read: write the smaller number first, LOW..HIGH."
        )
    if axis.spacing == "geometric" and low <= 0:
        raise UnsumError(
            f"The strengths of {name!r} are spaced by a factor, so a range of them must start "
            f"above 0, not at {low:g}; no defense at all is tried in any case."
        )
    places = [i / (steps - 1) for i in range(steps)]
    if axis.spacing == "geometric":
        between = [low * (high / low) ** place for place in places]
    else:
        between = [low + (high - low) * place for place in places]
    if axis.whole:
        return [float(round(value)) for value in between]
    # Three digits are enough to choose by, and can be typed again; the bounds stay as they were
    # written.
    return [low, *(float(f"{value:.3g}") for value in between[1:-1]), high]


def _number(text: str, name: str, part: str) -> float:
    try:
        value = float(part)
    except ValueError:
        raise _unreadable(text, f"{part.strip()!r} is not a number", name) from None
    if not math.isfinite(value):
        raise _unreadable(text, f"{part.strip()!r} is not a finite number", name)
    return value


def _unreadable(text: str, reason: str, name: str) -> UnsumError:
    example = DEFENSES[name].example
    low, high = (2, 16) if DEFENSES[name].axis.whole else (example / 100, example)
    return UnsumError(
        f"The sweep {text!r} cannot be read: {reason}; write it as '{name}={low:g}..{high:g}' or "
        f"'{name}={low:g},{high:g}'."
    )


_MOST_POINTS = 60  # strengths of all defenses: more are too many for one page


@shown_in_notebooks
@grouped
@sharing_models()  # rounds under several defenses are of one model
def sweep(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | None = None,
    *,
    loading: Loading = Loading(),
    samples: ClientSamples = ClientSamples(),
    client: ClientTraining = ClientTraining(),
    attacker: Attacker = Attacker(),
    limits: AuditLimits = AuditLimits(),
    over: str | Iterable[str] = DEFAULT_RANGE,
    keep_under: float = DEFAULT_LEVEL,
    defenses: Defense | Iterable[Defense] = (),
    utility: bool = True,
    utility_data: str | Path | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    command: str = "",
    progress: Progress = SILENT,
    unfinished: str | Path | None = None,
) -> Sweep:
    """How strong must a defense be so that one update gives no sample away, and what does it cost?

    Args:
        over: what to vary: `NAME=LOW..HIGH`, `NAME=LOW..HIGH/STEPS`, `NAME=a,b,c`, or the name of a
            defense that is on or off;
            one or several. A range of noise of which no strength is proven gets one more: the first
                beyond it that is.
        keep_under: the leakage, from 0 to 1, that no sample may reach: 1 is the sample itself, 0 is
            no better than answering with a guess that needs no update (see
            `unsum.score.reference`).
        defenses: applied before the varied one, in order, at every strength.
        utility: measure the accuracy of a small federated training at every strength, too.
        utility_data: an .npz file with `images` and `labels` to train on instead of tiles of the
            embedded photos.
        model, data, loading, samples, client, attacker, limits, device, seed, command: as in
            `unsum.audit`; every strength has the time limit for itself.
        progress: an `unsum.running.progress.Progress`, told the stages, and the parts that are done
            after every strength.
        unfinished: a folder that keeps the strengths that are done, so that the same sweep, if
            interrupted, goes on with the others; `sweep.write` to the same folder clears it.

    Returns:
        A `Sweep`; `sweep.write("folder")` makes the page.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> result = unsum.sweep(model, data, over="noise=1e-6,10", utility=False)
        >>> [round(point.worst, 1) for point in result.curves[0].points]
        [1.0, 0.0]
    """
    start = time.perf_counter()
    if not 0 < keep_under <= 1:
        raise UnsumError(
            f"The leakage to keep under is a share above 0 and up to 1, not {keep_under:g}."
        )
    before = list(defenses.parts() if isinstance(defenses, Defense) else defenses)
    plans = [plan(text) for text in ([over] if isinstance(over, str) else over)]
    _check(plans, before)
    _check_setting(client, attacker)
    options = attacker.options(client, limits, device, seed)
    if not is_table(data) and is_text(model):
        raise UnsumError(
            "Sweeps are of photos and tables; audit a language model under one --defense at a time."
        )
    training = client.training
    progress.say("Loading the model and the client's samples")
    pictures = (
        None
        if not utility
        else photo_tiles()
        if utility_data is None
        else pictures_from_file(utility_data)
    )
    inputs = Inputs(model, data, None, loading, samples, client.declared_loss, seed)
    loaded, truth = inputs.simulated()
    if truth.resized:
        progress.say(truth.resized)
    network = loaded.model.to(options.device)
    bench = Bench(
        network, truth, options, client.train, training, pictures=pictures, progress=progress
    )
    for p in plans:
        bench.sent([*before, p.defenses[0]])
    done, total = itertools.count(1), 1 + bool(before) + sum(len(p.defenses) for p in plans)

    def counted(point: Point) -> Point:
        progress.part(min(next(done), total), total)  # a strength may be added
        return point

    weights_sent = fingerprint(network.state_dict())
    made = Provenance.of(
        model=weights_sent, data=samples_of(truth), privacy=Privacy(None, "")
    )  # each strength has its own
    undefended = bench.play([])
    leak = undefended.leak
    references = [counted(bench.point(undefended, []))]
    named = replace(inputs, model=loaded.name, data=data if isinstance(data, str | Path) else None)
    told = (named, replace(options, device=None), client.train, training, utility, utility_data)
    kept = Unfinished(None if unfinished is None else Path(unfinished), repr(told))

    def point(chain: list[Defense], strength: float | None = None) -> Point:
        return counted(kept(shown(chain), lambda: bench.defended(chain, strength)))

    bounds = Bounds.of(bench, level=keep_under, progress=SILENT)

    def bounded(chain: list[Defense], strength: float | None = None) -> Point:
        found = point(chain, strength)
        # for each strength: one near the level would leave none to the others
        bounds.seconds = LIMIT
        if found.ceiling == found.ceiling:
            return found
        progress.say(f"{shown(chain)}: its ceiling")
        return replace(found, **bounds.figures(chain))

    references = [replace(references[0], **bounds.figures([]))]
    if before:
        references.append(bounded(before))
    curves = list[Curve]()
    for p in plans:
        curve = Curve(
            p.name,
            p.axis,
            [bounded([*before, d], d.strength if p.axis else None) for d in p.defenses],
        )
        proof = _proof(p, curve, before, bounds, progress) if p.ranged else None
        if proof is not None:
            curve = replace(
                curve, points=[*curve.points, bounded([*before, proof], proof.strength)], added=True
            )
        curves.append(curve)
    how: dict[str, Any] = {
        "train": client.train,
        "defenses": shown(before),
        "command": command,
        "training": training,
    }
    setting = Setting.of(
        loaded.name, leak, options, samples=len(truth.images), provenance=made, **how
    )
    return Sweep(
        setting,
        keep_under,
        references,
        curves,
        describe(pictures, bench.scale, network) if pictures else None,
        leak.knowledge.granted(),
        truth.titles,
        time.perf_counter() - start,
    )


def _proof(
    tried: Strengths, curve: Curve, before: list[Defense], bounds: Bounds, progress: Progress
) -> Noise | None:
    """The first noise beyond what was tried that is proven, where none of that is: distances are
    measured already."""
    strongest = tried.defenses[-1]
    if not isinstance(strongest, Noise) or curve.proven(bounds.level) is not None:
        return None
    for place in range(1, _REACH + 1):
        noise = Noise(float(f"{strongest.strength * _STRONGER**place:.2g}"))
        bounds.seconds = LIMIT
        progress.say(f"{shown([*before, noise])}: its ceiling")
        ceiling = bounds.figures([*before, noise])["ceiling"]
        if math.isnan(ceiling) or ceiling < bounds.level:
            return None if math.isnan(ceiling) else noise
    return None


def _check_setting(client: ClientTraining, attacker: Attacker) -> None:
    """Refuse what a sweep cannot vary a defense of."""
    if attacker.server is not None:
        raise UnsumError("A sweep is of honest servers; leave the server (--server) out.")
    if client.buffers:
        raise UnsumError("A sweep is of gradients; leave the buffers (--buffers) out.")
    if client.own_loss is not None:
        raise UnsumError(
            "A sweep is of losses that attacks know; give one by name, or of unsum.losses."
        )


def _check(plans: list[Strengths], before: list[Defense]) -> None:
    """Refuse what could only fail later: nothing to try, too much, or an order that no client can
    keep."""
    if not plans:
        raise UnsumError(f"There is nothing to sweep over; write, for example, {DEFAULT_RANGE!r}.")
    total = sum(len(p.defenses) for p in plans)
    if total > _MOST_POINTS:
        raise UnsumError(
            f"{total} strengths are too many for one page; try at most {_MOST_POINTS} together."
        )
    for p in plans:
        ordered([*before, p.defenses[0]])


class Unfinished:
    """The strengths that are done, on disk until the page is written: an interrupted sweep goes on
    with the others.

    Points by their name; one that was made under other settings is made anew. `folder` None keeps
    nothing.
    """

    def __init__(self, folder: Path | None, settings: str) -> None:
        self._folder = None if folder is None else folder / UNFINISHED
        self._settings = hashlib.sha256(settings.encode()).hexdigest()[:16]

    def __call__(self, name: str, make: Callable[[], Point]) -> Point:
        if self._folder is None:
            return make()
        path = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.safetensors"
        found = _read(path, self._settings)
        if found is None:
            found = make()
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda part: _write(found, part, self._settings))
        return found


def _write(point: Point, path: Path, settings: str) -> None:
    read = point.labels
    named = (
        None
        if read is None
        else [read.right, read.total, read.by_chance, read.by, list(read.rows.shape)]
    )
    content = asdict(replace(point, labels=None)) | {"pictures": None, "labels": named}
    pictures = zip(("original", "recovered"), point.pictures or (), strict=False)
    tensors = {
        name: picture.cpu().contiguous() for name, picture in pictures if picture is not None
    }
    save_tensors(
        tensors or {"none": torch.zeros(1)},
        path,
        {"settings": settings, "point": json.dumps(content)},
    )


def _read(path: Path, settings: str) -> Point | None:
    """The point, or None if there is none, it is damaged, or it belongs to another sweep."""
    try:
        file = read_tensors(path, "point")
        if file.metadata["settings"] != settings:
            return None
        content = json.loads(file.metadata["point"])
        content["samples"] = [SampleLeak(**row) for row in content["samples"]]
        # as a page needs them: how many were named, and how many are right
        if content["labels"] is not None:
            right, total, by_chance, by, shape = content["labels"]
            content["labels"] = LabelsRead(right, total, by_chance, by, torch.zeros(shape))
        content["accuracy"] = content["accuracy"] and Accuracy(**content["accuracy"])
        if "original" in file.tensors:
            content["pictures"] = file.tensors["original"], file.tensors.get("recovered")
        return Point(**content)
    except Exception:  # whatever is wrong with it, it can be made again
        return None
