"""The table: what the file is called, how it is made, and the sentence that it must be met with
(None: it must be read)."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hostile.makers import (
    Runs,
    entry,
    flower,
    huge_png,
    link,
    long_header_bomb,
    npy,
    npz,
    npz_bomb,
    picture,
    relabeled,
    repacked,
    safetensors,
    tar,
    tar_bomb,
    tar_promising,
    torch_file,
    xz_with_dictionary,
    zipped,
)

GB = 1 << 30
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
BIAS = np.array([0.5, -0.25, -0.25], dtype=np.float32)
_BODY = WEIGHT.tobytes() + BIAS.tobytes()
_HEADER = {"fc.weight": entry("F32", [3, 4], 0, 48), "fc.bias": entry("F32", [3], 48, 60)}
_STATE = {"fc.weight": torch.from_numpy(WEIGHT), "fc.bias": torch.from_numpy(BIAS)}


@dataclass(frozen=True)
class Case:
    """`make` gives the file's bytes, or lays the file (or folder) out itself and gives None."""

    name: str
    file: str
    make: Callable[[Path], bytes | None]
    sentence: str | None

    def lay(self, folder: Path) -> Path:
        path = folder / self.file
        content = self.make(path)
        if content is not None:
            path.write_bytes(content)
        return path


def _of(content: Callable[[], bytes]) -> Callable[[Path], bytes]:
    return lambda _path: content()


def _folder(
    files: dict[str, bytes], links: dict[str, str] | None = None, pipe: str | None = None
) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
        for name, to in (links or {}).items():
            (path / name).symlink_to(to)
        if pipe is not None:
            os.mkfifo(path / pipe)

    return make


def _pickled(path: Path) -> bytes:
    return torch_file({"fc.weight": Runs(path.parent / "ran")})


def _changed(**changes: object) -> dict[str, object]:
    return {**_HEADER, **{name.replace("_", "."): value for name, value in changes.items()}}


def _with(value: float) -> bytes:
    weight = WEIGHT.copy()
    weight[1, 2] = value
    return npz(**{"fc.weight": weight, "fc.bias": BIAS})


def _overflowing() -> bytes:
    with np.errstate(over="ignore"):
        return npz(**{"fc.weight": (WEIGHT * 1e6).astype(np.float16), "fc.bias": BIAS})


