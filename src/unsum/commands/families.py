"""All methods that are registered, by family: what `unsum list` shows."""

from __future__ import annotations

from typing import Any

from unsum.active import SERVERS
from unsum.attack.auto import CHOICES
from unsum.defend import DEFENSES
from unsum.invert import INVERTERS
from unsum.labels import LABEL_RULES
from unsum.match import MATCHERS
from unsum.peel import PEELERS
from unsum.separate import SEPARATORS

_FAMILIES: dict[str, Any] = {
    "attacks (--attack)": SEPARATORS,
    "gradient matching (--attack)": MATCHERS,
    "label rules (--labels)": LABEL_RULES,
    "peelers": PEELERS,
    "inverters": INVERTERS,
    "servers that change the model (--server)": SERVERS,
    "defenses (--defense)": DEFENSES,
}


def listed_methods() -> dict[str, list[dict[str, str]]]:
    """Every family's methods, with those of plug-ins; what `auto` tries comes first."""
    tried = [{"name": choice.method, "when": choice.when, "says": choice.says} for choice in CHOICES]
    return {"what --attack auto tries, in this order": tried} | {
        title: [{"name": e.name, "summary": e.summary, "needs": e.needs} for e in family]
        for title, family in _FAMILIES.items()
    }
