"""A training on Ray for `cases_killed.py`: FOLDER CLIENTS ROUNDS KILLED_IN. Clients keep logs of
their own.

In round KILLED_IN the first client's process ends without a word, as when a machine is switched
off; in the first round the last client has a guard.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import network, photos, trained

from unsum.integrations.flower import AuditStrategy, LocalTraining, leakage_guard_mod

RATE = 0.02  # so small that later rounds are as the first
FOLDER = Path(sys.argv[1])
CLIENTS, ROUNDS, KILLED_IN = map(int, sys.argv[2:5])
KNOWN = LocalTraining(learning_rate=RATE, steps=1)


def log(place: int, **line: object) -> None:
    with (FOLDER / f"client-{place}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def watched(message: Message, context: Context, call_next) -> Message:
    """The outermost mod: notes what really leaves the client."""
    number, place = (
        int(message.content["config"]["server-round"]),
        int(context.node_config["partition-id"]),
    )
    guard = leakage_guard_mod(network(), training=KNOWN, attack="exact", budget_seconds=120)
    guarded = number == 1 and place == CLIENTS - 1
    answer = guard(message, context, call_next) if guarded else call_next(message, context)
    told = {"round": number, "client": str(context.node_id)}
    if answer.has_error():
        log(place, event="held back", reason=answer.error.reason, **told)
    else:
        log(place, event="sent", labels=photos(4 * place)[1].tolist(), **told)
    return answer


client = ClientApp(mods=[watched])


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    number, place = (
        int(message.content["config"]["server-round"]),
        int(context.node_config["partition-id"]),
    )
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    after = trained(model, *photos(4 * place), rate=RATE)
    if number == KILLED_IN and place == 0:
        log(place, event="about to die", round=number, client=str(context.node_id))
        os.kill(os.getpid(), signal.SIGKILL)
    content = {"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": 4})}
    return Message(RecordDict(content), reply_to=message)


class Noted(AuditStrategy):
    """Writes each round's metrics down, as Flower's history gets them."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        with (FOLDER / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": server_round, **dict(metrics or {})}) + "\n")
        return arrays, metrics


server = ServerApp()


@server.main()
def main(grid: Grid, _context: Context) -> None:
    model = network()
    strategy = Noted(
        FedAvg(fraction_evaluate=0.0),
        model,
        training=KNOWN,
        budget_seconds=60,
        folder=FOLDER / "audit",
    )
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)


if __name__ == "__main__":
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"_node_ip_address": "127.0.0.1", "num_cpus": 2},
    }
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
