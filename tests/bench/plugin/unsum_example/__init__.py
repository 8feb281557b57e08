"""A package of somebody else's: one attack and one defense, known to unsum by its entry points
alone."""
