"""Update → Update, or a change inside the client: what happens to an update before the server sees
it."""

from unsum.defend.aggregate import SecAgg, aggregate
from unsum.defend.clip import Clip, ClipLayers
from unsum.defend.defense import DEFENSES, ClientDefense, Defense, parse_defense
from unsum.defend.dp import DPSGD, privacy_spent, replace_batch_norm
from unsum.defend.drop import DropBias, DropHead
from unsum.defend.half import BFloat16, Float16
from unsum.defend.mix import Mixup
from unsum.defend.noise import Laplace, Noise
from unsum.defend.platforms import (
    FlowerAdaptiveClipping,
    FlowerFixedClipping,
    FlowerLocalDP,
    NvflareExcludeVars,
    NvflarePercentile,
    NvflareSVT,
    OpacusReadme,
)
from unsum.defend.prune import Prune, PruneGlobal
from unsum.defend.qsgd import QSGD
from unsum.defend.quantize import Quantize
from unsum.defend.sign import Sign
from unsum.defend.smooth import SmoothLabels
from unsum.defend.soteria import Soteria

__all__ = [
    "DEFENSES",
    "DPSGD",
    "QSGD",
    "BFloat16",
    "ClientDefense",
    "Clip",
    "ClipLayers",
    "Defense",
    "DropBias",
    "DropHead",
    "Float16",
    "FlowerAdaptiveClipping",
    "FlowerFixedClipping",
    "FlowerLocalDP",
    "Laplace",
    "Mixup",
    "Noise",
    "NvflareExcludeVars",
    "NvflarePercentile",
    "NvflareSVT",
    "OpacusReadme",
    "Prune",
    "PruneGlobal",
    "Quantize",
    "SecAgg",
    "Sign",
    "SmoothLabels",
    "Soteria",
    "aggregate",
    "parse_defense",
    "privacy_spent",
    "replace_batch_norm",
]
