"""A client's batch out of every kind of data."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unsum import UnsumError
from unsum.data import class_names_of, client_batch, open_data, read_photos


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(seed)).save(stream, "PNG")
    return stream.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_npz(path: Path, labels: list[int]) -> Path:
    np.savez(
        path, images=np.stack([pixels(i) for i in range(len(labels))]), labels=np.array(labels)
    )
    return path


def test_webdataset_labels_stand_beside_their_pictures(tmp_path: Path) -> None:
    members = {
        "shard/000.png": png(0),
        "shard/000.cls": b"3\n",
        "shard/001.cls": b"1",
        "shard/001.png": png(1),
    }
    photos = read_photos(write_tar(tmp_path / "shard-0000.tar", members), size=8)
    assert photos.names == ["shard/000.png", "shard/001.png"]
    assert photos.labels.tolist() == [3, 1]
    assert photos.class_names == ["0", "1", "2", "3"]
    assert np.array_equal(photos.images[1].numpy(), pixels(1).transpose(2, 0, 1))


def test_webdataset_samples_without_a_label_are_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "shard.tar", {"a.png": png(0), "a.cls": b"cat", "b.png": png(1)})
    with pytest.raises(
        UnsumError, match=r"'b.png' in 'shard.tar' has no label beside it; add 'b.cls'"
    ):
        open_data(path)
    with pytest.raises(UnsumError, match="must hold a number or a name as text"):
        open_data(write_tar(tmp_path / "bytes.tar", {"a.png": png(0), "a.cls": b"\xff\xfe"}))


def test_the_seed_chooses_and_photos_keep_their_labels(tmp_path: Path) -> None:
    labels = [i % 5 for i in range(40)]
    source = open_data(write_npz(tmp_path / "photos.npz", labels))
    first, same, other = (client_batch(source, 6, image_size=8, seed=seed) for seed in (0, 0, 1))
    assert first.titles == same.titles != other.titles
    assert first.images.shape == (6, 3, 8, 8)
    for image, target, title in zip(first.images, first.targets, first.titles, strict=True):
        number = int(title.split("/")[1])
        assert int(target) == labels[number]
        assert np.array_equal(
            (image * 255).round().byte().numpy(), pixels(number).transpose(2, 0, 1)
        )
    assert len(set(first.titles)) == 6


def test_a_tar_gives_the_same_batch_as_a_folder_of_its_files(tmp_path: Path) -> None:
    members = {f"{'cat' if i % 2 else 'dog'}/{i}.png": png(i) for i in range(8)}
    ordered = dict(sorted(members.items()))
    for name, content in members.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    sources = [
        open_data(write_tar(tmp_path / "photos.tar", ordered)),
        open_data(tmp_path / "folder"),
    ]
    one, two = (client_batch(source, 5, image_size=8, seed=4) for source in sources)
    assert one.titles == two.titles
    assert torch.equal(one.images, two.images)
    assert torch.equal(one.targets, two.targets)


def test_some_share_a_label_and_the_others_do_not_carry_it(tmp_path: Path) -> None:
    source = open_data(write_npz(tmp_path / "photos.npz", [0] * 3 + [1] * 6 + [2] * 3))
    batch = client_batch(source, 8, image_size=8, same_label=5, seed=2)
    assert (batch.targets == 1).sum() == 5
    assert (batch.targets[:5] == 1).all()
    with pytest.raises(UnsumError, match="No class of the data has 7 photos; its largest has 6"):
        client_batch(source, 8, image_size=8, same_label=7)
    with pytest.raises(
        UnsumError, match=r"Only [69] photos of other classes are left beside 2 of one"
    ):
        client_batch(source, 12, image_size=8, same_label=2)
    with pytest.raises(
        UnsumError, match="The data hold 12 photos; choose a batch of 1 to 12, not 13"
    ):
        client_batch(source, 13, image_size=8)
    with pytest.raises(UnsumError, match="can share a label, not 9"):
        client_batch(source, 8, image_size=8, same_label=9)


def write_mnist(root: Path, labels: list[int]) -> np.ndarray:
    """The four files as torchvision keeps them."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, *images.shape) + images.tobytes()
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, len(labels)) + bytes(labels)
        )
    return images


def test_a_torchvision_data_set(tmp_path: Path) -> None:
    images = write_mnist(tmp_path, [7, 0, 7])
    source = open_data(f"torchvision:MNIST:{tmp_path}")
    batch = client_batch(source, 3, image_size=28)
    assert class_names_of(source)[7] == "7 - seven"
    assert len(batch.class_names) == 10
    for image, target, title in zip(batch.images, batch.targets, batch.titles, strict=True):
        number = int(title.removeprefix("MNIST/"))
        assert int(target) == [7, 0, 7][number]
        assert np.array_equal((image[1] * 255).round().byte().numpy(), images[number])
    # all of them, to train an inverse on
    photos = read_photos(f"torchvision:MNIST:{tmp_path}", size=28)
    assert photos.labels.tolist() == [7, 0, 7]
    assert np.array_equal(photos.images[:, 2].numpy(), images)


