"""The steps of a read, one class per kind of `ReadResultEntryKind`."""

from collections.abc import Awaitable, Callable

from segmentstore.contracts.errors import SegmentTruncatedError
from segmentstore.contracts.segments import ReadResultEntryKind


class CachedEntry:
    """Bytes that were in the cache at this step, copied then: their block may be gone by now."""

    __slots__ = ("_content", "offset")

    kind = ReadResultEntryKind.CACHE

    def __init__(self, *, offset: int, content: bytes) -> None:
        self.offset = offset
        self._content = content

    @property
    def length_taken(self) -> int:
        return len(self._content)

    async def content(self) -> bytes:
        return self._content


class WaitingEntry:
    """Bytes that have to be waited for: from Tier 2 (STORAGE), or because they do not exist yet (FUTURE)."""

    __slots__ = ("_length_max", "_read", "kind", "length_taken", "offset")

    def __init__(
        self,
        *,
        kind: ReadResultEntryKind,
        read: Callable[[int, int], Awaitable[bytes]],
        offset: int,
        length_max: int,
    ) -> None:
        """`read` waits for bytes at an offset: from one byte to so many, or none at the end of a sealed segment."""
        self.kind = kind
        self.offset = offset
        self.length_taken = 0
        self._read = read
        self._length_max = length_max

    async def content(self) -> bytes:
        content = await self._read(self.offset, self._length_max)
        self.length_taken = len(content)
        return content


class EndOfSegmentEntry:
    """The end of a sealed segment."""

    __slots__ = ("offset",)

    kind = ReadResultEntryKind.END_OF_SEGMENT
    length_taken = 0

    def __init__(self, *, offset: int) -> None:
        self.offset = offset

    async def content(self) -> bytes:
        return b""


class TruncatedEntry:
    """An offset below the start offset."""

    __slots__ = ("_name", "_start_offset", "offset")

    kind = ReadResultEntryKind.TRUNCATED
    length_taken = 0

    def __init__(self, *, name: str, offset: int, start_offset: int) -> None:
        self.offset = offset
        self._name = name
        self._start_offset = start_offset

    async def content(self) -> bytes:
        raise SegmentTruncatedError(self._name, start_offset=self._start_offset)
