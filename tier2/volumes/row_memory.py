"""Memory in which rows are made where they were read: a piece of a volume is read to here, and its rows are views.

Invariant: nothing that lies here is a good row any more after `clear`; whoever keeps a row longer copies it.
"""

import mmap


class RowMemory:
    """`size` bytes; the system gives them when they are written for the first time."""

    def __init__(self, size: int) -> None:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = memoryview(memory)
        self.used = 0
        """Bytes that are kept."""

    def has_room(self, length: int) -> bool:
        """Whether `next` may be asked for so many bytes."""
        return self.used + length <= len(self._memory)

    def next(self, length: int) -> memoryview:
        """Writable, with anything in it; the next call gives the same unless `keep` is called."""
        assert self.has_room(length), f"{self.used=} {length=} {len(self._memory)=}"
        return self._memory[self.used : self.used + length]

    def keep(self, length: int) -> None:
        """So many bytes of what was given last stay until `clear`."""
        self.used += length

    def clear(self) -> None:
        """No row is needed any more."""
        self.used = 0
