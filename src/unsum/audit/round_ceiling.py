"""What nobody can exceed of a client after so many rounds, from data that stand in for its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from unsum.audit.wording import percent, sample_count

NEEDS_DATA = (
    "No ceiling was computed: nobody can play a client without data. Give samples of the clients' "
    "kind, as many as the smallest client has, and the noise that clients declare"
)


@dataclass(frozen=True)
class RoundCeiling:
    """The largest `ceiling` of any of the `samples` of a stand-in client that took part in so many
    `rounds`."""

    round: int
    rounds: int
    ceiling: float
    pairs: int
    seconds: float
    why: str = ""  # of a ceiling that no measurement gave
    samples: int = 0

    @property
    def sentence(self) -> str:
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        told = f"After {rounds} the ceiling is {percent(self.ceiling)}"
        if self.why:
            return f"{told}: {self.why[0].lower()}{self.why[1:]}"
        return (
            f"{told}, for a client with {sample_count(self.samples)} like those given that takes "
            f"part in each of them, under the noise declared ({self.pairs} pairs of worlds a "
            "round)."
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence}
