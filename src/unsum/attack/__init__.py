"""Model, update, knowledge → everything that can be read out of one update: chooses the methods and chains them."""

from unsum.attack.recipe import attack

__all__ = ["attack"]
