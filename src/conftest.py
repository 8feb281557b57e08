"""Doctests see the package as users do: imported whole, so that `unsum.audit` is the function and
not its folder."""

import unsum  # noqa: F401
