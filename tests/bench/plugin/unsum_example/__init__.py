"""A package of somebody else's: one attack and one defence, known to unsum by its entry points alone."""
