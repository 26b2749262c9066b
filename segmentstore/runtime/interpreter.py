"""Interpreter settings of a serving process: where Python's defaults cost a loop its punctuality.

- A full garbage collection walks every object; what start-up and recovery made lives long, so it is set aside once, and
  collections of the young run less often, during recovery as well: whoever serves already shares the loop with it.
- A thread that computes holds the interpreter for up to the switch interval after the loop asks for it: 5 ms by
  default, many times the latency of an append.
- glibc gives buffers above 128 KB back to the system as soon as they are free, and the next one is made of fresh pages,
  whose first touch costs more than filling them. Told to keep some, it hands the same pages out again.
"""

import ctypes
import gc
import sys

YOUNG_OBJECTS = 20_000
"""Allocations between two collections of the youngest generation (default 700)."""

MIDDLE_COLLECTIONS, FULL_COLLECTIONS = 4, 250
"""Collections of the younger generation between two of the next (default 10 and 10). The middle one walks at most
80,000 objects then, 5 to 18 ms under a backlog; with twenty it was 400,000 and 27 to 51 ms, as long in all."""

SWITCH_SECONDS = 0.0005

_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES_MAX = 64 << 20
_MAPPED_BYTES_MIN = 32 << 20
"""The largest that glibc takes; larger buffers are still mapped and unmapped one by one."""


def tune_for_serving() -> None:
    """Call once, before the process begins to recover or serve."""
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_COLLECTIONS, FULL_COLLECTIONS)
    sys.setswitchinterval(SWITCH_SECONDS)
    _keep_freed_memory()


def set_aside_what_lasts() -> None:
    """Call once, when everything that lasts has been made: no collection walks it any more."""
    gc.collect()
    gc.freeze()


def _keep_freed_memory() -> None:
    if sys.platform != "linux":
        return
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:  # other C libraries have none
        tune(_MALLOC_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        tune(_MALLOC_TRIM_THRESHOLD, _KEPT_BYTES_MAX)
