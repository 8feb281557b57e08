"""A process of its own with little memory: what runs there either fits into it, or the test sees
that it did not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_START = """
import json, resource, sys
import unsum, unsum.attack.chain, unsum.integrations.finding, torch, torchvision
torch.linalg.eigh(torch.eye(3))  # libraries that are loaded late are no part of what is measured
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {room},) * 2)
given = json.load(sys.stdin)
"""


def within_memory(program: str, given: Any, *, room: int = 1 << 30, timeout: float = 120) -> Any:
    """What `program` prints last, as JSON; it finds `given` under that name, and `room` more bytes
    than it starts with."""
    child = subprocess.run(
        [sys.executable, "-c", _START.format(room=room) + program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout.splitlines()[-1])
