"""Model, update, knowledge → everything that can be read out of one update: chooses the methods and chains them."""

from unsum import spans  # noqa: F401 (registers its separator)
from unsum.attack.chain import attack
from unsum.separate import separate  # from here with every separator registered

__all__ = ["attack", "separate"]
