"""Memory for images of files that are made one after the other: touched once, and used again.

The system hands fresh memory out page by page, when it is touched, and clears each page: that costs several times as
much as to write into it. An image of 64 MB is more than what the allocator keeps, so each was written to fresh pages.

Invariants:

- The memory of an image is lent to one user at a time, from take() to give_back(). What is not given back, because it
  is not known whether some call still reads it, is never used again.
- At most `kept_bytes_max` are kept unused, counted as if all of what was once written were there.

take() and give_back() may be called in any thread.
"""

import mmap
from collections import deque
from typing import Final

from segmentstore.contracts.identifiers import BufferView

_PAGE_BYTES: Final = mmap.PAGESIZE


class ImageMemory:
    """Memory that grows as it is written. Its pages are there when they were written for the first time."""

    def __init__(self, room: int) -> None:
        """`room`: bytes that can be written before what is there has to be copied; unused, they cost nothing."""
        self._memory = mmap.mmap(-1, -(-max(room, 1) // _PAGE_BYTES) * _PAGE_BYTES)
        self.touched_bytes = 0
        """At most so many are resident."""

    def write(self, position: int, content: BufferView) -> None:
        end = position + len(content)
        if end > len(self._memory):
            larger = mmap.mmap(-1, -(-max(end, 2 * len(self._memory)) // _PAGE_BYTES) * _PAGE_BYTES)
            larger[: self.touched_bytes] = self.view(self.touched_bytes)
            self._memory = larger
        self._memory[position:end] = content
        self.touched_bytes = max(self.touched_bytes, end)

    def view(self, length: int) -> memoryview:
        """The first bytes, for reading; what is written later shows in it."""
        return memoryview(self._memory)[:length].toreadonly()


class ImageMemories:
    """Those that are not in use."""

    def __init__(self, *, room: int, kept_bytes_max: int) -> None:
        self._room = room
        self._kept_bytes_max = kept_bytes_max
        self._kept: deque[ImageMemory] = deque()

    def take(self) -> ImageMemory:
        """One that was given back, if there is one."""
        try:
            return self._kept.pop()
        except IndexError:
            return ImageMemory(self._room)

    def give_back(self, memory: ImageMemory) -> None:
        """Nothing reads it any more."""
        kept = sum(each.touched_bytes for each in list(self._kept))
        if kept + memory.touched_bytes <= self._kept_bytes_max:
            self._kept.append(memory)

    @property
    def kept_bytes(self) -> int:
        """Of unused memory."""
        return sum(each.touched_bytes for each in list(self._kept))
