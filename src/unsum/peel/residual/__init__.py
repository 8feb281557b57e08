"""Through residual blocks with BatchNorm: `walk` is the method; `blocks`, `unit`, `solve` and `masks` are its parts."""

from unsum.peel.residual.walk import residual

__all__ = ["residual"]
