"""Interpreter settings of a serving process: where Python's defaults cost a loop its punctuality.

- A full garbage collection walks every object; what start-up made lives as long as the process, so it is set aside
  once, and collections of the young run less often.
- A thread that computes holds the interpreter for up to the switch interval after the loop asks for it: 5 ms by
  default, many times the latency of an append.
"""

import gc
import sys

YOUNG_OBJECTS = 20_000
"""Allocations between two collections of the youngest generation (default 700)."""

SWITCH_SECONDS = 0.0005


def tune_for_serving() -> None:
    """Call once, when everything that lasts has been made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
    sys.setswitchinterval(SWITCH_SECONDS)
