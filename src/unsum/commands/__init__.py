"""Subcommands of `unsum`, one file each: parse, call, print."""
