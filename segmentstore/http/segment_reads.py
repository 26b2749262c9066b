"""Reading a stretch of a segment: gather what is there, or wait for what comes next.

Bytes that come out are owned by the caller (H53); at most about the asked length is held.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from segmentstore.contracts.segments import ReadResultEntry, ReadResultEntryKind, Segment

_WITH_BYTES = (ReadResultEntryKind.CACHE, ReadResultEntryKind.STORAGE)


def _entries(segment: Segment, offset: int, length: int) -> AsyncGenerator[ReadResultEntry, None]:
    # The door promises an iterator held in `aclosing`, so one with aclose(); its type does not say so.
    return segment.read(offset, length)


async def gather(segment: Segment, offset: int, length_max: int) -> bytes:
    """What can be read now from `offset` on, up to `length_max` bytes; b"" at the end.

    Raises SegmentTruncatedError, BadOffsetError, SegmentNotFoundError, StorageError.
    """
    if length_max <= 0:
        return b""
    pieces: list[bytes] = []
    length = 0
    async with aclosing(_entries(segment, offset, length_max)) as entries:
        async for entry in entries:
            if entry.kind is ReadResultEntryKind.TRUNCATED:
                await entry.content()
            if entry.kind not in _WITH_BYTES:
                break
            pieces.append(await entry.content())
            length += len(pieces[-1])
            if length >= length_max:
                break
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return content if len(content) <= length_max else content[:length_max]


async def wait_for_bytes(segment: Segment, offset: int, length_max: int) -> bytes:
    """At least one byte at `offset`, waiting for it if need be; b"" if the segment is sealed there.

    Put a deadline around it. Raises what gather() raises; SegmentNotFoundError if it is deleted meanwhile.
    """
    async with aclosing(_entries(segment, offset, length_max)) as entries:
        async for entry in entries:
            content = await entry.content()
            return content if len(content) <= length_max else content[:length_max]
    raise AssertionError(f"a read without a first entry name={segment.name!r} offset={offset}")
