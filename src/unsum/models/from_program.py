"""A model that was exported: `.pt2` of torch.export. Such a file is trusted as a Python file is:
loading it may run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from unsum.errors import UnsumError, first_line
from unsum.files.torch_file import no_code_from_files
from unsum.head import output_source
from unsum.models.built import Built

_aten = torch.ops.aten
# What exported graphs have between the last linear layer and the output without changing
# softmax(logits).
_TRANSPARENT = {
    _aten.flatten.using_ints, _aten.view.default, _aten.reshape.default, _aten.squeeze.default,
    _aten.squeeze.dim, _aten.dropout.default, _aten.log_softmax.int, _aten.contiguous.default,
    _aten.alias.default,
}  # fmt: skip


def build_from_program(path: Path) -> Built:
    """The exported graph with its head as an `nn.Linear` again, under the parameter names of the
    original model."""
    if not path.is_file():
        raise UnsumError(f"There is no file {str(path)!r}.")
    try:
        with no_code_from_files():
            graph_module = torch.export.load(path).module()
    except Exception as error:  # torch's reader raises nearly anything on a damaged file
        raise UnsumError(f"{path.name!r} cannot be read as .pt2: {first_line(error)}.") from error
    if not isinstance(graph_module, fx.GraphModule):
        raise UnsumError(f"{path.name!r} holds no program; write it with torch.export.save.")
    shape = _input_shape(graph_module, path)
    _without_checks(graph_module)
    _restore_head(graph_module, path)
    # Another object with the same graph: the one torch.export makes refuses train() and eval().
    model = fx.GraphModule(graph_module, graph_module.graph)
    return Built(model, f"exported {path.name}", shape[-1], "its own weights", trained_head=True)


def refuse_torchscript(path: Path) -> UnsumError:
    return UnsumError(
        f"{path.name!r} would have to be TorchScript, whose layers cannot be looked into; export "
        "the model with torch.export (.pt2) or, if this is a state dict, name its factory (--model "
        "file.py:factory) and add it with --weights."
    )


def _input_shape(module: fx.GraphModule, path: Path) -> list[int]:
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    value = inputs[0].meta.get("val") if len(inputs) == 1 else None
    if value is None or value.ndim != 4 or value.shape[-1] != value.shape[-2]:
        raise UnsumError(
            f"The model in {path.name!r} must take one batch of square photos, (B, 3, s, s)."
        )
    if isinstance(value.shape[0], int):
        raise UnsumError(
            f"The model in {path.name!r} was exported for batches of {value.shape[0]} alone; "
            "export it with dynamic_shapes=({0: torch.export.Dim('batch')},)."
        )
    return [int(side) for side in value.shape[1:]]


def _without_checks(module: fx.GraphModule) -> None:
    """Checks of the input and BatchNorm's counter have no result, and stand in the way of a second
    tracing."""
    for node in reversed(list(module.graph.nodes)):
        guards = node.op == "call_module" and str(node.target) == "_guards_fn"
        counts = node.op == "call_function" and node.target is _aten.add_.Tensor and not node.users
        if guards or counts:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def _restore_head(module: fx.GraphModule, path: Path) -> None:
    value: Any = output_source(module.graph)
    while isinstance(value, fx.Node) and value.target in _TRANSPARENT:
        value = value.args[0]
    if not isinstance(value, fx.Node) or value.target is not _aten.linear.default:
        raise UnsumError(
            f"The model in {path.name!r} has no linear head: its output does not come from a "
            "linear layer."
        )
    arguments: list[Any] = [*value.args, None]
    inputs, weight, bias = arguments[:3]
    name, _, last = (
        str(weight.target).rpartition(".") if isinstance(weight, fx.Node) else ("", "", "")
    )
    if last != "weight" or not name or weight.op != "get_attr":
        raise UnsumError(
            f"The model in {path.name!r} has no linear head: its last layer's weights have no name."
        )
    held = module.get_parameter(str(weight.target))
    linear = nn.Linear(held.shape[1], held.shape[0], bias=bias is not None, device="meta")
    linear.weight = held
    if isinstance(bias, fx.Node):
        linear.bias = module.get_parameter(str(bias.target))
    module.set_submodule(name, linear)
    with module.graph.inserting_before(value):
        called = module.graph.call_module(name, (inputs,))
    value.replace_all_uses_with(called)
    module.graph.erase_node(value)
    module.graph.eliminate_dead_code()
    module.recompile()
