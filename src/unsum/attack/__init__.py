"""Model, update, knowledge → everything that can be read out of one update: chooses the methods and
chains them."""

from unsum.attack.chain import attack
from unsum.separate import separate

__all__ = ["attack", "separate"]
