"""What an inverter is: from separated features to pictures."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.files.safetensors_header import check_safetensors
from unsum.files.writing import save_tensors, write_whole
from unsum.head import find_head
from unsum.invert.blurred import PREFIX, Blurred
from unsum.invert.decoder import DECODERS
from unsum.invert.layout import Layout
from unsum.leak import Leak
from unsum.models.built import backbone_fingerprint
from unsum.registry import Registry

FILE = "inverse.safetensors"  # in the folder of a training
_LARGEST = 1 << 32  # what a number on a card stays below
_MOST_PARTS = 100  # stages of a decoder, and blocks of a stage
# pictures decoded together, so that a large batch needs no more memory than a small one
_AT_ONCE = 32


@dataclass(frozen=True)
class Inverse:
    """A trained decoder and its card: the backbone it belongs to, the photos and steps it was
    trained with, its score. Beside it what draws uncertain features, in files that have it."""

    decoder: nn.Module
    card: dict[str, Any]
    blurred: Blurred | None = None

    def blurs(self, leak: Leak) -> bool:
        """Whether it can, and the leak says how uncertain each of its samples is."""
        return self.blurred is not None and leak.errors is not None and not leak.exact

    @torch.no_grad()
    def draw(self, features: Tensor, errors: Tensor | None = None) -> Tensor:
        """(B, 3, s, s) pictures of features (B, H), whose relative errors (B,) are expected where
        they are no exact ones."""
        decoder = self.decoder.to(features.device)
        if errors is None or self.blurred is None:
            return torch.cat([decoder(part) for part in features.split(_AT_ONCE)])
        blurred, pictures = self.blurred.to(features.device), []
        for part, expected in zip(
            features.split(_AT_ONCE), errors.to(features).split(_AT_ONCE), strict=True
        ):
            pictures.append(blurred.draw(part, blurred.level(expected), decoder(part)))
        return torch.cat(pictures)

    @torch.no_grad()
    def blank(self, size: int) -> Tensor | None:
        """(3, size, size) what it draws of a photo of which nothing is known."""
        return None if self.blurred is None else self.blurred.blank(size)

    @property
    def layer(self) -> str | None:
        """The convolution or dense layer whose input the decoder reads; None: what the head
        reads."""
        return self.card.get("layer")

    @property
    def photos(self) -> str:
        """What the attacker needed besides the model, for the list of what was granted."""
        return f"{self.card['photos']:,} of other origin, to train the inverse"

    def at(self, size: int, layout: Layout) -> Inverse:
        """The same weights for pictures of another size: a convolutional decoder reads larger maps
        as they are."""
        if size == self.card["size"]:
            return self
        card = {**self.card, "size": size, "layout": layout.card}
        decoder, blurred = build_decoder(card), build_blurred(card)
        try:
            decoder.load_state_dict(self.decoder.state_dict())
            if blurred is not None and self.blurred is not None:
                blurred.load_state_dict(self.blurred.state_dict())
        except RuntimeError as error:
            raise UnsumError(
                f"This inverse is for pictures of {self.card['size']}², and cannot be used for "
                f"{size}²; train one anew."
            ) from error
        return Inverse(decoder.eval(), card, None if blurred is None else blurred.eval())

    def save(self, path: Path) -> None:
        """Weights in half precision, with the card."""
        parts = {**self.decoder.state_dict()}
        if self.blurred is not None:
            parts |= {PREFIX + name: part for name, part in self.blurred.state_dict().items()}
        # the size of features is one number, and may be any
        weights = {
            name: (part.float() if name.startswith(PREFIX) and not part.ndim else part.half())
            .cpu()
            .contiguous()
            for name, part in parts.items()
        }
        write_whole(
            Path(path), lambda part: save_tensors(weights, part, {"card": json.dumps(self.card)})
        )

    @staticmethod
    def load(path: Path) -> Inverse:
        """From its file, or from the folder that it was trained in."""
        if Path(path).is_dir():
            path = Path(path) / FILE
        try:
            shapes = check_safetensors(Path(path))
            with safe_open(path, framework="pt") as file:
                card = json.loads((file.metadata() or {})["card"])
                _check_card(card, shapes)
                weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
            decoder, blurred = build_decoder(card), build_blurred(card)
            if blurred is not None:
                blurred.load_state_dict(
                    {
                        name.removeprefix(PREFIX): weights.pop(name)
                        for name in list(weights)
                        if name.startswith(PREFIX)
                    }
                )
            decoder.load_state_dict(weights)
        except Exception as error:  # a card from elsewhere may hold anything, and lead anywhere
            reason = " ".join(str(error).split())[:300]
            raise UnsumError(
                f"{str(path)!r} is not an inverse written by unsum: {reason}."
            ) from error
        return Inverse(decoder.eval(), card, None if blurred is None else blurred.eval())


def _check_card(card: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """A card must describe the very weights of its file: tried without memory, so that no number in
    it costs any."""
    for name in ("photos", "size"):
        if not isinstance(card[name], int) or not 0 < card[name] < _LARGEST:
            raise ValueError(f"its card has the {name} {card[name]!r}")
    stages = card["settings"].get("stages") or []
    if len(stages) > _MOST_PARTS or any(
        not 0 <= int(blocks) <= _MOST_PARTS for _, blocks in stages
    ):
        raise ValueError("its card has too many stages")
    with torch.device("meta"):
        decoder, blurred = build_decoder(card), build_blurred(card)
    described = {**decoder.state_dict()}
    if blurred is not None:
        described |= {PREFIX + name: part for name, part in blurred.state_dict().items()}
    if {name: tuple(tensor.shape) for name, tensor in described.items()} != shapes:
        raise ValueError("its card describes another network than its weights are of")


def build_decoder(card: dict[str, Any]) -> nn.Module:
    """The decoder that a card describes, with fresh weights."""
    settings = dict(card["settings"])
    if "stages" in settings:
        settings["stages"] = tuple(
            (int(width), int(blocks)) for width, blocks in settings["stages"]
        )
    return DECODERS[card["architecture"]](_layout(card), card["size"], **settings)


def build_blurred(card: dict[str, Any]) -> Blurred | None:
    """What draws uncertain features, as a card describes it, with fresh weights; None where it
    has none."""
    if card.get("blurred") is None:
        return None
    return Blurred(_layout(card), card["size"], **card["blurred"])


def _layout(card: dict[str, Any]) -> Layout:
    return Layout(card["layout"]["kind"], tuple(card["layout"]["shape"]))


class Inverter(Protocol):
    """Returns (B, 3, h, w) images in [0, 1], in the order of the leak's features."""

    def __call__(
        self, model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None
    ) -> Tensor: ...


