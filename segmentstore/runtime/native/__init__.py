"""The native pieces: compiled where a C compiler is at hand, and never needed.

Each has a twin in Python that does the same, bytes and errors included; tests hold them to each other.
`SEGMENTSTORE_NATIVE=off` leaves them unused, to tell whether one is to blame.
"""

import importlib
import os
from types import ModuleType

SWITCH = "SEGMENTSTORE_NATIVE"


def native_module(name: str) -> ModuleType | None:
    """The compiled module of this name; None where it was not built, or is switched off."""
    if os.environ.get(SWITCH) == "off":
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
