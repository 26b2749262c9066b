"""Tier 2 as a recovery asks it: each request has a limit in time.

A request whose answer is lost on the way is tried again for minutes, and nothing else serves the container meanwhile. A
start that meets one fails instead: another host may reach Tier 2, and where none does the next start goes by the log
alone.

Invariants:
- a request that is given up raises StorageUnavailableError, and may still take place: the next claim settles
  a publication;
- a limit grows with what is asked for, so that a slow Tier 2 fails no start for long.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from segmentstore.contracts.errors import StorageUnavailableError
from segmentstore.contracts.identifiers import ContainerId, SegmentId
from segmentstore.contracts.storage import (
    DataPiece,
    Publication,
    SegmentRecord,
    Storage,
    StorageRead,
)

LOAD_SECONDS_MAX = 10.0
"""For what Tier 2 knows of segments, with RECORD_SECONDS for each of them, and for a read, with MEBIBYTE_SECONDS."""
PUBLISH_SECONDS_MAX = 60.0
"""For a publication, which may have to merge SSTs first, with both besides."""
RECORD_SECONDS = 0.05
MEBIBYTE_SECONDS = 1.0


class TimelyStorage:
    """What a recovery asks of a claimed manifest."""

    def __init__(self, *, storage: Storage, container_id: ContainerId) -> None:
        self._storage = storage
        self._container_id = container_id

    async def load(self, segment_ids: Sequence[SegmentId]) -> Mapping[SegmentId, SegmentRecord]:
        """As Storage.load()."""
        seconds_max = LOAD_SECONDS_MAX + len(segment_ids) * RECORD_SECONDS
        async with self._in_time(seconds_max, f"say what it knows of {len(segment_ids)} segments"):
            return await self._storage.load(segment_ids)

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead:
        """As Storage.read()."""
        seconds_max = LOAD_SECONDS_MAX + length / (1 << 20) * MEBIBYTE_SECONDS
        async with self._in_time(seconds_max, f"give {length} bytes of segment {segment_id}"):
            return await self._storage.read(segment_id, offset, length)

    async def publish(self, publication: Publication) -> None:
        """As Storage.publish()."""
        count = len(publication.segments)
        length = sum(
            len(run)
            for segment in publication.segments
            for piece in segment.pieces
            if isinstance(piece, DataPiece)
            for run in piece.runs
        )
        seconds_max = PUBLISH_SECONDS_MAX + count * RECORD_SECONDS
        seconds_max += length / (1 << 20) * MEBIBYTE_SECONDS
        async with self._in_time(seconds_max, f"take {length} bytes of {count} segments"):
            await self._storage.publish(publication)

    @asynccontextmanager
    async def _in_time(self, seconds_max: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds_max):
                yield
        except TimeoutError as error:
            raise StorageUnavailableError(
                f"Tier 2 does not {what} in time seconds_max={seconds_max:g} container={self._container_id}",
                state="unavailable",
            ) from error
