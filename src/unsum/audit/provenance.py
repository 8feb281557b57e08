"""Where a report comes from: its date, what exactly was audited (SHA-256), and the ε that the
client's defenses promise, if any.

A hash is of the numbers, whatever file they came in: for every tensor, in the order of their names,
its name, kind and shape as text with a zero byte behind each, and its bytes.
"""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import torch
from torch import Tensor

from unsum.ceiling.worst_case import DELTA as DELTA
from unsum.ceiling.worst_case import WorstCase
from unsum.client.step import Stage, ordered
from unsum.data import Batch
from unsum.defend import (
    DPSGD,
    QSGD,
    BFloat16,
    Clip,
    ClipLayers,
    Defense,
    DropBias,
    DropHead,
    Float16,
    Laplace,
    Noise,
    Prune,
    PruneGlobal,
    Quantize,
    Sign,
    SmoothLabels,
)
from unsum.defend.platforms import FlowerLocalDP
from unsum.version import __version__

_LARGE = 10.0  # e^10 is 22,000: so much likelier may one sample make an answer
CAPTURED = "Unknown: the update was captured elsewhere."
_NOT_LARGER = (
    Clip,
    ClipLayers,
    Prune,
    PruneGlobal,
    DropBias,
    DropHead,
)  # none of them makes the norm of an update larger
_BLIND = (
    Noise,
    Laplace,
    Quantize,
    QSGD,
    Sign,
    Float16,
    BFloat16,
    *_NOT_LARGER,
)  # change an update without a look at the data
_ALONE = "for this update alone; every further round adds to it"


@dataclass(frozen=True)
class Privacy:
    """`epsilon` at δ = `DELTA`, and a sentence that says for whom it holds, or why there is
    none."""

    epsilon: float | None
    sentence: str


@dataclass(frozen=True)
class Provenance:
    """Empty where it is not known."""

    date: str = ""  # ISO 8601, UTC
    model_sha256: str = ""
    data_sha256: str = ""
    update_sha256: str = ""
    epsilon: float | None = None
    privacy: str = ""

    @classmethod
    def of(
        cls,
        *,
        model: str,
        data: Mapping[str, Tensor] | None = None,
        update: Mapping[str, Tensor] | None = None,
        privacy: Privacy = Privacy(None, CAPTURED),
    ) -> Provenance:
        """Of an audit that is made now. `model` is the hash of its weights as the client got them:
        a round may change buffers."""
        held, sent = ("" if tensors is None else fingerprint(tensors) for tensors in (data, update))
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(date, model, held, sent, privacy.epsilon, privacy.sentence)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What a page shows, by name."""
        told = {
            "Date": self.date.replace("T", " ").replace("+00:00", " UTC"),
            "SHA-256 of the model's weights": self.model_sha256,
            "SHA-256 of the data": self.data_sha256,
            "SHA-256 of the update": self.update_sha256,
            "Differential privacy": self.privacy,
        }
        return [(name, value) for name, value in told.items() if value]


def versions() -> dict[str, str]:
    """Of what computed the audit."""
    return {
        "unsum": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
    }


def samples_of(batch: Batch) -> dict[str, Tensor]:
    """What a client trains on, to be hashed."""
    return {"inputs": batch.images, "targets": batch.targets}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of named tensors.

    >>> fingerprint({"w": torch.tensor([1.0])})[:16]
    'dbc37f33b53e7eb9'
    """
    digest = hashlib.sha256()
    for name in sorted(
        name for name, value in tensors.items() if isinstance(value, Tensor)
    ):  # not a module's extra state
        tensor = tensors[name].detach().cpu().contiguous()
        kind = str(tensor.dtype).removeprefix("torch.")
        shape = "×".join(map(str, tensor.shape))
        digest.update(
            "".join(f"{part}\0" for part in (name, kind, shape)).encode("utf-8", "replace")
        )
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def promised(
    defenses: Iterable[Defense], *, steps: int = 1, tensors: int = 1, buffers: bool = False
) -> Privacy:
    """The ε of a chain whose mechanism is known: Gaussian noise on what was clipped, or DP-SGD.

    Args:
        steps: of the client's local training, in each of which DP-SGD adds its noise.
        tensors: of the update, which clipping by layers bounds one by one.
        buffers: whether BatchNorm's statistics are sent along, which no defense on gradients
            covers.
    """
    parts = [part for one in ordered(list(defenses)) for part in _mechanism(one)]
    private = [part for part in parts if isinstance(part, DPSGD)]
    after = [part for part in parts if getattr(part, "stage", Stage.UPDATE) == Stage.UPDATE]
    strange = next((part for part in after if not isinstance(part, _BLIND)), None)
    if buffers and parts:
        return _none("BatchNorm's statistics are sent along, and no defense covers them")
    if strange is not None:
        return Privacy(None, f"No ε was worked out: what {strange!r} does to it is not known here.")
    if private and private[0].strength == 0:
        return _none("the samples are clipped one by one, and nothing adds noise")
    if private:
        blended = next(
            (
                p
                for p in parts
                if p not in private and p not in after and not isinstance(p, SmoothLabels)
            ),
            None,
        )
        if blended is not None:
            return _none(f"{blended!r} comes before the samples are clipped one by one")
        return _some(math.sqrt(steps) / private[0].strength, "for one sample more or less")
    return _of_noise(after, tensors)


