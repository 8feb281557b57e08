"""Updates as tasks of a Ray cluster: this machine's cores, or many machines'. A worker that is lost costs another try."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from unsum.audit.finding import ClientFinding
from unsum.audit.many.arrived import Arrived
from unsum.audit.many.workers import TRIES, Answers, Campaign, lost
from unsum.cluster import connected

_AHEAD = 2  # tasks in flight for every one that can run


def on_ray(task: Campaign, arrived: Iterable[Arrived], address: str) -> Answers:
    """On the cluster at `address`: `auto`, `local` or HOST:PORT. Files must be where every node can read them."""
    with connected(address) as ray:
        gpus = 1.0 if str(task.options.device).startswith("cuda") else 0.0
        model = ray.put(task)  # once for the cluster, not once an update
        remote = ray.remote(_looked).options(num_cpus=1, num_gpus=gpus, max_retries=TRIES - 1, retry_exceptions=False)
        waiting, flying = iter(arrived), dict[Any, Arrived]()
        while True:
            found = ray.cluster_resources()
            places = max(1, int(found.get("GPU", 0) if gpus else found.get("CPU", 1)))
            for one in islice(waiting, max(0, _AHEAD * places - len(flying))):
                flying[remote.remote(model, one)] = one
            if not flying:
                return
            done, _ = ray.wait(list(flying), num_returns=1)
            for reference in done:
                one = flying.pop(reference)
                yield one, _answer(ray, reference, one)


def _answer(ray: Any, reference: Any, one: Arrived) -> ClientFinding:
    try:
        finding: ClientFinding = ray.get(reference)
    except ray.exceptions.RayError as error:
        return lost(one, str(error).splitlines()[0])
    return finding


def _looked(task: Campaign, one: Arrived) -> ClientFinding:
    """On a worker."""
    return task.look(one)
