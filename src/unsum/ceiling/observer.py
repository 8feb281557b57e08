"""Who looks at the update, and how much noise lies between the client and there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from unsum.defend.added import AddedNoise
from unsum.errors import UnsumError
from unsum.running.declared import check_whole


@dataclass(frozen=True)
class Observer:
    """`server`: sees this client's update. `aggregate`: a server behind secure aggregation, which
    sees the mean of `clients` updates. `outsider`: sees the mean after the server's own noise of
    deviation `noise`.

    The other clients' data are granted, so that their updates cancel. The noise that each of them
    adds to its own, and sends as it is, does not: Gaussian noise of K clients is √K as large in the
    sum. In units of this client's update, the noise of the mean is

        σ √K  (each client's)      √((σ √K)² + (K σ_server)²)  (with the server's)

    Examples:
        >>> from unsum.defend.added import AddedNoise
        >>> Observer("outsider", clients=4, noise=0.1).sees(AddedNoise("gaussian", 0.15)).scale
        0.5
    """

    kind: Literal["server", "aggregate", "outsider"] = "server"
    clients: int = 1
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_whole("The number of clients", self.clients)
        if self.kind not in ("server", "aggregate", "outsider"):
            raise UnsumError(f"The observer is server, aggregate or outsider, not {self.kind!r}.")
        if self.kind == "server" and (self.clients > 1 or self.noise):
            raise UnsumError(
                "The server sees a single client's update before it adds noise; name the observer "
                "aggregate or outsider."
            )
        if self.kind == "aggregate" and self.noise:
            raise UnsumError(
                "Behind secure aggregation the server sees the sum before its own noise; "
                "leave that noise out."
            )
        if not 0 <= self.noise < math.inf:
            raise UnsumError(
                f"The server's noise is a standard deviation of at least 0, not {self.noise}."
            )

    @property
    def sentence(self) -> str:
        """Who looks, in words."""
        if self.kind == "server":
            return "The observer is the server, which sees this client's update."
        mean = f"the mean of {self.clients} clients' updates, the others' data granted"
        if self.kind == "aggregate":
            return f"The observer is the server behind secure aggregation, which sees {mean}."
        noise = f"with the server's noise of {self.noise:g}"
        return f"The observer is an outsider, who sees {mean}, {noise}."

    def sees(self, noise: AddedNoise | None) -> AddedNoise | None:
        """All noise between the client and the observer, in units of this client's update."""
        central = self.clients * self.noise if self.kind == "outsider" else 0.0
        if noise is None:
            return AddedNoise("gaussian", central) if central else None
        # Of Laplace noise, what the others or the server add is left out: the ceiling stays one.
        # Nor does it count where each client rounds, clips or takes signs after its noise: of an
        # update that is large beside it, none of the noise may be left then.
        if noise.kind != "gaussian" or noise.processed:
            return noise
        own = noise.scale * math.sqrt(self.clients)
        return AddedNoise("gaussian", math.hypot(own, central), noise.every_step)
