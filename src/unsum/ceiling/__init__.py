"""Two worlds: what nobody can exceed. A secret has two values, the client is played in both, and
the distance of the two
noise-free updates over the noise bounds every attacker. The attacking side never imports this."""

from unsum.ceiling.observer import Observer
from unsum.ceiling.prove import Effort, prove
from unsum.ceiling.result import Ceiling
from unsum.ceiling.simulation import Simulation

__all__ = ["Ceiling", "Effort", "Observer", "Simulation", "prove"]
