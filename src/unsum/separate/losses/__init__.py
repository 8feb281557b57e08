"""Losses other than cross-entropy: what each says about G, and how to start and solve. See `loss` for the idea."""
