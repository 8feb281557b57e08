"""Update → Update: what a client or protocol does to an update before the server sees it."""

from unsum.defend.clip import Clip
from unsum.defend.defense import DEFENSES, Chain, Defense, parse_defense
from unsum.defend.noise import Noise
from unsum.defend.prune import Prune

__all__ = ["DEFENSES", "Chain", "Clip", "Defense", "Noise", "Prune", "parse_defense"]
