"""Two worlds: what nobody can exceed. A secret has two values, the client is played in both, and
the distance of the two
noise-free updates over the noise bounds every attacker. The attacking side never imports this."""

from unsum.ceiling.observer import Observer
from unsum.ceiling.prove import Effort, Simulation, prove
from unsum.ceiling.result import Ceiling

__all__ = ["Ceiling", "Effort", "Observer", "Simulation", "prove"]
