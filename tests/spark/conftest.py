"""Stores that the tests start are forked from a process that has loaded the program."""

from tests.preloaded_command import servers_are_forks

__all__ = ["servers_are_forks"]
