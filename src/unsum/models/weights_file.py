"""A state dict out of a file into a model: everything must fit but the head, which a new task
replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.files.tensor_file import read_tensors
from unsum.head import find_head
from unsum.models.strides import refuse_other_version

_SHOWN = 3  # names in an error


def load_weights(model: nn.Module, path: Path) -> bool:
    """Fill `model` from a `.safetensors`, `.pt` or `.npz` state dict in the model's own dtype;
    whether the head was filled too.

    A head that is missing or has another shape stays as it is in `model`, fresh. Nothing in the
    file is executed.
    """
    state, own = _state(model, path), model.state_dict()
    head = _head_prefix(model)
    own_head, given_head = (
        {n for n in names if head is not None and n.startswith(head)} for names in (own, state)
    )
    fits = own_head == given_head and all(_alike(own[name], state[name]) for name in own_head)
    left_out = set() if fits else own_head | given_head
    given = {name: tensor for name, tensor in state.items() if name not in left_out}
    expected = {name: tensor for name, tensor in own.items() if name not in left_out}
    _check(path, given, expected)
    model.load_state_dict(given, strict=False)
    refuse_other_version(model, path.name)
    return fits


def head_rows(model: nn.Module, path: Path) -> int | None:
    """How many classes the head in the file has, if there is one."""
    head = _head_prefix(model)
    weight = None if head is None else _state(model, path).get(f"{head}weight")
    return None if weight is None or weight.ndim != 2 else len(weight)


def _state(model: nn.Module, path: Path) -> Mapping[str, Tensor]:
    file, own = (
        read_tensors(path, "weights", (".safetensors", ".pt", ".pth", ".npz")),
        model.state_dict(),
    )
    if file.ordered and not file.tensors.keys() & own.keys() and len(file.tensors) == len(own):
        # as Flower keeps them: an ordered list without names
        return dict(zip(own, file.tensors.values(), strict=True))
    return file.tensors


def _head_prefix(model: nn.Module) -> str | None:
    try:
        name, _ = find_head(model)
    except UnsumError:
        # the attacks will refuse this model themselves; its weights can be read all the same
        return None
    return f"{name}." if name else ""


def _alike(own: Tensor, given: Tensor) -> bool:
    return own.shape == given.shape and own.is_floating_point() == given.is_floating_point()


def _check(path: Path, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    # A counter that old files lack and that BatchNorm uses only where its momentum is None.
    lacking = [n for n in expected if n not in given and not n.endswith("num_batches_tracked")]
    foreign = [n for n in given if n not in expected]
    others = [n for n in given if n in expected and not _alike(expected[n], given[n])]
    shapes = [f"{n} {tuple(given[n].shape)} for {tuple(expected[n].shape)}" for n in others]
    told = {
        "it lacks": lacking,
        "the model has no": foreign,
        "it has other shapes or types:": shapes,
    }
    reasons = [f"{what} {_some(names)}" for what, names in told.items() if names]
    if reasons:
        raise UnsumError(
            f"The weights in {path.name!r} do not fit the model: {'; '.join(reasons)}."
        )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
