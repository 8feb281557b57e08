"""`flower-audit`: the same app in Flower's simulation engine, in this process; on a Ray cluster
where RAY_ADDRESS names one."""

from __future__ import annotations

import argparse
import os
import tomllib
from pathlib import Path
from typing import Any


def main() -> None:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    parser = argparse.ArgumentParser(
        prog="flower-audit", description="A federated training, audited round by round."
    )
    parser.add_argument("--clients", type=int, default=4)
    for name, value in defaults().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    chosen = vars(parser.parse_args())
    clients = chosen.pop("clients")
    simulate(clients, {name.replace("_", "-"): value for name, value in chosen.items()})


def defaults() -> dict[str, Any]:
    project = Path(__file__).parent.parent / "pyproject.toml"
    return tomllib.loads(project.read_text("utf-8"))["tool"]["flwr"]["app"]["config"]


def simulate(clients: int, settings: dict[str, Any]) -> None:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from flower_audit.client_app import app as client
    from flower_audit.server_app import train

    server = ServerApp()

    @server.main()
    def main(grid: Grid, _context: Context) -> None:
        train(grid, settings)  # a simulation from Python has no configuration of its own

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    if "RAY_ADDRESS" not in os.environ:
        resources["init_args"] = {"_node_ip_address": "127.0.0.1"}
    run_simulation(server, client, num_supernodes=clients, backend_config=resources)


if __name__ == "__main__":
    main()