SAFETENSORS = [
    Case("plain", "u.safetensors", _of(lambda: safetensors(_HEADER, _BODY)), None),
    Case("empty file", "u.safetensors", _of(lambda: b""), "shorter than its own header"),
    Case(
        "truncated header",
        "u.safetensors",
        _of(lambda: safetensors(_HEADER)[:20]),
        "promises .* and 12 follow",
    ),
    Case(
        "truncated body",
        "u.safetensors",
        _of(lambda: safetensors(_HEADER, _BODY)[:-4]),
        "end at byte 60 of 56",
    ),
    Case(
        "trailing bytes",
        "u.safetensors",
        _of(lambda: safetensors(_HEADER, _BODY + b"x")),
        "end at byte 60 of 61",
    ),
    Case(
        "length of 2^63",
        "u.safetensors",
        _of(lambda: safetensors(_HEADER, _BODY, length=1 << 63)),
        "promises",
    ),
    Case(
        "header of 20 MB",
        "u.safetensors",
        _of(lambda: safetensors(b" " * (20 << 20))),
        "UNSUM_MAX_METADATA higher",
    ),
    Case("no JSON", "u.safetensors", _of(lambda: safetensors(b"{]")), "is no JSON"),
    Case("no UTF-8", "u.safetensors", _of(lambda: safetensors(b"\xff\xfe{}")), "is no JSON"),
    Case("nested JSON", "u.safetensors", _of(lambda: safetensors(b"[" * 100_000)), "is no JSON"),
    Case("a list", "u.safetensors", _of(lambda: safetensors([1, 2])), "no JSON object"),
    Case(
        "entry of texts",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_bias="x"), _BODY)),
        "two offsets",
    ),
    Case(
        "duplicate names", "u.safetensors", _of(lambda: safetensors(b'{"a":1,"a":2}')), "called 'a'"
    ),
    Case(
        "overlapping offsets",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_bias=entry("F32", [3], 36, 48)), _BODY[:48])),
        "overlaps another tensor",
    ),
    Case(
        "a hole",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_bias=entry("F32", [3], 52, 64)), _BODY + bytes(4))),
        "belong to no tensor",
    ),
    Case(
        "huge shape",
        "u.safetensors",
        _of(
            lambda: safetensors(_changed(fc_weight=entry("F32", [1 << 40, 1 << 20], 0, 48)), _BODY)
        ),
        "does not fit into its 48 bytes",
    ),
    Case(
        "shape that overflows to the right size",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_weight=entry("F32", [1 << 62, 4, 12], 0, 48)), _BODY)),
        "does not fit",
    ),
    Case(
        "negative side",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_weight=entry("F32", [-3, -4], 0, 48)), _BODY)),
        "whole numbers",
    ),
    Case(
        "end before begin",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_weight=entry("F32", [3, 4], 48, 0)), _BODY)),
        "does not fit",
    ),
    Case(
        "unknown dtype",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_weight=entry("F8_E4M3", [6, 8], 0, 48)), _BODY)),
        "holds F8_E4M3",
    ),
    Case(
        "integers for gradients",
        "u.safetensors",
        _of(lambda: safetensors(_changed(fc_weight=entry("I32", [3, 4], 0, 48)), _BODY)),
        "must be floating point",
    ),
    Case(
        "metadata of numbers",
        "u.safetensors",
        _of(lambda: safetensors({"__metadata__": {"a": 1}, **_HEADER}, _BODY)),
        "map names to texts",
    ),
    Case(
        "batch of true samples",
        "u.safetensors",
        _of(
            lambda: safetensors(
                {"__metadata__": {"unsum-update": '{"batch_size": true}'}, **_HEADER}, _BODY
            )
        ),
        "whole number",
    ),
    Case(
        "infinite learning rate",
        "u.safetensors",
        _of(
            lambda: safetensors(
                {"__metadata__": {"unsum-update": '{"learning_rate": Infinity}'}, **_HEADER}, _BODY
            )
        ),
        "must be positive",
    ),
    Case("no tensors", "u.safetensors", _of(lambda: safetensors({})), "holds no tensors"),
]

