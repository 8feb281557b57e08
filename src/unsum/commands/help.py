"""The help of `unsum` itself, in plain words: what draws boxes and parses options takes longer to
load than this to read."""

from __future__ import annotations

import textwrap
from functools import partial

ABOUT = (
    "What does one federated-learning update give away? Audit systems that you operate or may test."
)
SUMMARIES = {  # the first sentences of the commands' own help, which a test holds against them
    "audit": "Simulate one federated round, attack its update, and report what was recovered; or "
    "attack an update that was captured.",
    "ceiling": (
        "Prove an upper limit of what any attacker reads of each sample, whatever it computes."
    ),
    "capture": "Compute the update that one client would send after one step, and save it.",
    "attack": "Attack a captured update: no data are needed, and none are looked at.",
    "doctor": (
        "Say what an audit would run into, without running it, and whether a model (or a file of "
        "weights) looks tampered with."
    ),
    "train-inverse": (
        "Train the network that turns a backbone's features back into pictures, on photos of your "
        "own."
    ),
    "app": "Choose photos and a defense on a live page, and watch what one update gives away.",
    "list": (
        "Every attack, label rule, peeler, inverter, server and defense by name; of one family, "
        "what each does and needs."
    ),
    "bench": (
        "The papers' tables and every attack against every defense: resumable, on this machine or "
        "a Ray cluster."
    ),
}
OPTIONS = {
    "--version": "Print the version.",
    "--verbose": "Show the traceback of an error, wherever this stands.",
    "--help": "Show this message; `unsum COMMAND --help` shows a command's.",
}
_WIDTH = 100  # columns


def shown() -> str:
    """The whole help."""
    parts = [f"Usage: unsum [OPTIONS] COMMAND [ARGS]...\n\n{ABOUT}"]
    for title, rows in (("Options", OPTIONS), ("Commands", SUMMARIES)):
        wrap = partial(textwrap.fill, width=_WIDTH, subsequent_indent=" " * 16)
        lines = (wrap(text, initial_indent=f"  {name:<14}") for name, text in rows.items())
        parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(parts)
