from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from support.material import small_net
from unsum import LocalTraining, UnsumError, Update


def gradients_like(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {name: torch.randn_like(p) for name, p in model.named_parameters()}


@given(
    lr=st.none() | st.floats(1e-6, 10),
    reduction=st.sampled_from(["mean", "sum"]),
    size=st.none() | st.integers(1, 10_000),
)
def test_saved_update_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, lr, reduction, size
) -> None:
    path = tmp_path_factory.mktemp("update") / "client.safetensors"
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(2).half()}
    update = Update(
        tensors,
        kind="delta",
        learning_rate=lr,
        reduction=reduction,
        batch_size=size,
        num_examples=size,
    )
    update.save(path)
    loaded = Update.load(path)
    assert loaded.gradients.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.gradients[name].dtype == tensor.dtype
        assert torch.equal(loaded.gradients[name], tensor)
    assert (loaded.kind, loaded.learning_rate, loaded.reduction) == ("delta", lr, reduction)
    assert loaded.batch_size == loaded.num_examples == size


def test_a_delta_is_held_as_the_gradient_behind_it() -> None:
    gradient = {"w": torch.tensor([1.0, -2.0])}
    delta = {"w": -0.1 * gradient["w"]}
    known, unknown = Update.from_delta(delta, 0.1), Update.from_delta(delta)
    torch.testing.assert_close(known.gradients["w"], gradient["w"])
    # right sign, open scale
    torch.testing.assert_close(unknown.gradients["w"], 0.1 * gradient["w"])
    assert known.scale_known
    assert not unknown.scale_known


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".pth", ".safetensors"])
def test_foreign_files_are_read_as_gradients_or_deltas(tmp_path: Path, suffix: str) -> None:
    path, tensors = tmp_path / f"client{suffix}", {"layer.weight": torch.arange(6.0).view(2, 3)}
    if suffix == ".npz":
        np.savez(path, **{name: t.numpy() for name, t in tensors.items()})
    elif suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    assert torch.equal(Update.load(path).gradients["layer.weight"], tensors["layer.weight"])
    delta = Update.load(path, kind="delta", learning_rate=0.5)
    assert torch.equal(delta.gradients["layer.weight"], -2 * tensors["layer.weight"])


def test_pickled_code_in_a_pt_file_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    torch.save({"w": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UnsumError, match=r"'evil\.pt' cannot be read"):
        Update.load(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"", "no update format '.txt'"),
        ("missing.npz", None, "There is no file"),
        ("a.safetensors", b"\x00" * 40, "cannot be read as .safetensors"),
        ("a.safetensors", b"", "cannot be read as .safetensors"),
        ("a.npz", b"PK\x03\x04garbage", "cannot be read as .npz"),
        ("a.pt", b"not a zip", "cannot be read as .pt"),
    ],
)
def test_broken_files_give_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnsumError, match=sentence) as error:
        Update.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("header", ['{"kind": "gradient", "surprise": 1}', "[]", "{"])
def test_strange_metadata_is_refused(tmp_path: Path, header: str) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors", {"unsum-update": header})
    with pytest.raises(UnsumError):
        Update.load(tmp_path / "a.safetensors")


def test_pt_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    with pytest.raises(UnsumError, match="not a state dict"):
        Update.load(tmp_path / "a.pt")


def test_own_files_do_not_take_a_second_kind(tmp_path: Path) -> None:
    Update({"w": torch.ones(1)}).save(tmp_path / "a.safetensors")
    with pytest.raises(UnsumError, match="records its own kind"):
        Update.load(tmp_path / "a.safetensors", kind="delta")


def test_metadata_is_plain_json_in_the_header(tmp_path: Path) -> None:
    Update({"w": torch.ones(1)}, batch_size=4).save(tmp_path / "a.safetensors")
    raw = (tmp_path / "a.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert json.loads(header["__metadata__"]["unsum-update"])["batch_size"] == 4


def test_validate_accepts_a_fitting_and_a_partial_update(net: nn.Module) -> None:
    full = gradients_like(net)
    Update(full).validate(net)
    Update({"5.weight": full["5.weight"]}).validate(net)  # a frozen backbone sends its head alone


def test_validate_names_the_first_mismatch(net: nn.Module) -> None:
    good = gradients_like(net)
    with pytest.raises(UnsumError, match=r"no parameter '5\.weigth'; did you mean '5\.weight'"):
        Update({"5.weigth": good["5.weight"]}).validate(net)
    with pytest.raises(
        UnsumError, match=r"'5\.weight' has shape \(40, 128\) in the update and \(30, 128\)"
    ):
        Update(good).validate(small_net(classes=30))
    with pytest.raises(UnsumError, match=r"'5\.bias' holds torch.int64"):
        Update({**good, "5.bias": torch.ones(40, dtype=torch.long)}).validate(net)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_validate_refuses_what_is_not_finite_and_names_it(net: nn.Module, value: float) -> None:
    gradients = gradients_like(net)
    gradients["0.bias"][3] = value
    with pytest.raises(UnsumError, match=r"'0\.bias' holds NaN or Inf"):
        Update(gradients).validate(net)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "grad"},
        {"reduction": "max"},
        {"learning_rate": 0.0},
        {"batch_size": 0},
        {"num_examples": 1.5},
    ],
)
def test_wrong_metadata_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(UnsumError):
        Update({"w": torch.ones(1)}, **arguments)  # type: ignore[arg-type]


def test_empty_update_and_foreign_suffix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsumError, match="no tensors"):
        Update({})
    with pytest.raises(UnsumError, match=r"saved as \.safetensors"):
        Update({"w": torch.ones(1)}).save(tmp_path / "a.bin")


def test_several_steps_with_weight_decay_by_hand() -> None:
    """A change of −0.2 at a rate of 0.1 sums up to 2 over two steps, 1 in the mean, of which ½ is
    the decay of a weight of 1."""
    delta, start = {"w": torch.tensor([-0.2])}, {"w": torch.tensor([1.0])}
    update = Update.from_delta(delta, 0.1).of_training(
        LocalTraining(0.1, 2, weight_decay=0.5), start
    )
    assert update.gradients["w"].tolist() == pytest.approx([0.5])
    assert update.learning_rate == pytest.approx(0.2)
    assert update.notes == (
        "The client took 2 local steps; the update holds the mean of their gradients.",
    )
    unknown = Update.from_delta(delta).of_training(LocalTraining(steps=2), start)
    # at an unknown rate nothing is divided
    assert unknown.gradients["w"].tolist() == pytest.approx([0.2])
    assert not unknown.scale_known
