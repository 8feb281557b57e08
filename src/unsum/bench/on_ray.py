"""Cells as tasks of a Ray cluster: this machine's cores and GPUs, or many machines'. Results come back to the one store.

An attack's own error is an outcome like any other. What Ray sees fail is a worker that was lost (killed, out of memory, its
machine gone): such a cell is given to another worker, a few times. Every node needs unsum and the files of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from unsum.bench.declare import Cell
from unsum.bench.material import Material, code_version
from unsum.bench.measure import Outcome, measure
from unsum.bench.run import Shown
from unsum.cluster import connected
from unsum.errors import UnsumError

_RETRIES = 3  # of a cell whose worker was lost
_AHEAD = 2  # tasks in flight for every one that can run


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray, as a way to measure cells."""

    ray: Any
    gpus: float  # of one cell; 0 on CPUs

    def __call__(self, cells: Iterable[Cell], material: Material, progress: Shown) -> Iterator[tuple[Cell, Outcome]]:
        task = self.ray.remote(_measured).options(
            num_cpus=material.threads, num_gpus=self.gpus, max_retries=_RETRIES, retry_exceptions=False
        )
        waiting = iter(cells)
        flying: dict[Any, Cell] = {}
        while True:
            found = self.ray.cluster_resources()
            places = found.get("GPU", 0) / self.gpus if self.gpus else found.get("CPU", 1) / material.threads
            for cell in islice(waiting, max(0, _AHEAD * max(1, int(places)) - len(flying))):
                flying[task.remote(cell, material, code_version())] = cell
            if not flying:
                return
            progress.begin(f"{len(flying)} cells on {len(self.ray.nodes())} nodes")
            done, _ = self.ray.wait(list(flying), num_returns=1)
            for reference in done:
                yield flying.pop(reference), self._outcome(reference)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UnsumError):  # another unsum on that node: every cell would fail alike
                raise error.cause from None
            raise
        except self.ray.exceptions.RayError as error:
            reason = str(error).splitlines()[0]
            return Outcome(
                "failed", sentence=f"its worker was lost {_RETRIES + 1} times: {reason}", traceback=str(error)
            )
        return outcome


def _measured(cell: Cell, material: Material, version: str) -> Outcome:
    """On a worker, which must have the code that the key was made for."""
    if code_version() != version:
        raise UnsumError(
            f"A node of the cluster has another unsum (code {code_version()}, not {version}); install the same on all."
        )
    return measure(cell, material)


@contextmanager
def cluster(address: str, material: Material, *, gpus: float = 1.0) -> Iterator[Cluster]:
    """`auto`: the cluster that this machine belongs to, or one of its own; `local`: its own; else an address, HOST:PORT."""
    needed = gpus if material.device.startswith("cuda") else 0.0
    with connected(address) as ray:
        found = ray.cluster_resources()
        if needed and found.get("GPU", 0) < needed:
            raise UnsumError(
                "No node of the Ray cluster has a GPU; leave --device cuda out, or start one with --num-gpus."
            )
        if not needed and found.get("CPU", 0) < material.threads:
            raise UnsumError(
                f"No node of the Ray cluster has {material.threads} CPUs free for a cell; lower --threads."
            )
        yield Cluster(ray, needed)
