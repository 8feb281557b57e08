"""Not sending the last layer: its bias gradient, or its gradient altogether.

The head's gradient is what labels and features are read from; a client that trains the head locally
(personalised heads) need not send it.
"""

from __future__ import annotations

from dataclasses import replace

from unsum.client.step import ClientStep
from unsum.defend.defense import DEFENSES, ClientDefense, Switch
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.update import Update


class _Drop(Switch, ClientDefense):
    dropped: tuple[str, ...]
    sees_batch = False  # the model alone says what is left out

    def after(self, update: Update, step: ClientStep) -> Update:
        head, _ = find_head(step.model)
        names = {f"{head}.{tensor}" if head else tensor for tensor in self.dropped}
        kept = {name: g for name, g in update.gradients.items() if name not in names}
        if not kept:
            raise UnsumError(
                f"{self!r} leaves nothing to send: the model has no other trainable parameter."
            )
        return replace(update, gradients=kept)


@DEFENSES.register("drop-bias", summary="do not send the gradient of the last layer's bias")
class DropBias(_Drop):
    """The update without the head's bias; a head that has none is sent as it is.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 6)
        >>> inputs, labels = torch.randn(3, 8), torch.tensor([4, 4, 1])
        >>> list(unsum.capture(model, inputs, labels, defenses=unsum.DropBias()).gradients)
        ['weight']
    """

    dropped = ("bias",)


@DEFENSES.register("drop-head", summary="do not send the gradient of the last layer at all")
class DropHead(_Drop):
    """The update without the head: what attacks on the last layer read is not there.

    Examples:
        >>> import torch, unsum
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, 6)
        ... )
        >>> update = unsum.capture(
        ...     model, torch.randn(3, 8), torch.tensor([4, 4, 1]), defenses=unsum.DropHead()
        ... )
        >>> list(update.gradients)
        ['0.weight', '0.bias']
    """

    dropped = ("weight", "bias")
