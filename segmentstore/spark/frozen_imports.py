"""Keeps the garbage collector of Spark's Python processes off what was imported.

Spark looks for garbage behind every task and every question of its planner, at each object of every module: some 20 ms
each time that find nothing. What is frozen is not looked at any more.

Invariant: it is frozen again only when modules were added, so what tasks leave behind is still collected.
"""

import gc
import sys

_frozen_modules = 0


def freeze_imports() -> None:
    """Take everything that lives now for something that stays, if modules came since the last call."""
    global _frozen_modules
    if len(sys.modules) == _frozen_modules:
        return
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)
