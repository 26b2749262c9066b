"""Bytes that are not in the cache now: from Tier 2, or from an append that has not happened yet.

The state is looked at again after every wait, because a segment may be truncated, sealed, merged or deleted meanwhile
(H19). A byte behind a merge redirect is asked for under the source's id; when Tier 2 does not know the source any
more, the merge was published a moment ago and the bytes are under the target's id (H57).
"""

from typing import TYPE_CHECKING

from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    ServiceHaltError,
)

if TYPE_CHECKING:
    from containers.reading.segment_read_index import SegmentReadIndex
    from containers.reading.storage_fetch import StorageFetches


async def wait_for_bytes(
    index: "SegmentReadIndex", fetches: "StorageFetches", offset: int, length_max: int
) -> bytes:
    """At least one byte from `offset` on; b"" if the segment ends there for good.

    Raises SegmentTruncatedError, StorageError, TooManyWaitersError, and what `gone()` was told.
    """
    metadata = index.metadata
    while True:
        index.raise_if_unreadable(offset)
        if offset < metadata.length:
            break
        if metadata.sealed:
            return b""
        await index.next_change()
    try:
        content = await _read(index, fetches, offset, min(offset + length_max, metadata.length))
    except SegmentStoreError:
        index.raise_if_unreadable(offset)
        raise
    index.raise_if_unreadable(offset)
    return content


async def _read(
    index: "SegmentReadIndex", fetches: "StorageFetches", offset: int, end: int
) -> bytes:
    misses = 0
    known_path: list[tuple[SegmentReadIndex, int, int]] = []
    while True:
        content = index.copy_cached(offset, end)
        if content:
            return content
        path = index.resolve(offset, end)
        if path != known_path:
            # A merge was completed while we waited: what was learnt about the old path is void.
            known_path = path
            misses = 0
        innermost, begin, inner_end = path[-1]
        length = innermost.uncached_end(begin, inner_end) - begin
        if misses == 0:
            length = min(length, innermost.metadata.storage_length - begin)
            if length <= 0:
                raise ServiceHaltError(f"byte {begin} is nowhere: {innermost.metadata!r}")
        owner, begin, _ = path[-1 - misses]
        try:
            return await fetches.read(owner, begin, length)
        except (SegmentNotFoundError, SegmentTruncatedError, ValueError) as error:
            misses += 1
            if misses == len(path):
                if index.resolve(offset, end) != path:
                    continue
                raise CorruptedDataError(
                    f"tier 2 lacks bytes it should have segment={owner.metadata.segment_id} offset={begin}"
                ) from error
