"""A client as in Flower's own tutorials: it trains as the server asks it to and sends its whole
state dict back."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flower_audit.task import network, private_pictures
from unsum.integrations.flower import LocalTraining, leakage_guard_mod


def guard(message: Message, context: Context, call_next):
    """First in the list of mods, and so the last to see what leaves."""
    settings = message.content["config"]
    if settings["guard"] == "none":
        return call_next(message, context)
    known = LocalTraining(settings["learning-rate"], steps=settings["local-steps"])
    mod = leakage_guard_mod(network(), 0.2, settings["guard"], training=known)
    return mod(message, context, call_next)


app = ClientApp(mods=[guard])


@app.train()
def train(message: Message, context: Context) -> Message:
    settings = message.content["config"]
    torch.set_num_threads(1)  # many clients share this machine
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning-rate"])
    images, labels = private_pictures(int(context.node_config["partition-id"]))
    order = torch.randperm(
        len(images), generator=torch.Generator().manual_seed(settings["server-round"])
    )
    size, steps, losses = settings["batch-size"], settings["local-steps"], []
    for step in range(steps):
        chosen = order[torch.arange(step * size, (step + 1) * size) % len(order)]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    metrics = MetricRecord({"train-loss": sum(losses) / len(losses), "num-examples": size * steps})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}),
        reply_to=message,
    )
