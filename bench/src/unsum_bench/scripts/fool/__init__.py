"""The search for false claims: `run`, and beside it a module for each path that can claim."""
