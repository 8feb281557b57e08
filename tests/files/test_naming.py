"""Updates whose names are not the model's, and updates out of two checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import unsum
from support.material import pictures, small_net
from unsum import UnsumError, Update
from unsum.files.naming import named_as


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(unsum.capture(model, pictures(3), torch.tensor([1, 1, 7])).gradients)


def to_npz(path: Path, tensors: list[Tensor]) -> Path:
    np.savez(path / "client.npz", *(t.numpy() for t in tensors))
    return path / "client.npz"


def to_folder(path: Path, tensors: list[Tensor]) -> Path:
    (path / "client").mkdir()
    for number, tensor in enumerate(tensors):
        np.save(path / "client" / f"{number}.npy", tensor.numpy())
    return path / "client"


def to_pt(path: Path, tensors: list[Tensor]) -> Path:
    torch.save(tuple(tensors), path / "client.pt")
    return path / "client.pt"


def same(update: Update, tensors: dict[str, Tensor]) -> bool:
    return update.gradients.keys() == tensors.keys() and all(
        torch.equal(update.gradients[name], tensor) for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("write", [to_npz, to_folder, to_pt])
def test_arrays_without_names_go_by_order_and_shape(
    net: nn.Module, tmp_path: Path, write: Callable[[Path, list[Tensor]], Path]
) -> None:
    gradients = gradients_of(net)
    update = Update.load(write(tmp_path, list(gradients.values())), model=net)
    assert same(update, gradients)
    assert "matched to the parameters by order and shape" in update.notes[0]
    assert unsum.separate(net, update).labels.sort().values.tolist() == [1, 1, 7]


def test_more_than_ten_arrays_keep_their_order(tmp_path: Path) -> None:
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    numbered = [torch.full_like(p, i) for i, p in enumerate(deep.parameters())]
    update = Update.load(to_folder(tmp_path, numbered), model=deep)
    assert [int(g.flatten()[0]) for g in update.gradients.values()] == list(range(12))


def test_a_whole_state_dict_in_order_loses_its_buffers(net: nn.Module, tmp_path: Path) -> None:
    """What Flower's parameters are: arrays in the order of state_dict(), BatchNorm's statistics
    among them."""
    gradients = gradients_of(net)
    whole = [gradients.get(name, value) for name, value in net.state_dict().items()]
    update = Update.load(to_npz(tmp_path, whole), model=net)
    assert same(update, gradients)
    assert any("3 tensors are buffers" in note for note in update.notes)


def test_right_names_pass_without_a_word(net: nn.Module, tmp_path: Path) -> None:
    gradients = gradients_of(net)
    save_file(gradients, tmp_path / "client.safetensors")
    update = Update.load(tmp_path / "client.safetensors", model=net)
    assert same(update, gradients)
    assert update.notes == ()


def test_without_an_order_only_shapes_that_differ_are_matched(tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    gradients = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    save_file({f"z{9 - i}": g for i, g in enumerate(gradients.values())}, path)
    update = Update.load(path, model=model)
    assert {n: update.gradients[n].tolist() for n in gradients} == {
        n: g.tolist() for n, g in gradients.items()
    }
    assert "by their shapes" in update.notes[0]
    square = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    save_file({f"layer{i}": torch.randn_like(p) for i, p in enumerate(square.parameters())}, path)
    with pytest.raises(
        UnsumError, match=r"several could be the one of shape \(5, 5\); save them under the names"
    ):
        Update.load(path, model=square)


def test_what_fits_no_parameter_is_refused(net: nn.Module, tmp_path: Path) -> None:
    gradients = list(gradients_of(net).values())
    with pytest.raises(UnsumError, match=r"no parameter has the shape \(9,\)"):
        Update.load(to_npz(tmp_path, [*gradients, torch.ones(9)]), model=net)
    swapped = [gradients[1], gradients[0], *gradients[2:]]
    with pytest.raises(UnsumError, match="their order is not the model's, and several could be"):
        Update.load(to_npz(tmp_path, swapped), model=net)
    save_file({"1.running_mean": torch.ones(32)}, tmp_path / "buffer.safetensors")
    with pytest.raises(UnsumError, match="nothing but buffers"):
        Update.load(tmp_path / "buffer.safetensors", model=net)


def checkpoints(
    tmp_path: Path, model: nn.Module, rate: float, wrap: bool = False
) -> tuple[Path, Path, dict[str, Tensor]]:
    gradients = gradients_of(model)
    first = model.state_dict()
    second = {
        name: value - rate * gradients[name] if name in gradients else value + 1
        for name, value in first.items()
    }
    for name, state in (("before", first), ("after", second)):
        torch.save(
            {"epoch": 3, "state_dict": dict(state)} if wrap else dict(state),
            tmp_path / f"{name}.pt",
        )
    return tmp_path / "before.pt", tmp_path / "after.pt", gradients


@pytest.mark.parametrize("wrap", [False, True])
def test_two_checkpoints_are_an_update(net: nn.Module, tmp_path: Path, wrap: bool) -> None:
    before, after, gradients = checkpoints(tmp_path, net, 0.5, wrap)
    update = Update.between(before, after, model=net, learning_rate=0.5)
    assert update.gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(update.gradients[name], gradient, atol=1e-6, rtol=1e-3)
    assert update.scale_known
    unknown = Update.between(before, after, model=net)
    assert not unknown.scale_known
    torch.testing.assert_close(
        unknown.gradients["5.bias"], 0.5 * gradients["5.bias"], atol=1e-6, rtol=1e-3
    )


def test_several_steps_give_their_mean_and_say_so(net: nn.Module, tmp_path: Path) -> None:
    before, after, gradients = checkpoints(tmp_path, net, 0.5)
    update = Update.between(before, after, model=net, learning_rate=0.125, steps=4)
    torch.testing.assert_close(
        update.gradients["5.bias"], gradients["5.bias"], atol=1e-6, rtol=1e-3
    )
    assert any("4 local steps" in note for note in update.notes)
    with pytest.raises(UnsumError, match="at least 1"):
        Update.between(before, after, steps=0)


def test_flowers_ordered_arrays_of_two_rounds(net: nn.Module, tmp_path: Path) -> None:
    gradients = gradients_of(net)
    for name, step in (("before", 0.0), ("after", 1.0)):
        np.savez(
            tmp_path / name,
            *((v - step * gradients.get(n, 0 * v)).numpy() for n, v in net.state_dict().items()),
        )
    update = Update.between(
        tmp_path / "before.npz", tmp_path / "after.npz", model=net, learning_rate=1.0
    )
    torch.testing.assert_close(
        update.gradients["5.weight"], gradients["5.weight"], atol=1e-6, rtol=1e-3
    )


def test_checkpoints_of_two_models_are_refused(net: nn.Module, tmp_path: Path) -> None:
    before, _, _ = checkpoints(tmp_path, net, 1.0)
    torch.save(small_net(classes=7).state_dict(), tmp_path / "other.pt")
    with pytest.raises(UnsumError, match=r"not of one model: '5.weight' has the shapes"):
        Update.between(before, tmp_path / "other.pt")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "linear.pt")
    with pytest.raises(UnsumError, match="stands only in"):
        Update.between(before, tmp_path / "linear.pt")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_file_damaged_anywhere_gives_one_sentence(tmp_path: Path, suffix: str) -> None:
    path, tensors = tmp_path / f"client{suffix}", {"w": torch.arange(40.0), "v": torch.ones(3)}
    if suffix == ".npz":
        np.savez(path, **{name: t.numpy() for name, t in tensors.items()})
    elif suffix == ".pt":
        torch.save(tensors, path)
    else:
        Update(tensors).save(path)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for cut in generator.integers(0, len(whole), 40):
        path.write_bytes(whole[:cut])
        with pytest.raises(UnsumError) as error:
            Update.load(path)
        assert "\n" not in str(error.value)
    for place in generator.integers(0, len(whole), 150):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        # a flipped bit among the values is nobody's to notice
        with contextlib.suppress(UnsumError):
            Update.load(path)


def test_arrays_of_anything_but_numbers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "names.npz", w=np.array(["a", "b"]))
    with pytest.raises(UnsumError, match="'w' holds <U1, not numbers"):
        Update.load(tmp_path / "names.npz")
    np.savez(tmp_path / "objects.npz", w=np.array([{}], dtype=object))
    with pytest.raises(UnsumError, match="'w' holds Python objects, and unsum runs no code"):
        Update.load(tmp_path / "objects.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsumError, match=r"holds no \.npy file"):
        Update.load(tmp_path / "empty")


def test_one_tensor_that_fits_two_layers_is_not_guessed() -> None:
    """One of two layers of a shape was sent: nothing tells which. The bias of three has one
    place."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    sent = {"left": torch.ones(4, 4), "right": torch.ones(3)}
    with pytest.raises(UnsumError, match=r"several could be the one of shape \(4, 4\)"):
        named_as(model, sent, ordered=False)
    named, notes = named_as(model, {"right": torch.ones(3)}, ordered=False)
    assert list(named) == ["2.bias"]
    assert notes
