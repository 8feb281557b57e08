"""What a client sends whose network is no classifier with a linear head: one gradient of a loss of
any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unsum.client.step import in_mode
from unsum.errors import UnsumError, first_line
from unsum.gradients import same_buffers
from unsum.network.loss_function import LossFunction
from unsum.network.passes import main_tensor
from unsum.update import Update

_GIVE = (
    "give the loss as a function of the model's output and the targets: "
    "unsum.audit(model, data, client=unsum.ClientTraining(loss=function))"
)


def capture_any(
    model: nn.Module, inputs: Any, targets: Any, loss: LossFunction | None, *, train: bool
) -> Update:
    """The update after one step on these inputs.

    Without a `loss` it is what such targets usually mean: cross-entropy of classes, or of masks of
    classes pixel by pixel; for a list of mappings, as torchvision's detectors take it, the sum of
    the losses that the model returns itself.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with in_mode(model, train), same_buffers(model), torch.enable_grad():
            total = _loss(model, inputs, targets, loss)
            found = torch.autograd.grad(total, parameters, allow_unused=True)
    except UnsumError:
        raise
    except Exception as error:  # the user's own forward and loss
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UnsumError(
            f"{type(model).__name__} cannot be trained on these data ({reason}); {_GIVE}."
        ) from error
    return Update({name: g.detach() for name, g in zip(names, found, strict=True) if g is not None})


def _loss(model: nn.Module, inputs: Any, targets: Any, loss: LossFunction | None) -> Tensor:
    if _are_mappings(targets):
        returned = model(list(inputs), list(targets))
        if not isinstance(returned, Mapping):
            raise UnsumError(
                f"{type(model).__name__} returns no losses for boxes in train mode; {_GIVE}."
            )
        return torch.stack([one for one in returned.values() if isinstance(one, Tensor)]).sum()
    returned = model(inputs)
    if loss is not None:
        return loss(returned, targets)
    output = main_tensor(returned)
    classes = isinstance(targets, Tensor) and not targets.is_floating_point()
    if output is None or not classes or output.shape[:1] + output.shape[2:] != targets.shape:
        shapes = [tuple(one.shape) for one in (output, targets) if isinstance(one, Tensor)]
        raise UnsumError(
            f"What {type(model).__name__} minimizes is not known (output and targets: {shapes}); "
            f"name it (--loss mse, --loss bce), {_GIVE}, or the update that the client sent "
            "(--update)."
        )
    return usual_loss(returned, targets)


def usual_loss(returned: Any, targets: Tensor) -> Tensor:
    """Cross-entropy over dimension 1, which masks of class numbers usually mean; probabilities may
    stand for class numbers."""
    return nn.functional.cross_entropy(main_tensor(returned), targets)  # type: ignore[arg-type] # checked, or it raises


def is_annotated(data: Any) -> bool:
    """Whether these are (inputs, targets) with a mapping for each input: boxes with labels, say."""
    return isinstance(data, tuple) and len(data) == 2 and _are_mappings(data[1])


def _are_mappings(targets: Any) -> bool:
    listed = isinstance(targets, Sequence) and not isinstance(targets, str | bytes)
    return listed and len(targets) > 0 and all(isinstance(one, Mapping) for one in targets)
