"""Federated averaging with an audit around it, and a report on the update that gave away most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import unsum
from flower_audit.task import network
from unsum.integrations.flower import AuditStrategy, LocalTraining
from unsum.integrations.flower_store import StoreUpdates

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    train(grid, dict(context.run_config))


def train(grid: Grid, settings: dict[str, Any]) -> None:
    out = Path(settings["out"]).absolute()
    torch.manual_seed(0)
    model = network()
    strategy = AuditStrategy(
        # for `unsum audit --flower-run`, afterwards
        StoreUpdates(FedAvg(fraction_evaluate=0.0), out / "seen"),
        model,
        training=LocalTraining(settings["learning-rate"], steps=settings["local-steps"]),
        # these rounds take less than a second; the default would be a tenth of that
        budget_seconds=10,
        folder=out,
    )
    asked = ConfigRecord(
        {name: settings[name] for name in ("learning-rate", "batch-size", "local-steps", "guard")}
    )
    strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=settings["rounds"], train_config=asked
    )
    print("\n".join(["", *table(strategy)]))
    if strategy.worst is None:
        print("No update was audited, so there is no report.")
        return
    finding, sent, seen = strategy.worst
    audit = unsum.audit(sent, update=seen.update)
    page = audit.write(out / "worst", force=True)
    print(f"\nThe worst was client {finding.client} in round {finding.round}: {page}")


def table(strategy: AuditStrategy) -> list[str]:
    lines = [
        (
            f"{'round':>5}  {'client':>20}  {'samples':>7}  {'certain':>7}  {'leakage':>7}  labels "
            "found"
        )
    ]
    for finding in strategy.findings:
        if finding.outcome != "audited":
            lines.append(f"{finding.round:5}  {finding.client:>20}  {finding.outcome}")
            continue
        certain = "yes" if finding.exact else "no"
        found = " ".join(str(label) for label in finding.label_counts)
        # NaN: nobody knows
        leakage = f"{finding.leakage:7.2f}" if finding.leakage == finding.leakage else f"{'–':>7}"
        lines.append(
            f"{finding.round:5}  {finding.client:>20}  {finding.batch_size:7}  {certain:>7}  "
            f"{leakage}  {found}"
        )
    return lines