NUMPY = [
    Case("plain", "u.npz", _of(lambda: npz(**{"fc.weight": WEIGHT, "fc.bias": BIAS})), None),
    Case(
        "big endian",
        "u.npz",
        _of(lambda: npz(**{"fc.weight": WEIGHT.astype(">f4"), "fc.bias": BIAS.astype(">f8")})),
        None,
    ),
    Case(
        "Fortran order",
        "u.npz",
        _of(lambda: npz(**{"fc.weight": np.asfortranarray(WEIGHT), "fc.bias": BIAS})),
        None,
    ),
    Case("objects", "u.npz", _of(lambda: npz(a=np.array([{}], dtype=object))), "Python objects"),
    Case("texts", "u.npz", _of(lambda: npz(a=np.array(["x"]))), "holds <U1"),
    Case("complex numbers", "u.npz", _of(lambda: npz(a=np.zeros(2, complex))), "holds complex128"),
    Case(
        "numbers of 16 bytes",
        "u.npz",
        _of(lambda: npz(a=np.zeros(2, np.longdouble))),
        "holds float128|holds longdouble",
    ),
    Case("records", "u.npz", _of(lambda: npz(a=np.zeros(2, [("a", "f4")]))), "not numbers"),
    Case("truncated", "u.npz", _of(lambda: npz(a=WEIGHT)[:-30]), "its end is missing"),
    Case("no zip", "u.npz", _of(lambda: b"x" * 100), "no zip archive"),
    Case("empty", "u.npz", _of(lambda: b""), "no zip archive"),
    Case(
        "no npy inside",
        "u.npz",
        _of(lambda: zipped([("a.npy", b"nothing")])),
        "cannot be read as .npz",
    ),
    Case(
        "huge shape",
        "u.npz",
        _of(lambda: zipped([("a.npy", npy("<f4", (1 << 40, 1 << 10), bytes(16)))])),
        "promises .* bytes, and 16 follow",
    ),
    Case(
        "negative side",
        "u.npz",
        _of(lambda: zipped([("a.npy", npy("<f4", (-2, -2), bytes(16)))])),
        "negative side",
    ),
    Case(
        "short body",
        "u.npz",
        _of(lambda: zipped([("a.npy", npy("<f4", (3, 4), bytes(40)))])),
        "and 40 follow",
    ),
    Case(
        "duplicate names",
        "u.npz",
        _of(
            lambda: zipped(
                [("a.npy", npy("<f4", (1,), bytes(4))), ("a", npy("<f4", (1,), bytes(4)))]
            )
        ),
        "two arrays",
    ),
    Case("zip bomb", "u.npz", _of(lambda: npz_bomb(GB // 4)), "UNSUM_MAX_EXPANSION higher"),
    Case(
        "size that lies", "u.npz", _of(lambda: relabeled(npz(a=WEIGHT), 48)), "lies about its size"
    ),
    Case(
        "size of 4 GB",
        "u.npz",
        _of(lambda: relabeled(npz(a=WEIGHT), 0xFFFFFFF0)),
        "UNSUM_MAX_EXPANSION higher",
    ),
    Case(
        "unusual compression",
        "u.npz",
        _of(lambda: zipped([("a.npy", npy("<f4", (1,), bytes(4)))], zipfile.ZIP_LZMA)),
        "unusual way",
    ),
    Case(
        "a path for a name",
        "u.npz",
        _of(lambda: zipped([("../../up.npy", npy("<f4", (1,), bytes(4)))])),
        "no parameter '../../up'",
    ),
    Case("NaN", "u.npz", _of(lambda: _with(np.nan)), "'fc.weight' holds NaN or Inf"),
    Case("Inf", "u.npz", _of(lambda: _with(-np.inf)), "'fc.weight' holds NaN or Inf"),
    Case("float16 that overflowed", "u.npz", _of(_overflowing), "'fc.weight' holds NaN or Inf"),
    Case(
        "denormals",
        "u.npz",
        _of(lambda: npz(**{"fc.weight": WEIGHT * 1e-44, "fc.bias": BIAS * 1e-44})),
        None,
    ),
    Case(
        "zeros", "u.npz", _of(lambda: npz(**{"fc.weight": WEIGHT * 0, "fc.bias": BIAS * 0})), None
    ),
    Case(
        "empty tensor",
        "u.npz",
        _of(lambda: npz(**{"fc.weight": WEIGHT[:0]})),
        "has shape \\(0, 4\\)",
    ),
    Case("folder", "u", _folder({"fc.weight.npy": npy("<f4", (3, 4), WEIGHT.tobytes())}), None),
    Case(
        "folder with a link out",
        "u",
        _folder({}, {"a.npy": "/etc/hostname"}),
        "no regular file of that folder",
    ),
    Case(
        "folder with a dangling link",
        "u",
        _folder({}, {"a.npy": "nowhere"}),
        "no regular file of that folder",
    ),
    Case("folder with a pipe", "u", _folder({}, pipe="a.npy"), "no regular file of that folder"),
    Case("folder with a lie", "u", _folder({"a.npy": npy("<f8", (1 << 50,), b"")}), "promises"),
    Case(
        "folder with a long header",
        "u",
        _folder({"a.npy": b"\x93NUMPY\x03\x00\x00\x00\x7f\xff{}"}),
        "says that it is",
    ),
    Case("a pipe", "u.npz", lambda path: os.mkfifo(path), "is no regular file"),
]

TORCH = [
    Case("plain", "u.pt", _of(lambda: torch_file(_STATE)), None),
    Case("of before 2020", "u.pt", _of(lambda: torch_file(_STATE, legacy=True)), None),
    Case(
        "not contiguous",
        "u.pt",
        _of(lambda: torch_file({"fc.weight": torch.from_numpy(WEIGHT.T.copy()).T,
        "fc.bias": _STATE["fc.bias"]})), None,
    ),
    Case("code", "u.pt", _pickled, "runs no code out of files"),
    Case("truncated", "u.pt", _of(lambda: torch_file(_STATE)[:-40]), "its end is missing"),
    Case("truncated, of before 2020", "u.pt", _of(lambda: torch_file(_STATE, legacy=True)[:-4]),
    "cannot be read as .pt"),
    Case("a text", "u.pt", _of(lambda: b"no file of torch"), "torch.save did not write it"),
    Case("an old tar", "u.pt",
    _of(lambda: tar([("storages", b"x"), ("tensors", b"x"), ("pickle", b"x")])),
    "did not write it"),
    Case("compressed members", "u.pt",
    _of(lambda: repacked(torch_file(_STATE), zipfile.ZIP_DEFLATED)), "unusual way"), Case(
        "bomb",
        "u.pt",
        _of(lambda: repacked(torch_file({"a": torch.zeros(20 << 20)}), zipfile.ZIP_DEFLATED)),
        "UNSUM_MAX_EXPANSION higher",
    ),
    Case("a terabyte by strides", "u.pt",
    _of(lambda: torch_file({"a": torch.zeros(1).expand(1 << 20, 1 << 20)})), "MAX_BYTES higher"),
    Case("a gigabyte by strides", "u.pt",
    _of(lambda: torch_file({"a": torch.zeros(1).expand(1 << 14, 1 << 14)})), "EXPANSION higher"),
    Case("nothing but a shape", "u.pt",
    _of(lambda: torch_file({"a": torch.zeros(3, device="meta")})), "nothing but a shape"),
    Case("sparse", "u.pt", _of(lambda: torch_file({"a": torch.eye(3).to_sparse()})),
    "not a plain dense one"),
    Case("complex numbers", "u.pt",
    _of(lambda: torch_file({"a": torch.zeros(3, dtype=torch.complex64)})), "holds complex64"),
    Case("numbers of 8 bits", "u.pt",
    _of(lambda: torch_file({"a": torch.zeros(3).to(torch.float8_e4m3fn)})), "float8_e4m3fn"),
    Case("a number", "u.pt", _of(lambda: torch_file(3)), "is not a state dict"),
    Case("numbers for names", "u.pt", _of(lambda: torch_file({1: torch.zeros(3)})),
    "is not a state dict"),
]  # fmt: skip

FLOWER = [
    Case(
        "plain",
        "u.pb",
        _of(lambda: flower([("fc.weight", npy("<f4", (3, 4), WEIGHT.tobytes()))])),
        None,
    ),
    Case(
        "lie",
        "u.pb",
        _of(lambda: flower([("a", npy("<f4", (1 << 40,), bytes(8)))])),
        "and 8 follow",
    ),
    Case(
        "duplicate names",
        "u.pb",
        _of(lambda: flower([("a", npy("<f4", (1,), bytes(4)))] * 2)),
        "have one name",
    ),
    Case(
        "truncated",
        "u.pb",
        _of(lambda: flower([("a", npy("<f4", (1,), bytes(4)))])[:-3]),
        "ends in the middle",
    ),
    Case(
        "objects",
        "u.pb",
        _of(lambda: flower([("a", npy("|O", (1,), b"\x80\x04."))])),
        "Python objects",
    ),
    Case(
        "another kind",
        "u.pb",
        _of(lambda: flower([("a", b"")], kind=b"pickle")),
        "stored as 'pickle'",
    ),
    Case(
        "length of 2^63",
        "u.pb",
        _of(lambda: b"\x0a" + b"\xff" * 9 + b"\x01"),
        "ends in the middle|no protocol",
    ),
]

UPDATES = [*SAFETENSORS, *NUMPY, *TORCH, *FLOWER]

PHOTOS = [
    Case("plain tar", "p.tar", _of(lambda: tar([("a/1.png", picture()), ("b/2.png", picture())])),
    None),
    Case("links are passed over", "p.tar",
    _of(lambda: tar([("a/1.png", picture()), (link("a/2.png", "/etc/passwd"), b""),
    (link("a/3.png", "a/1.png", tarfile.LNKTYPE), b"")])), None),
    Case("paths out of the tar are names alone", "p.tar",
    _of(lambda: tar([("../../../tmp/a/1.png", picture()), ("/etc/1.png", picture())])), None),
    Case("devices are passed over", "p.tar",
    _of(lambda: tar([("a/1.png", picture()), (link("a/2.png", "", tarfile.CHRTYPE), b"")])), None),
    Case("links alone", "p.tar", _of(lambda: tar([(link("a/2.png", "/etc/passwd"), b"")])),
    "holds no pictures"),
    Case("truncated", "p.tar", _of(lambda: tar([("a/1.png", picture())])[:600]),
    "too early|unexpected end"),
    Case("truncated gzip", "p.tar.gz", _of(lambda: tar([("a/1.png", picture())], "gz")[:-60]),
    "neither a folder nor a readable tar"),
    Case("a text", "p.tar", _of(lambda: b"x" * 2000), "neither a folder nor a readable tar"),
    Case("empty", "p.tar", _of(lambda: b""), "neither a folder nor a readable tar"),
    Case("a photo of a terabyte", "p.tar", _of(lambda: tar_promising("a/1.png", 1 << 40)),
    "too large for a picture"),
    Case("another file of a terabyte", "p.tar", _of(lambda: tar_promising("a/1.txt", 1 << 40)),
    "MAX_BYTES higher"),
    Case("bomb", "p.tar.gz", _of(lambda: tar_bomb(GB // 4)), "UNSUM_MAX_EXPANSION higher"),
    Case("a name of a quarter gigabyte", "p.tar.gz", _of(lambda: long_header_bomb(GB // 4)),
    "header of 268,435,456 bytes"),
    Case("a dictionary of two gigabytes", "p.tar.xz", _of(lambda: xz_with_dictionary(2 * GB)),
    "Memory usage limit exceeded"),
    Case("a photo of 40 000 megapixels", "p.tar",
    _of(lambda: tar([("a/1.png", huge_png(200_000, 200_000))])), "too many|cannot be read"),
    Case("a truncated photo", "p.tar",
    _of(lambda: tar([("a/1.png", picture((64, 64), "JPEG")[:-100])])), "'a/1.png' cannot be read"),
    Case("a label that is no text", "p.tar",
    _of(lambda: tar([("1.png", picture()), ("1.cls", b"\xff\xfe")])), "a number or a name as text"),
    Case("photos without labels", "p.tar",
    _of(lambda: tar([("1.png", picture()), ("2.png", picture()), ("1.cls", b"3")])),
    "has no label"),
    Case("plain npz", "p.npz", _of(lambda: npz(images=np.zeros((2, 8, 8, 3), np.uint8))), None),
    Case("npz of floats", "p.npz", _of(lambda: npz(images=np.zeros((2, 8, 8, 3)))),
    "must be uint8"),
    Case("npz without images", "p.npz", _of(lambda: npz(a=np.zeros(2))), "needs an array `images`"),
    Case("npz bomb", "p.npz", _of(lambda: npz_bomb(GB // 4)), "UNSUM_MAX_EXPANSION higher"),
    Case("npz of objects", "p.npz", _of(lambda: npz(images=np.array([{}], object))),
    "Python objects"),
    Case("npz with a lie", "p.npz",
    _of(lambda: zipped([("images.npy", npy("|u1", (1 << 30, 64, 64, 3), b""))])), "and 0 follow"),
    Case("npz of numbers for classes", "p.npz",
    _of(lambda: npz(images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.array([0, 9]),
    classes=np.array(["a"]))), "must be numbers of its 1"),
    Case("npz of classes that are no text", "p.npz",
    _of(lambda: npz(images=np.zeros((2, 8, 8, 3), np.uint8),
    labels=np.array(["ab", "c"])).replace("ab".encode("utf-32-le"), b"\xff" * 8)),
    "cannot be read|is no text"),
    Case("a folder of dangling links", "p", _folder({}, {"a.png": "nowhere", "b.png": "b.png"}),
    "holds no pictures"),
    Case("a folder with a pipe", "p", _folder({}, pipe="a.png"), "holds no pictures"),
]  # fmt: skip
