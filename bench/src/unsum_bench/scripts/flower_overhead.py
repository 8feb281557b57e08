"""What auditing costs a federated training: time with and without, and memory over many clients.
Needs `unsum[flower]` and Ray.

    python -m unsum_bench.scripts.flower_overhead ratio
    OMP_NUM_THREADS=1 python -m unsum_bench.scripts.flower_overhead pool --steps 1 50
    python -m unsum_bench.scripts.flower_overhead memory

Runs the example project's apps (examples/flower-audit) in Flower's simulation engine, within one
process that holds the server. `pool` does without the engine: server and clients are one process,
and updates go to another one (`processes=1`). What counts is the processor time of the first, all
of its threads together, with audits and without: with a core free for the audits a round takes no
longer than that, and other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
_EXAMPLE = str(Path(__file__).parents[4] / "examples" / "flower-audit")
sys.path.append(_EXAMPLE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_EXAMPLE, os.environ.get("PYTHONPATH")]))

RATE, CLIENTS, ROUNDS = 0.1, 10, 5


def simulate(clients: int, main: Callable[[Any], None]) -> None:
    from flower_audit.client_app import app as client
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        main(grid)

    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"_node_ip_address": "127.0.0.1"},
    }
    run_simulation(server, client, num_supernodes=clients, backend_config=resources)


def train(
    grid: Any, strategy: Any, rounds: int, steps: int, note: Callable[[int], None] | None = None
) -> float:
    """Seconds of a training from the same weights."""
    import torch
    from flower_audit.task import network
    from flwr.app import ArrayRecord, ConfigRecord

    torch.manual_seed(0)
    asked = ConfigRecord(
        {"learning-rate": RATE, "batch-size": 8, "local-steps": steps, "guard": "none"}
    )
    start = time.perf_counter()
    strategy.start(
        grid,
        ArrayRecord(network().state_dict()),
        num_rounds=rounds,
        train_config=asked,
        evaluate_fn=None if note is None else lambda number, _arrays: note(number),
    )
    return time.perf_counter() - start


def audited(steps: int, **options: Any) -> Any:
    from flower_audit.task import network
    from flwr.serverapp.strategy import FedAvg

    from unsum.integrations.flower import AuditStrategy, LocalTraining

    fraction = options.pop("fraction_train", 1.0)
    inner = FedAvg(fraction_train=fraction, fraction_evaluate=0.0)
    return AuditStrategy(inner, network(), training=LocalTraining(RATE, steps=steps), **options)


def ratio(lines: list[str], pairs: int) -> Callable[[Any], None]:
    from flwr.serverapp.strategy import FedAvg

    def main(grid: Any) -> None:
        for steps, budget in ((1, None), (1, 5.0), (50, None)):
            # every worker has imported what it needs
            train(grid, FedAvg(fraction_evaluate=0.0), 1, steps)
            train(grid, audited(1, budget_seconds=60.0), 1, 1)
            without, with_, done, shares = [], [], [], []
            for _ in range(pairs):  # in turn, so that a busy machine slows both
                without.append(train(grid, FedAvg(fraction_evaluate=0.0), ROUNDS, steps))
                strategy = audited(steps, budget_seconds=budget)
                with_.append(train(grid, strategy, ROUNDS, steps))
                shares.append(strategy.audit_seconds / strategy.training_seconds)
                done.append(sum(finding.outcome == "audited" for finding in strategy.findings))
            ratios = [two / one for one, two in zip(without, with_, strict=True)]
            times = f"{statistics.median(without):.2f} s | {statistics.median(with_):.2f} s"
            part = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            count = f"{statistics.median(done):g} of {CLIENTS * ROUNDS}"
            limit = "default" if budget is None else f"{budget:g} s a round"
            lines.append(
                f"| {steps} | {limit} | {times} | {part} | {statistics.median(shares):.0%} | "
                f"{count} |"
            )

    return main


class InPlace:
    """As much of Flower's grid as a strategy asks for; clients answer one after the other, in this
    process."""

    def __init__(self) -> None:
        from flwr.supercore.task_identity import TaskIdentity

        # no engine says who makes a message
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_node_ids(self) -> list[int]:
        return [1000 + number for number in range(CLIENTS)]

    def send_and_receive(self, messages: Any, **_: Any) -> list[Any]:
        from flower_audit.client_app import app
        from flwr.app import Context, RecordDict

        def answered(message: Any) -> Any:
            node = message.metadata.dst_node_id
            return app(message, Context(1, node, {"partition-id": node - 1000}, RecordDict(), {}))

        return [answered(message) for message in messages]


def pool(lines: list[str], pairs: int, steps: int) -> None:
    """Rounds with audits behind them beside rounds without, and what handing over and the pool's
    own thread take of a round."""
    from flwr.serverapp.strategy import FedAvg

    from unsum.integrations.flower import AuditStrategy
    from unsum.integrations.pool import AuditPool

    spent = [counted(AuditStrategy, "_hand_over"), counted(AuditPool, "_run")]

    def rounds_of(strategy: Any) -> float:
        """Processor seconds a round from the first one's end to the last one's; by then the pool
        has started."""
        ends: dict[int, float] = {}
        train(
            InPlace(),
            strategy,
            ROUNDS + 1,
            steps,
            lambda number: ends.__setitem__(number, time.process_time()),
        )
        return (ends[ROUNDS + 1] - ends[1]) / ROUNDS

    rounds_of(FedAvg(fraction_evaluate=0.0))
    without, with_, done = [], [], []
    for _ in range(pairs):
        without.append(rounds_of(FedAvg(fraction_evaluate=0.0)))
        strategy = audited(steps, processes=1, budget_seconds=5.0)
        with_.append(rounds_of(strategy))
        done.append(sum(finding.outcome == "audited" for finding in strategy.findings))
    ratios = [two / one for one, two in zip(without, with_, strict=True)]
    times = f"{statistics.median(without):.3f} s | {statistics.median(with_):.3f} s"
    part = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    shares = [sum(one) / (pairs * (ROUNDS + 1)) / statistics.median(without) for one in spent]
    count = f"{statistics.median(done):g} of {CLIENTS * (ROUNDS + 1)}"
    lines.append(f"| {steps} | {times} | {part} | {shares[0]:.2%} | {shares[1]:.2%} | {count} |")


def counted(owner: type, name: str) -> list[float]:
    """Processor seconds of every call of a method, in the thread that calls it."""
    plain, seconds = getattr(owner, name), list[float]()

    def count(*arguments: Any) -> Any:
        start = time.thread_time()
        try:
            return plain(*arguments)
        finally:
            seconds.append(time.thread_time() - start)

    setattr(owner, name, count)
    return seconds


def memory(lines: list[str], rounds: int) -> Callable[[Any], None]:
    def main(grid: Any) -> None:
        held: dict[int, float] = {}
        strategy = audited(1, fraction_train=0.02, budget_seconds=5.0)
        train(grid, strategy, rounds, 1, lambda number: held.__setitem__(number, resident()))
        done = sum(finding.outcome == "audited" for finding in strategy.findings)
        seen = len({finding.client for finding in strategy.findings})
        lines.append(f"{done} updates of {seen} clients audited in {rounds} rounds")
        lines.extend(f"| {number} | {size:.0f} MB |" for number, size in held.items())

    return main


def resident() -> float:
    """Megabytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["ratio", "pool", "memory"])
    parser.add_argument("--pairs", type=int, default=3, help="trainings with and without, in turn")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[50], help="local steps of a client, for the pool"
    )
    parser.add_argument("--clients", type=int, default=1000, help="for memory")
    parser.add_argument("--rounds", type=int, default=8, help="for memory")
    chosen = parser.parse_args()
    lines: list[str] = []
    if chosen.what == "ratio":
        simulate(CLIENTS, ratio(lines, chosen.pairs))
    elif chosen.what == "pool":
        for steps in chosen.steps:
            pool(lines, chosen.pairs, steps)
    else:
        simulate(chosen.clients, memory(lines, chosen.rounds))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