def write_faces(root: Path, people: list[int]) -> None:
    """CelebA's folder as torchvision keeps it: pictures, and lists with one line a picture; the
    last is of another split."""
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{number:06}.jpg" for number in range(1, len(people) + 1)]
    for number, name in enumerate(names):
        (folder / "img_align_celeba" / name).write_bytes(
            png(number)
        )  # PNG under this name: lossless, and read all the same

    def listed(file: str, rows: list[str], header: str = "") -> None:
        lines = [f"{name} {row}" for name, row in zip(names, rows, strict=True)]
        head = [str(len(names)), header] if header else []
        (folder / file).write_text("\n".join([*head, *lines]) + "\n")

    listed("list_eval_partition.txt", ["0"] * (len(names) - 1) + ["2"])
    listed("identity_CelebA.txt", [str(person) for person in people])
    listed("list_bbox_celeba.txt", ["0 0 8 8"] * len(names), "image_id x_1 y_1 width height")
    listed("list_landmarks_align_celeba.txt", ["1 2"] * len(names), "lefteye_x lefteye_y")
    listed("list_attr_celeba.txt", ["-1 1"] * len(names), "Bald Smiling")


def test_faces_are_labeled_by_who_is_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = [2880, 1, 2880, 10177, 5]
    write_faces(tmp_path, people)
    with pytest.raises(
        UnsumError, match=r"torchvision cannot open CelebA in .*: Dataset not found or corrupted"
    ):
        open_data(f"torchvision:CelebA:{tmp_path}")  # lists that are not the published ones
    monkeypatch.setattr("torchvision.datasets.celeba.check_integrity", lambda *_: True)
    source = open_data(f"torchvision:CelebA:{tmp_path}")
    assert len(class_names_of(source)) == 10_177
    photos = read_photos(f"torchvision:CelebA:{tmp_path}", size=8)
    assert [int(photos.class_names[label]) for label in photos.labels] == people[:4]
    assert photos.labels.tolist() == [2879, 0, 2879, 10176]
    for number, image in enumerate(photos.images):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(number))
    batch = client_batch(source, 2, image_size=8, same_label=2)
    assert [batch.class_names[t] for t in batch.targets] == ["2880", "2880"]


def test_a_torchvision_data_set_that_takes_no_download(tmp_path: Path) -> None:
    for i, kind in enumerate(("cat", "dog", "dog")):
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / f"{i}.png").write_bytes(png(i))
    batch = client_batch(
        open_data(f"torchvision:ImageFolder:{tmp_path}"), 2, image_size=8, same_label=2
    )
    assert [batch.class_names[t] for t in batch.targets] == ["dog", "dog"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "torchvision:CIFAR:there",
            "There is no torchvision data set 'CIFAR'; did you mean 'CIFAR10'|CIFAR100",
        ),
        ("torchvision:CIFAR10", "Say where the data set lies on disk: torchvision:CIFAR10:FOLDER"),
        (
            "torchvision:CIFAR10:absent",
            "torchvision cannot open CIFAR10 in 'absent': Dataset not found",
        ),
        ("hf:absent", "'absent' is no folder written by save_to_disk"),
        ("absent", "There is no file or folder 'absent'"),
    ],
)
def test_what_is_not_there_is_named(spec: str, sentence: str) -> None:
    with pytest.raises(UnsumError, match=sentence):
        open_data(spec)


def test_a_hugging_face_data_set(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"picture": [Image.fromarray(pixels(i)) for i in range(4)], "kind": [1, 0, 1, 1]}
    held = datasets.Dataset.from_dict(rows, features=features)
    held.save_to_disk(tmp_path / "alone")
    datasets.DatasetDict({"train": held, "test": held.select([0])}).save_to_disk(tmp_path / "split")
    for name in ("alone", "split"):
        batch = client_batch(open_data(f"hf:{tmp_path / name}"), 4, image_size=8)
        assert batch.class_names == ["cat", "dog"]
        for image, target, title in zip(batch.images, batch.targets, batch.titles, strict=True):
            number = int(title.split("/")[1])
            assert int(target) == rows["kind"][number]
            assert np.array_equal(
                (image * 255).round().byte().numpy(), pixels(number).transpose(2, 0, 1)
            )
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "text")
    with pytest.raises(
        UnsumError, match="needs a column of type Image and one of type ClassLabel; it has text"
    ):
        open_data(f"hf:{tmp_path / 'text'}")
