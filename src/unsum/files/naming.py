"""Which tensor belongs to which parameter: by name, else by order and shape, and never by
guessing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor, nn

from unsum.errors import UnsumError, shown


def named_as(
    model: nn.Module, tensors: Mapping[str, Tensor], *, ordered: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors under the names of `model`'s parameters, and a sentence on whatever had to be
    assumed or left out.

    Names that are the model's own are taken as they are; its buffers (BatchNorm's statistics) are
    left out. Otherwise the tensors must be as many as the parameters, or as the entries of the
    state dict, and of the same shapes in the same order; or every shape must occur only once.
    """
    parameters = dict(model.named_parameters())
    buffers = {name for name, _ in model.named_buffers()}
    foreign = [name for name in tensors if name not in parameters and name not in buffers]
    if not foreign:
        return _without_buffers(tensors, parameters)
    # a few strange names among right ones are an error, not a convention
    if tensors.keys() & parameters.keys():
        return dict(tensors), []
    if ordered:
        for known in (
            parameters,
            {n: p for n, p in parameters.items() if p.requires_grad},
            model.state_dict(),
        ):
            if [t.shape for t in tensors.values()] == [p.shape for p in known.values()]:
                renamed, notes = _without_buffers(
                    dict(zip(known, tensors.values(), strict=True)), parameters
                )
                by_order = (
                    f"The update's names are not the model's ({shown(foreign[0])}, …), so its "
                    "tensors were matched to the parameters by order and shape, from "
                    f"{next(iter(known))!r} on; two layers of the same shape would not be told "
                    "apart if their order were another."
                )
                return renamed, [by_order, *notes]
    return _by_shape(tensors, parameters, foreign[0], ordered)


def _without_buffers(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    kept = {name: tensor for name, tensor in tensors.items() if name in parameters}
    left = len(tensors) - len(kept)
    if not left:
        return kept, []
    if not kept:
        raise UnsumError(
            "The update holds nothing but buffers of the model; it needs gradients of parameters."
        )
    return kept, [
        f"{left} tensors are buffers of the model (BatchNorm's statistics, say) and were left out."
    ]


def _by_shape(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], foreign: str, ordered: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Only where no two parameters and no two tensors share a shape: then there is one way to match
    them."""
    own = Counter(tuple(p.shape) for p in parameters.values())
    given = Counter(tuple(t.shape) for t in tensors.values())
    unknown = next((shape for shape in given if shape not in own), None)
    start = f"The update's names are not the model's ({shown(foreign)}, …)"
    if unknown is not None:
        raise UnsumError(
            f"{start}, and no parameter has the shape {shown(unknown)} of one of its tensors; pass "
            "the model that the client trained."
        )
    twice = next((shape for shape in given if own[shape] > 1 or given[shape] > 1), None)
    if twice is not None:
        order = "their order is not the model's" if ordered else "this format keeps no order"
        raise UnsumError(
            f"{start}, {order}, and several could be the one of shape {shown(twice)}; save them "
            "under the names of model.named_parameters()."
        )
    names = {tuple(p.shape): name for name, p in parameters.items()}
    renamed = {names[tuple(t.shape)]: t for t in tensors.values()}
    return renamed, [
        (
            f"{start}, so its tensors were matched to the parameters by their shapes, which are "
            "all different."
        )
    ]
