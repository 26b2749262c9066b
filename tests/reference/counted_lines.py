"""How much work something is: counted, not timed, so that a busy machine or a garbage collection decides nothing.

Lines of Python that this thread runs are counted, in functions that are called inside of the block. What C does on one
of them is not seen: this is for loops that run too often.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Lines:
    """`count` is known when the block has ended."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.count += 1
        return self.trace


@contextmanager
def counted_lines() -> Iterator[Lines]:
    lines = Lines()
    before = sys.gettrace()
    sys.settrace(lines.trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
