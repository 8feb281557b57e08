"""A live page on this machine: choose photos and a defense, and watch what one update gives
away."""

from unsum.app.server import create_app, serve

__all__ = ["create_app", "serve"]