def _of_noise(parts: list[object], tensors: int) -> Privacy:
    """Noise on the whole update, after what bounds its norm."""
    noise = [
        place
        for place, part in enumerate(parts)
        if isinstance(part, Noise | Laplace) and part.strength > 0
    ]
    clips = [place for place, part in enumerate(parts) if isinstance(part, Clip | ClipLayers)]
    if not noise:
        return _none("nothing adds noise" if clips else "nothing clips, and nothing adds noise")
    if not clips:
        return _none("nothing clips, so that no noise is large enough for every sample")
    ratios = [ratio for place in noise if (ratio := _ratio(parts, place, tensors)) is not None]
    if ratios:
        return _some(min(ratios), "for whatever data this client may have")
    if any(isinstance(part, Laplace) for part in parts) and not any(
        isinstance(part, Noise) for part in parts
    ):
        return _none(
            "clipping bounds the norm of the update, and Laplace noise needs a bound on the sum of "
            "its entries"
        )
    return _none("the noise does not come right after what bounds the update's norm")


def _ratio(parts: list[object], place: int, tensors: int) -> float | None:
    """How far two updates of this client may lie apart, in deviations of the noise at `place`."""
    noise = parts[place]
    if not isinstance(noise, Noise):
        return None
    bound = math.inf
    for part in parts[:place]:
        if isinstance(part, ClipLayers):
            bound = min(bound, part.strength * math.sqrt(tensors))
        elif isinstance(part, Clip):
            bound = min(bound, part.strength)
        elif not isinstance(part, _NOT_LARGER):
            bound = math.inf
    return 2 * bound / noise.strength if math.isfinite(bound) else None


def _mechanism(part: object) -> list[object]:
    """A platform's filter as what it consists of."""
    if isinstance(part, FlowerLocalDP):
        return [Clip(part.clipping_norm), Noise(part.deviation)]
    return [part]


def _none(reason: str) -> Privacy:
    return Privacy(None, f"No ε: {reason}.")


def _some(ratio: float, whom: str) -> Privacy:
    epsilon = gaussian_epsilon(ratio, DELTA)
    little = " An ε of more than 10 promises next to nothing." if epsilon > _LARGE else ""
    return Privacy(epsilon, f"ε = {epsilon:.3g} at δ = {DELTA:g} {whom}, {_ALONE}.{little}")


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The least ε of Gaussian noise under which two answers lie `ratio` deviations apart, rounded
    up to three digits.

    Balle and Wang (2018): δ = Φ(r/2 − ε/r) − e^ε Φ(−r/2 − ε/r). Several steps r₁, r₂, … are one of
    √(r₁² + r₂² + …).

    >>> gaussian_epsilon(1.0, 1e-5)
    4.38
    """
    least = WorstCase(ratio, "").epsilon(delta)
    digits = 2 - math.floor(math.log10(least)) if least > 0 else 0
    return round(math.ceil(least * 10**digits) / 10**digits, max(digits, 0))
