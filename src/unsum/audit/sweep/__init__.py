"""Leakage against the strength of a defense, with what it costs in accuracy: how strong is strong
enough?"""
