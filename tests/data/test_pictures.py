from __future__ import annotations

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unsum import UnsumError
from unsum.data import Photos, read_photos
from unsum.data.classes import fitted
from unsum.data.sources import open_source


def pixels(seed: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(array: np.ndarray, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, form, **options)
    return stream.getvalue()


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_folder(path: Path, members: dict[str, bytes]) -> Path:
    for name, content in members.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def png(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(pixels(seed)))


MEMBERS = {
    "dog/b.png": encoded(pixels(1)),
    "cat/a.png": encoded(pixels(2)),
    "cat/c.PNG": encoded(pixels(3)),
}


def check_members(photos: Photos) -> None:
    """Exact pixels under the right names, with labels in alphabetical order of the classes."""
    assert photos.images.dtype == torch.uint8
    assert photos.labels.dtype == torch.int64
    assert photos.class_names == ["cat", "dog"]
    assert len(photos) == 3
    for image, label, name in zip(photos.images, photos.labels, photos.names, strict=True):
        seed = {"dog/b.png": 1, "cat/a.png": 2, "cat/c.PNG": 3}[name]
        assert np.array_equal(image.numpy(), pixels(seed).transpose(2, 0, 1))
        assert photos.class_names[label] == name.split("/")[0]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tars_keep_their_order_and_pictures_of_the_right_size_their_pixels(
    tmp_path: Path, mode: str
) -> None:
    photos = read_photos(
        write_tar(tmp_path / "photos.tar", {**MEMBERS, "cat/notes.txt": b"no"}, mode), size=8
    )
    check_members(photos)
    assert photos.names == list(MEMBERS)
    assert photos.labels.tolist() == [1, 0, 0]


def test_folders_are_read_to_the_bottom_in_the_order_of_names(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", {**MEMBERS, "cat/._a.png": b"no"})
    photos = read_photos(str(folder), size=8)
    check_members(photos)
    assert photos.names == sorted(MEMBERS)
    wrapped = read_photos(tmp_path, size=8)
    assert wrapped.class_names == ["cat", "dog"]
    assert wrapped.names == [f"photos/{name}" for name in sorted(MEMBERS)]


def test_the_fingerprint_goes_by_names_and_contents_alone(tmp_path: Path) -> None:
    turned = dict(reversed(MEMBERS.items()))
    same = [
        read_photos(write_tar(tmp_path / "a.tar", MEMBERS), size=8),
        read_photos(write_tar(tmp_path / "b.tar", turned, "w:gz"), size=4),
        read_photos(write_folder(tmp_path / "c", MEMBERS), size=8),
    ]
    other = read_photos(
        write_tar(tmp_path / "d.tar", {**MEMBERS, "dog/b.png": encoded(pixels(9))}), size=8
    )
    renamed = read_photos(
        write_tar(tmp_path / "e.tar", {f"{n}.png": c for n, c in MEMBERS.items()}), size=8
    )
    assert len({photos.fingerprint for photos in same}) == 1
    assert len({photos.fingerprint for photos in (same[0], other, renamed)}) == 3
    assert same[0].card == {"photos": 3, "sources": ["a.tar"], "sha256": same[0].fingerprint}


def test_classes_that_are_numbers_are_the_labels(tmp_path: Path) -> None:
    picture = encoded(pixels(0))
    photos = read_photos(
        write_tar(tmp_path / "a.tar", {f"{c}/x.png": picture for c in (10, 2, 7)}), size=8
    )
    assert photos.labels.tolist() == [10, 2, 7]
    assert [photos.class_names[label] for label in photos.labels] == ["10", "2", "7"]
    dates = read_photos(
        write_tar(tmp_path / "b.tar", {"20200101/x.png": picture, "3/x.png": picture}), size=8
    )
    assert dates.labels.tolist() == [0, 1]  # not twenty million classes


def test_classes_without_folders(tmp_path: Path) -> None:
    picture = encoded(pixels(0))
    flat = write_tar(
        tmp_path / "flat.tar.gz", {"n02_1.png": picture, "./n01_2_3.png": picture}, "w:gz"
    )
    assert read_photos(flat, size=8).class_names == ["n01", "n02"]
    plain = write_tar(tmp_path / "holiday.tar", {"1.png": picture, "2.png": picture})
    assert read_photos(plain, size=8).class_names == ["holiday"]
    assert read_photos(
        write_folder(tmp_path / "beach", {"a_b.png": picture}), size=8
    ).class_names == ["beach"]


def test_several_sources_agree_on_labels_by_class_name(tmp_path: Path) -> None:
    first = write_tar(
        tmp_path / "a.tar", {"dog/1.png": encoded(pixels(1)), "fox/1.png": encoded(pixels(2))}
    )
    second = write_folder(
        tmp_path / "b", {"cat/1.png": encoded(pixels(3)), "dog/2.png": encoded(pixels(4))}
    )
    photos = read_photos([first, second], size=8)
    assert photos.class_names == ["cat", "dog", "fox"]
    assert photos.labels.tolist() == [1, 2, 0, 1]
    assert photos.sources == ["a.tar", "b"]
    assert np.array_equal(photos.images[3].numpy(), pixels(4).transpose(2, 0, 1))


def test_the_middle_square_is_kept_and_resized_without_aliases(tmp_path: Path) -> None:
    wide = np.zeros((16, 48, 3), dtype=np.uint8)
    # a checkerboard between black margins
    wide[:, 16:32] = np.indices((16, 16)).sum(0)[:, :, None] % 2 * 255
    photos = read_photos(write_tar(tmp_path / "a.tar", {"0/x.png": encoded(wide)}), size=4)
    inner = photos.images[0, :, 1:3, 1:3].float()
    # every second pixel would be all black or all white
    assert float((inner - 127.5).abs().max()) < 8
    exact = read_photos(tmp_path / "a.tar", size=16)
    assert np.array_equal(exact.images[0].numpy(), wide[:, 16:32].transpose(2, 0, 1))


def test_jpegs_gray_pictures_and_turned_cameras(tmp_path: Path) -> None:
    smooth = np.tile(np.linspace(0, 255, 16, dtype=np.uint8)[:, None, None], (1, 16, 3))
    turned = Image.Exif()
    turned[0x0112] = 3  # the camera was held upside down
    members = {
        "0/jpeg.jpg": encoded(smooth, "JPEG", quality=95),
        "0/gray.png": encoded(smooth[:, :, 0]),
        "0/turned.jpeg": encoded(smooth, "JPEG", quality=95, exif=turned.tobytes()),
    }
    images = read_photos(write_tar(tmp_path / "a.tar", members), size=16).images.float()
    true = torch.from_numpy(smooth).permute(2, 0, 1).float()
    assert float((images[0] - true).abs().max()) < 8
    assert torch.equal(images[1], true)
    assert float((images[2] - true.flip(1)).abs().max()) < 8


def test_npz_with_and_without_labels_and_names(tmp_path: Path) -> None:
    images = np.stack([pixels(seed) for seed in range(3)])
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=np.array([5, 0, 2], np.uint8))
    np.savez(
        tmp_path / "b.npz",
        images=images,
        labels=[[1], [0], [1]],
        classes=np.array(["zebra", "ant"]),
    )
    np.savez(tmp_path / "c.npz", images=images[:, :, :, 0])
    np.savez(
        tmp_path / "d.npz", images=images, labels=[0, 1, 0], classes=np.array(["crane", "crane"])
    )
    numbers, named, bare, twice = (read_photos(tmp_path / f"{name}.npz", size=8) for name in "abcd")
    assert numbers.labels.tolist() == [5, 0, 2]
    assert np.array_equal(numbers.images.permute(0, 2, 3, 1).numpy(), images)
    assert named.class_names == ["zebra", "ant"]  # the file's own order
    assert named.labels.tolist() == [1, 0, 1]
    assert bare.class_names == ["c"]
    assert np.array_equal(bare.images.numpy(), np.repeat(images[:, None, :, :, 0], 3, axis=1))
    assert twice.labels.tolist() == [0, 1, 0]
    assert read_photos(tmp_path / "a.npz", size=4).images.shape == (3, 3, 4, 4)


def test_limit(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", {f"{i % 3}/{i}.png": encoded(pixels(i)) for i in range(300)}
    )
    photos = read_photos([path, path], size=8, limit=301)
    assert len(photos) == 301
    assert photos.names[-1] == "0/0.png"
    assert np.array_equal(photos.images[299].numpy(), pixels(299).transpose(2, 0, 1))


def test_links_in_a_tar_are_passed_over(tmp_path: Path) -> None:
    with tarfile.open(write_tar(tmp_path / "a.tar", MEMBERS), "a") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("cat/link.png")
            link.type, link.linkname = kind, "../../secret.png"
            archive.addfile(link)
    check_members(read_photos(tmp_path / "a.tar", size=8))


def bomb() -> bytes:
    """A PNG whose header promises a hundred million pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encoded(pixels(0, 64, 64), "JPEG")[:-200], "truncated"),
        (b"", "cannot identify"),
        (b"GIF89a" + bytes(100), "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),
        (bomb(), "too many"),
    ],
)
def test_a_picture_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    members = {**MEMBERS, "cat/bad.png": content}
    for path in (write_tar(tmp_path / "a.tar", members), write_folder(tmp_path / "b", members)):
        with pytest.raises(UnsumError, match=rf"'cat/bad\.png' cannot be read .*{reason}"):
            read_photos(path, size=8)


def test_sources_that_are_none_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("no tar")
    (tmp_path / "text.npz").write_text("no npz")
    whole = write_tar(
        tmp_path / "whole.tar.gz", {"0/x.png": encoded(pixels(0, 64, 64))}, "w:gz"
    ).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "objects.npz", images=np.array([None, "x"], dtype=object))
    np.savez(tmp_path / "floats.npz", images=np.zeros((2, 8, 8, 3)))
    np.savez(tmp_path / "planes.npz", images=np.zeros((2, 3, 8, 8), np.uint8))
    np.savez(tmp_path / "other.npz", x_train=np.zeros(3))
    np.savez(tmp_path / "labels.npz", images=np.zeros((2, 8, 8, 3), np.uint8), labels=[1])
    np.savez(
        tmp_path / "range.npz",
        images=np.zeros((1, 8, 8, 3), np.uint8),
        labels=[2],
        classes=["a", "b"],
    )
    for name, sentence in {
        "nowhere": "There is no file or folder",
        "empty": "'empty' holds no pictures; unsum looks for jpg",
        "text.tar": "neither a folder nor a readable tar or npz",
        "cut.tar.gz": r"'cut.tar.gz'",
        "text.npz": "cannot be read as npz",
        "objects.npz": "cannot be read as npz",
        "floats.npz": r"must be uint8 of shape .* not float64 \(2, 8, 8, 3\)",
        "planes.npz": r"must be uint8 of shape .* \(2, 3, 8, 8\)",
        "other.npz": "needs an array `images`; it holds x_train",
        "labels.npz": "must be 2 integers or names",
        "range.npz": "numbers of its 2 `classes`",
    }.items():
        with pytest.raises(UnsumError, match=sentence) as refusal:
            read_photos(tmp_path / name, size=8)
        assert "\n" not in str(refusal.value)


def test_impossible_sizes_and_counts_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", MEMBERS)
    with pytest.raises(UnsumError, match="at least one pixel, not 0"):
        read_photos(path, size=0)
    with pytest.raises(UnsumError, match="at least one photo, not 0"):
        read_photos(path, size=8, limit=0)
    with pytest.raises(UnsumError, match="at least one folder"):
        read_photos([], size=8)
    with pytest.raises(UnsumError, match=r"need \d+ GB of memory"):
        read_photos(path, size=10_000_000)
    with pytest.raises(UnsumError, match="too large for a picture"):
        read_photos(sparse_tar(tmp_path / "sparse.tar"), size=8)


def sparse_tar(path: Path) -> Path:
    """A small file that claims to hold a picture of a terabyte."""
    info = tarfile.TarInfo("0/x.png")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,0",
        "GNU.sparse.size": f"{10**12}",
    }
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b""))
    return path


def test_ten_comes_after_nine_and_is_class_ten(tmp_path: Path) -> None:
    for number in range(11):
        png(tmp_path / "photos" / str(number) / "one.png", number)
    photos = read_photos(tmp_path / "photos", size=8)
    assert photos.class_names == [str(number) for number in range(11)]
    shown = dict(zip(photos.names, photos.labels.tolist(), strict=True))
    assert shown["10/one.png"] == 10
    assert shown["2/one.png"] == 2


def test_numbers_that_count_from_one_fit_a_trained_head_in_their_order(tmp_path: Path) -> None:
    for number in range(1, 11):
        png(tmp_path / "photos" / str(number) / "one.png", number)
    source = fitted(open_source(tmp_path / "photos"), 10, None, trained=True)
    assert source.class_order == ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]


def test_links_to_photos_and_to_folders_of_them_are_followed(tmp_path: Path) -> None:
    """As many users keep them: on another disk, and single ones picked by links."""
    png(tmp_path / "disk" / "cats" / "one.png", 1)
    png(tmp_path / "disk" / "two.png", 2)
    (tmp_path / "photos" / "dogs").mkdir(parents=True)
    (tmp_path / "photos" / "cats").symlink_to(tmp_path / "disk" / "cats")
    (tmp_path / "photos" / "dogs" / "two.png").symlink_to(tmp_path / "disk" / "two.png")
    (tmp_path / "linked").symlink_to(tmp_path / "photos")
    for folder in ("photos", "linked"):
        assert read_photos(tmp_path / folder, size=8).names == ["cats/one.png", "dogs/two.png"]


def test_links_in_a_circle_and_to_the_whole_disk_are_passed_over(tmp_path: Path) -> None:
    png(tmp_path / "photos" / "cats" / "one.png", 1)
    png(tmp_path / "secret.png", 2)
    for name, to in {"around": ".", "up": "..", "disk": "/"}.items():
        (tmp_path / "photos" / "cats" / name).symlink_to(to)
    assert read_photos(tmp_path / "photos", size=8).names == ["cats/one.png"]
