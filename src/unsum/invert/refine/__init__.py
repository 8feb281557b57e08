"""Pictures of an inverse → pictures that explain the leak better."""

from unsum.gradients import Distance
from unsum.invert.refine.misfit import MODES, Mode
from unsum.invert.refine.prior import PRIORS, Correction, Prior
from unsum.invert.refine.run import RefinedPictures, refine

__all__ = [
    "MODES",
    "PRIORS",
    "Correction",
    "Distance",
    "Mode",
    "Prior",
    "RefinedPictures",
    "refine",
]
