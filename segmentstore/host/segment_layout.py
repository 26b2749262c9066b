"""Where a segment's bytes are in Tier 2, and where its events begin there, for faces that tell clients of it.

- A segment is looked up where it runs: a container that is not here raises ContainerNotFoundError.
- What is not published yet has no layout; no answer stands in for it.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing

from segmentstore.codec.container_hash import container_of
from segmentstore.codec.wire_protocol.administration import StorageChunk
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from tier2.storage.tiered_storage import TieredStorage

StorageSource = Callable[[ContainerId], TieredStorage]
"""Tier 2 of a running container. Raises ContainerNotFoundError."""


class SegmentLayout:
    """Asks the Tier 2 of the container that owns a segment."""

    def __init__(
        self, *, segments: SegmentApi, storage_of: StorageSource, container_count: int
    ) -> None:
        self._segments = segments
        self._storage_of = storage_of
        self._container_count = container_count

    async def list_chunks(self, name: str) -> Sequence[StorageChunk]:
        """Every chunk of what is published of the segment, in order. Raises SegmentNotFoundError, StorageError."""
        await self._segments.info(name)
        storage = self._storage(name)
        record = await storage.find(name)
        if record is None or record.start_offset == record.length:
            return []
        chunks = storage.list_chunks(record.segment_id, record.start_offset, record.length)
        async with aclosing(chunks) as listed:
            return [
                StorageChunk(
                    metadata_length=chunk.end_offset - chunk.start_offset,
                    storage_length=chunk.size,
                    start_offset=chunk.start_offset,
                    name=f"{chunk.object_key}@{chunk.position}",
                    exists=True,
                )
                async for chunk in listed
            ]

    async def event_near(self, name: str, offset: int) -> int | None:
        """An offset at which an event begins: the first at or above `offset`, or one below it, with nothing but whole
        events between the two. None if Tier 2 cannot say.

        Raises CorruptedDataError, StorageError.
        """
        storage = self._storage(name)
        record = await storage.find(name)
        if record is None or record.start_offset == record.length:
            return None
        return await _event_in_blocks(storage, record, offset)

    def _storage(self, name: str) -> TieredStorage:
        return self._storage_of(container_of(name, self._container_count))


async def _event_in_blocks(
    storage: TieredStorage, record: SegmentRecord, offset: int
) -> int | None:
    block: StoredBlock | None = None
    begin = max(record.start_offset, min(offset, record.length - 1))
    async with aclosing(storage.list_blocks(record.segment_id, begin, record.length)) as blocks:
        async for block in blocks:
            if not block.events_known:
                return None
            if offset < record.length and block.first_event_offset is not None:
                return block.first_event_offset
    # Publications end where appends end, and these are whole events.
    return record.length if block is not None else None
