"""The native pieces: compiled where a C compiler is at hand, and never needed.

Each has a twin in Python that does the same, bytes and errors included; tests hold them to each other.
`SEGMENTSTORE_NATIVE=off` leaves them unused, to tell whether one is to blame.
"""

import importlib
import os
from collections.abc import Sequence
from types import ModuleType

SWITCH = "SEGMENTSTORE_NATIVE"


NATIVE_MODULES = (
    "segmentstore.codec.native.record_columns",
    "segmentstore.runtime.native.digests",
    "tier2.format.native.record_transcoding",
    "tier2.volumes.native.record_seal",
    "tier2.volumes.native.record_walk",
    "tier2.volumes.native.row_reading",
)
"""All of them."""


def not_compiled() -> Sequence[str]:
    """Those whose twins serve in this process."""
    return [name for name in NATIVE_MODULES if native_module(name) is None]


def native_module(name: str) -> ModuleType | None:
    """The compiled module of this name; None where it was not built, or is switched off."""
    if os.environ.get(SWITCH) == "off":
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