INVERTERS: Registry[Inverter] = Registry("inverter", "unsum.inverters")


@INVERTERS.register(
    "learned",
    summary="decoder trained on public photos",
    needs="an inverse trained for this backbone",
)
def learned(model: nn.Module, leak: Leak, *, inverse: str | Path | Inverse | None) -> Tensor:
    """(B, 3, h, w) in [0, 1]: the decoder's picture for each sample's features, blurred where the
    attack says how uncertain these are."""
    loaded = inverse if isinstance(inverse, Inverse) else load_inverse(model, inverse)
    read = leak.features
    if loaded.layer is not None:
        if loaded.layer not in leak.inner:
            raise UnsumError(
                f"This inverse reads what {loaded.layer!r} reads, which this leak does not hold; "
                "peel it first (unsum.attack does, or unsum.peel with method='residual')."
            )
        read = leak.inner[loaded.layer].flatten(1)
    return loaded.draw(read.float(), leak.errors if loaded.blurs(leak) else None)


def load_inverse(model: nn.Module, path: str | Path | None = None) -> Inverse:
    """The inverse in `path`, or the embedded one; refused unless it was trained for exactly this
    backbone."""
    if path is None:
        with as_file(files("unsum.invert") / "weights" / "default-inverse.safetensors") as embedded:
            found = Inverse.load(embedded)
    else:
        found = Inverse.load(Path(path))
    if found.card["backbone"] != backbone_fingerprint(model):
        which = "the embedded inverse" if path is None else f"the inverse in {str(path)!r}"
        raise UnsumError(
            f"There are no pictures for this model: {which} was trained for a backbone with other "
            "weights; `unsum train-inverse` makes one for this model."
        )
    if found.layer is not None:
        return found
    features, reads = find_head(model)[1].in_features, math.prod(found.card["layout"]["shape"])
    if features != reads:
        raise UnsumError(
            f"There are no pictures for this model: the inverse reads {reads} features of photos "
            f"of {found.card['size']}², and this head {features}."
        )
    return found
