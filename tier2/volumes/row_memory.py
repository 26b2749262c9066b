"""Memory in which rows are made where they were read: a piece of a volume is copied here once, and its rows are views.

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
        """Whether `copy_of` may be asked for so many bytes."""
        return self.used + length <= len(self._memory)

    def copy_of(self, content: bytes) -> memoryview:
        """Writable; the next copy takes its place unless `keep` is called."""
        assert self.has_room(len(content)), f"{self.used=} {len(content)=} {len(self._memory)=}"
        view = self._memory[self.used : self.used + len(content)]
        view[:] = content
        return view

    def keep(self, length: int) -> None:
        """So many bytes of the newest copy stay until `clear`."""
        self.used += length

    def clear(self) -> None:
        """No row is needed any more."""
        self.used = 0
