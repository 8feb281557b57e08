"""Whether a traced data flow is what the model computes: hooks, and branches that tracing did not
take, do not show in it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from unsum.network.layers import agree, tolerance
from unsum.network.passes import accepted_input, main_tensor, without_trace

_Seen = list[tuple[str, Tensor]]  # what each layer of the graph read, in the order of the calls


def is_followed(model: nn.Module, graph: fx.Graph, *, train: bool) -> bool:
    """Whether a pass of the model gives all layers of `graph` what the graph gives them, and
    returns the same.

    True as well where no input is known that the model takes: then nothing is claimed of its head,
    either. A pass that draws
    random numbers is not compared; whoever replays it sees what that leaves.
    """
    x = accepted_input(model)
    if x is None:
        return True
    names = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    with without_trace(model, train=train), torch.no_grad():
        given: list[tuple[Any, ...]] = []
        with model.register_forward_pre_hook(lambda _model, inputs: given.append(inputs)):
            first, second = (_watched(model, names, partial(model, x), seed) for seed in (0, 1))
        if not _alike(first, second, x):
            return True
        return _alike(first, _watched(model, names, partial(_played, model, graph, given[0]), 0), x)


def changes_its_input(model: nn.Module) -> bool:
    """Whether a hook gives the model another input than it was called with, as one that normalizes
    does.
    """
    x = accepted_input(model)
    given: list[tuple[Any, ...]] = []
    if x is None or not model._forward_pre_hooks:
        return False
    keep = model.register_forward_pre_hook(lambda _model, inputs: given.append(inputs))
    with keep, without_trace(model, train=False), torch.no_grad():
        model(x)
    return len(given[0]) != 1 or not torch.equal(given[0][0], x)


def _played(model: nn.Module, graph: fx.Graph, given: tuple[Any, ...]) -> Any:
    return fx.Interpreter(model, graph=graph).run(*given)


def _watched(model: nn.Module, names: list[str], call: Any, seed: int) -> _Seen:
    """What the layers read in a pass, and what it returns."""
    seen: _Seen = []

    def note(_: nn.Module, inputs: tuple[Any, ...], name: str) -> None:
        seen.extend((name, one.clone()) for one in inputs if isinstance(one, Tensor))

    torch.manual_seed(seed)
    with ExitStack() as hooks:
        for name in dict.fromkeys(names):
            hooks.enter_context(
                model.get_submodule(name).register_forward_pre_hook(partial(note, name=name))
            )
        returned = main_tensor(call())
    return seen if returned is None else [*seen, ("", returned)]


def _alike(one: _Seen, other: _Seen, x: Tensor) -> bool:
    within = tolerance(x.dtype if x.is_floating_point() else torch.float32)
    names, tensors = zip(*one, strict=True)
    others, found = zip(*other, strict=True)
    return names == others and agree(
        [t.double() for t in tensors], [t.double() for t in found], within=within
    )
