"""Mutations: of bytes, of numbers and tokens in them, and of what lies inside a container, which is
closed again afterwards."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

_NUMBERS = [
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    65535,
    1 << 31,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
]
_TEXTS = [
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"Infinity",
    b"99999999999999999999",
    b"9223372036854775807",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
]
_TOKENS = {
    "safetensors": [b"F32", b"F64", b"BF16", b"I8", b"BOOL", b"F8_E5M2", b"U64", b"C64",
    b"__metadata__", b"data_offsets", b"unsum-update"],
    "npy": [b"'<f4'", b"'>f8'", b"'|O'", b"'<U9'", b"'|V4'", b"'<c8'", b"'|b1'", b"'>i2'", b"True",
    b"False", b"(1,)", b"()", b"(0, 9)"],
    "pickle": [b"ctorch\nSize\n", b"cbuiltins\nset\n", b"ctorch\nTensor\n", b"cos\nsystem\n", b"R",
    b"b", b"0", b"2", b"l.", b"(dp0\n", b"K\x7f", b"\x8a\x09" + b"\xff" * 9],
    "tar": [b"0", b"1", b"2", b"5", b"L", b"K", b"x", b"g", b"S", b"../", b"/", b".png", b".cls",
    b"30 size=999999999\n"],
}  # fmt: skip


def scribble(content: bytes, random: random.Random, tokens: Sequence[bytes] = ()) -> bytes:
    """One to four small changes, each of a kind chosen at random."""
    for _ in range(1 + random.getrandbits(2)):
        content = _once(content, random, tokens)
    return content


def _once(content: bytes, random: random.Random, tokens: Sequence[bytes]) -> bytes:
    kind = random.randrange(10)
    if not content:
        return random.randbytes(random.randrange(1, 32))
    place = random.randrange(len(content))
    if kind == 0:
        return (
            content[:place]
            + bytes([content[place] ^ 1 << random.randrange(8)])
            + content[place + 1 :]
        )
    if kind == 1:
        return (
            content[:place]
            + bytes([random.choice((0, 1, 0x7F, 0x80, 0xFF, random.getrandbits(8)))])
            + content[place + 1 :]
        )
    if kind == 2:
        form = random.choice("BHLQ")
        number = random.choice(_NUMBERS) & (1 << 8 * struct.calcsize("<" + form)) - 1
        packed = struct.pack(random.choice("<>") + form, number)
        return content[:place] + packed + content[place + len(packed) :]
    if kind == 3:
        return content[:place]
    if kind == 4:
        return content[:place] + content[place + random.randrange(1, 17) :]
    if kind == 5:
        end = place + random.randrange(1, 65)
        return content[:place] + content[place:end] * random.choice((2, 2, 3, 9)) + content[end:]
    if kind == 6:
        return content[:place] + random.randbytes(random.randrange(1, 17)) + content[place:]
    if kind == 7 and tokens:
        token = random.choice(tokens)
        return content[:place] + token + content[place + random.choice((0, len(token))) :]
    numbers = list(re.finditer(rb"\d+", content[:4096]))
    if kind == 8 and numbers:
        found = random.choice(numbers)
        return content[: found.start()] + random.choice(_TEXTS) + content[found.end() :]
    other = random.randrange(len(content))
    end = other + random.randrange(1, 33)
    return content[:place] + content[other:end] + content[place + end - other :]


def in_safetensors(content: bytes, random: random.Random) -> bytes:
    """The header as JSON, changed as a tree or as text, with a length that fits again."""
    length = struct.unpack("<Q", content[:8])[0] if len(content) >= 8 else 0
    header, body = content[8 : 8 + length], content[8 + length :]
    if random.random() < 0.5:
        try:
            header = json.dumps(_in_tree(json.loads(header), random)).encode()
        except (ValueError, RecursionError):
            header = scribble(header, random, _TOKENS["safetensors"])
    else:
        header = scribble(header, random, _TOKENS["safetensors"])
    if random.random() < 0.1:
        body = scribble(body, random)
    return struct.pack("<Q", len(header)) + header + body


def _in_tree(value: Any, random: random.Random) -> Any:
    """One leaf or branch of JSON replaced, removed or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        name = random.choice(list(value))
        what = random.randrange(8)
        if what == 0:
            return {key: item for key, item in value.items() if key != name}
        if what == 1:
            return value | {
                random.choice(("__metadata__", "x", "\ud800", "fc.weight", name + name)): value[
                    name
                ]
            }
        # metadata: JSON inside of JSON
        if isinstance(value[name], str) and value[name].startswith("{"):
            return value | {name: json.dumps(_in_tree(json.loads(value[name]), random))}
        return value | {name: _in_tree(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        return [
            *value[:place],
            _in_tree(value[place], random),
            *value[place + random.choice((1, 1, 0)) :],
        ]
    return random.choice(
        [
            *_NUMBERS,
            -1,
            1.5,
            1e308,
            float("inf"),
            float("nan"),
            None,
            True,
            "",
            "x" * 300,
            [],
            {},
            [[]],
            {"a": {}},
            "F16",
            "delta",
        ]
    )


def in_zip(inner: Mutator) -> Mutator:
    """One member changed, and the archive closed again with the right checksum; or the archive
    itself."""

    def mutate(content: bytes, random: random.Random) -> bytes:
        if random.random() < 0.3:
            return scribble(content, random)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                members = [(name, archive.read(name)) for name in archive.namelist()]
        except Exception:  # already broken: an earlier mutation that was kept
            return scribble(content, random)
        if not members:
            return scribble(content, random)
        place = random.randrange(len(members))
        name, body = members[place]
        what = random.randrange(10)
        if what == 0:
            members.append((random.choice((name, name + "x", "../" + name, "")), body))
        elif what == 1:
            del members[place]
        else:
            members[place] = (name, inner(body, random))
        packing = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", packing) as archive:
            for member, held in members:
                archive.writestr(zipfile.ZipInfo(member), held, packing)
        return buffer.getvalue()

    return mutate


def with_tokens(kind: str) -> Mutator:
    return lambda content, random: scribble(content, random, _TOKENS[kind])


def in_tar(content: bytes, random: random.Random) -> bytes:
    """A header changed, and its checksum made right."""
    if len(content) < 512 or random.random() < 0.2:
        return scribble(content, random)
    start = 512 * random.randrange(min(8, len(content) // 512))
    header = scribble(content[start : start + 512], random, _TOKENS["tar"])[:512].ljust(512, b"\0")
    total = 256 + sum(header[:148]) + sum(header[156:])
    header = header[:148] + b"%06o\0 " % (total & 0o777777) + header[156:]
    return content[:start] + header + content[start + 512 :]


def in_gzip(content: bytes, random: random.Random) -> bytes:
    if random.random() < 0.2:
        return scribble(content, random)
    try:
        plain = gzip.decompress(content)
    except Exception:
        return scribble(content, random)
    return gzip.compress(in_tar(plain, random), 1, mtime=0)


def in_picture(content: bytes, random: random.Random) -> bytes:
    """Pictures; of PNG, chunks with the right checksum."""
    if not content.startswith(b"\x89PNG") or random.random() < 0.3:
        return scribble(content, random)
    chunks, place = [], 8
    while place + 12 <= len(content):
        length = min(struct.unpack(">L", content[place : place + 4])[0], len(content))
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    if not chunks:
        return scribble(content, random)
    which = random.randrange(len(chunks))
    kind, body = chunks[which]
    if kind == b"IDAT" and random.random() < 0.5:
        try:
            body = zlib.compress(scribble(zlib.decompress(body), random), 1)
        except zlib.error:
            body = scribble(body, random)
    else:
        body = scribble(body, random)
    chunks[which] = (kind, body)
    closed = (
        struct.pack(">L", len(b)) + k + b + struct.pack(">L", zlib.crc32(k + b)) for k, b in chunks
    )
    return content[:8] + b"".join(closed)


def in_picture_of_tar(content: bytes, random: random.Random) -> bytes:
    """The first picture of a tar changed inside, under a header that fits."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            member = next(iter(archive))
            file = archive.extractfile(member)
            body = b"" if file is None else file.read()
    except Exception:
        return in_tar(content, random)
    if random.random() < 0.5:
        return in_tar(content, random)
    changed = in_picture(body, random)
    info = tarfile.TarInfo(member.name)
    info.size = len(changed)
    return info.tobuf(tarfile.GNU_FORMAT) + changed + bytes(-len(changed) % 512) + bytes(1024)
