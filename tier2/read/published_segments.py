"""What can be read below one container's manifest: records, attributes, listings and bytes of its segments.

`ContainerReader` and `TieredStorage` differ in where their view of the manifest comes from, and in nothing that they
read. A listing of chunks comes from the layout alone, without a look at any chunk: some hundred chunks cost one read of
an SST, so a long segment can be cut into work for many. A listing of blocks is for those who read a segment's objects
in parallel: where a block lies, whether it begins on an event, where its first event starts, and which one that is.
It reads the indexes of chunks, never their blocks.

- A record is read before anything else of its segment, so nothing of a removed segment is ever found. A caller that
  asks by an id has read its record before: if there is none now, the segment was removed since, as the error says.
- Caches belong to the newest view; what was read through an older one, or while it was changing, is not kept.
- Offsets and event numbers are the segment's, whatever segment the bytes were written to; neighbours meet, so a listing
  covers its range without a hole.
- The owner may publish meanwhile: every chunk is of the newest manifest when it is listed.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, SegmentId
from segmentstore.contracts.storage import (
    AttributePage,
    SegmentRecord,
    StorageRead,
    StoredBlock,
    StoredChunk,
)
from tier2.byte_cache import ByteCache
from tier2.container_objects import ObjectKind
from tier2.format.chunk_format import BlockEntry
from tier2.layout_entry import LayoutEntry
from tier2.manifest.view import ManifestView, with_view
from tier2.read.components import Components
from tier2.sst.keyspace import (
    CATALOG,
    attribute_key,
    attribute_of,
    attribute_range,
    catalog_key,
    decode_attribute,
    decode_id,
    decode_record,
    end_offset_of,
    layout_range,
    name_of,
    range_of,
    record_key,
)
from tier2.sst.sst_format import Entry

_SEGMENTS_PER_TURN = 1_024
"""Segments handled between two turns of the loop."""
_LAYOUT_WINDOW_ENTRIES = 256
_LISTING_PAGE_SEGMENTS = 256
_ATTRIBUTES_PER_PAGE = 1_024
_LAYOUT_ENTRY_MEMORY_BYTES = 300
_RECORD_MEMORY_BYTES = 150


@dataclass(frozen=True, slots=True)
class _LayoutWindow:
    """Neighbouring layout entries of one segment: all of those whose end is above `above`, as far as they go."""

    above: int
    entries: Sequence[LayoutEntry]

    def entry_at(self, offset: int) -> LayoutEntry | None:
        if offset < self.above or not self.entries or offset >= self.entries[-1].end_offset:
            return None
        at = bisect_right(self.entries, offset, key=lambda entry: entry.end_offset)
        entry = self.entries[at]
        return entry if entry.start_offset <= offset else None


class PublishedSegments:
    """The reading half of a container's Tier 2. The class that derives from it says which view is the newest."""

    def __init__(self, *, components: Components) -> None:
        settings = components.settings
        self._components = components
        self._records: ByteCache[SegmentId, bytes] = ByteCache(settings.record_cache_bytes)
        self._windows: ByteCache[SegmentId, _LayoutWindow] = ByteCache(
            settings.chunk_index_cache_bytes // 2
        )
        self._changing: Mapping[SegmentId, bytes | None] = {}

    @property
    def view(self) -> ManifestView:
        """What readers look through now."""
        raise NotImplementedError

    async def refresh(self) -> ManifestView:
        """The view of the manifest as it is now."""
        raise NotImplementedError

    async def begin_change(self, records: Mapping[SegmentId, bytes | None]) -> None:
        """A publication is about to change these segments: from now on nothing of them is kept, so that nothing
        stale can be left when the manifest moves on. Cut off, it has not begun.

        Only the call that began a change ends it: another one may be open that waits for its answer.
        """
        assert not self._changing, f"another change is open segments={len(self._changing)}"
        self._changing = records
        try:
            for number, segment_id in enumerate(records):
                self._windows.remove(segment_id)
                self._records.remove(segment_id)
                if number % _SEGMENTS_PER_TURN == _SEGMENTS_PER_TURN - 1:
                    await asyncio.sleep(0)
        except BaseException:
            self.end_change()
            raise

    def end_change(self) -> None:
        """The publication is visible now, or will never be."""
        self._changing = {}

    async def remember(self, view: ManifestView, records: Mapping[SegmentId, bytes | None]) -> None:
        """Keep the records that the publication behind `view` wrote, as long as nothing newer is published."""
        for number, (segment_id, value) in enumerate(records.items()):
            if value is not None and self._may_keep(view, segment_id):
                self._records.put(segment_id, value, len(value) + _RECORD_MEMORY_BYTES)
            if number % _SEGMENTS_PER_TURN == _SEGMENTS_PER_TURN - 1:
                await asyncio.sleep(0)

    def _may_keep(self, view: ManifestView, segment_id: SegmentId) -> bool:
        return self.view is view and segment_id not in self._changing

    def forget_everything(self) -> None:
        self._windows.clear()
        self._records.clear()

    async def find(self, name: str) -> SegmentRecord | None:
        async def read(view: ManifestView) -> SegmentRecord | None:
            value = await view.get(catalog_key(name))
            if value is None:
                return None
            segment_id = decode_id(value)
            record = await self._record(view, segment_id)
            if record is None or record.name != name:
                raise CorruptedDataError(
                    f"the catalog names a segment that is not there name={name!r} id={segment_id}"
                )
            return record

        return await with_view(self, read)

    async def load(self, segment_ids: Sequence[SegmentId]) -> dict[SegmentId, SegmentRecord]:
        values = await with_view(self, lambda view: self.values(view, segment_ids))
        records: dict[SegmentId, SegmentRecord] = {}
        for number, segment_id in enumerate(segment_ids):
            if number % _SEGMENTS_PER_TURN == _SEGMENTS_PER_TURN - 1:
                await asyncio.sleep(0)
            if segment_id in values:
                records[segment_id] = decode_record(segment_id, values[segment_id])
        return records

    async def values(
        self, view: ManifestView, segment_ids: Iterable[SegmentId]
    ) -> dict[SegmentId, bytes]:
        """Encoded records of those that exist."""
        values: dict[SegmentId, bytes] = {}
        missing: dict[bytes, SegmentId] = {}
        for number, segment_id in enumerate(segment_ids):
            if number % _SEGMENTS_PER_TURN == _SEGMENTS_PER_TURN - 1:
                await asyncio.sleep(0)
            cached = self._records.get(segment_id)
            if cached is None:
                missing[record_key(segment_id)] = segment_id
            else:
                values[segment_id] = cached
        if missing:
            found = await view.get_many(list(missing))
            for number, (key, value) in enumerate(found.items()):
                segment_id = missing[key]
                values[segment_id] = value
                if self._may_keep(view, segment_id):
                    self._records.put(segment_id, value, len(value) + _RECORD_MEMORY_BYTES)
                if number % _SEGMENTS_PER_TURN == _SEGMENTS_PER_TURN - 1:
                    await asyncio.sleep(0)
        return values

    async def _record(self, view: ManifestView, segment_id: SegmentId) -> SegmentRecord | None:
        values = await self.values(view, (segment_id,))
        value = values.get(segment_id)
        return None if value is None else decode_record(segment_id, value)

    async def load_attributes(
        self, segment_id: SegmentId, keys: Sequence[AttributeKey] | None
    ) -> dict[AttributeKey, AttributeValue]:
        async def read(view: ManifestView) -> dict[AttributeKey, AttributeValue]:
            record = await self._record(view, segment_id)
            if record is None or record.extended_attribute_count_is_zero:
                return {}
            if keys is not None:
                wanted = [attribute_key(segment_id, key) for key in keys]
                return _decoded_attributes((await view.get_many(wanted)).items())
            # A segment may have very many: they are decoded as they come.
            values: dict[AttributeKey, AttributeValue] = {}
            start, end = attribute_range(segment_id)
            group = record_key(segment_id)[:-1]
            pages = view.pages(start, end, limit=_ATTRIBUTES_PER_PAGE, group=group)
            async with aclosing(pages) as listed:
                async for page in listed:
                    values.update(_decoded_attributes(page))
            return values

        return await with_view(self, read)

    async def scan_attributes(
        self, segment_id: SegmentId, *, start: AttributeKey, end: AttributeKey, count: int
    ) -> AttributePage:
        first = attribute_key(segment_id, start)
        last = attribute_key(segment_id, end)

        async def read(view: ManifestView) -> AttributePage:
            record = await self._record(view, segment_id)
            if record is None or record.extended_attribute_count_is_zero:
                return AttributePage((), None)
            entries, following = await view.scan(
                first, last, limit=count, group=record_key(segment_id)[:-1]
            )
            return AttributePage(
                list(_decoded_attributes(entries).items()),
                None if following is None else attribute_of(following),
            )

        return await with_view(self, read)

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead:
        async def read(view: ManifestView) -> StorageRead:
            record = await self._record(view, segment_id)
            if record is None:
                raise self._gone(segment_id)
            if offset < record.start_offset:
                raise SegmentTruncatedError(record.name, start_offset=record.start_offset)
            if offset >= record.length or length <= 0:
                raise ValueError(
                    f"nothing is published there offset={offset} length={length}"
                    f" published_length={record.length} segment_id={segment_id}"
                )
            entry = await self.entry_at(view, segment_id, offset)
            if entry is None:
                raise CorruptedDataError(
                    f"layout has a hole segment_id={segment_id} offset={offset}"
                    f" start_offset={record.start_offset} length={record.length}"
                )
            found = await self._components.chunk_reader.read(
                entry, offset, min(offset + length, entry.end_offset)
            )
            below_start = record.start_offset - found.offset
            if below_start > 0:
                found = StorageRead(record.start_offset, found.content[below_start:])
            assert found.offset <= offset < found.offset + len(found.content), (
                f"read misses its offset offset={offset} found={found.offset}+{len(found.content)}"
            )
            return found

        return await with_view(self, read)

    async def published_entry(
        self, view: ManifestView, segment_id: SegmentId, offset: int, end: int
    ) -> LayoutEntry:
        """The layout entry that holds `offset`, for a caller that goes through [offset, end).

        Raises SegmentNotFoundError, ValueError for a range that is not published, SegmentTruncatedError,
        CorruptedDataError for a hole.
        """
        record = (await self.load((segment_id,))).get(segment_id)
        if record is None:
            raise self._gone(segment_id)
        if not 0 <= offset < end <= record.length:
            raise ValueError(
                f"nothing is published there segment_id={segment_id} start={offset} end={end}"
                f" published_length={record.length}"
            )
        if offset < record.start_offset:
            raise SegmentTruncatedError(record.name, start_offset=record.start_offset)
        entry = await self.entry_at(view, segment_id, offset)
        if entry is None:
            raise CorruptedDataError(
                f"layout has a hole segment_id={segment_id} offset={offset}"
                f" start_offset={record.start_offset} length={record.length}"
            )
        return entry

    def _gone(self, segment_id: SegmentId) -> SegmentNotFoundError:
        return SegmentNotFoundError(
            f"segment_id={segment_id} container={self._components.container_id}"
        )

    async def entry_at(
        self, view: ManifestView, segment_id: SegmentId, offset: int
    ) -> LayoutEntry | None:
        window = self._windows.get(segment_id)
        if window is not None:
            entry = window.entry_at(offset)
            if entry is not None:
                return entry
        entries: list[LayoutEntry] = []
        group = record_key(segment_id)[:-1]
        at, end = layout_range(segment_id, offset)
        following: bytes | None = at
        while following is not None and not entries:
            page, following = await view.scan(
                following, end, limit=_LAYOUT_WINDOW_ENTRIES, group=group
            )
            entries = [
                LayoutEntry.decode(end_offset_of(key), value)
                for key, value in page
                if value is not None
            ]
        window = _LayoutWindow(offset, entries)
        if self._may_keep(view, segment_id):
            self._windows.put(segment_id, window, 100 + len(entries) * _LAYOUT_ENTRY_MEMORY_BYTES)
        return window.entry_at(offset)

    async def list_segments(
        self, prefix: str, start_after: str
    ) -> AsyncGenerator[SegmentRecord, None]:
        start, end = _catalog_range(prefix)
        if start_after >= prefix:
            start = max(start, catalog_key(start_after) + b"\0")
        following: bytes | None = start
        while following is not None and following < end:
            records, following = await self._page(following, end)
            for record in records:
                yield record

    async def list_blocks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredBlock, None]:
        """The blocks that hold published bytes of [start, end), in order, whole ones at both sides.

        O(log n + listed). Hold it in `aclosing`. Raises SegmentTruncatedError, SegmentNotFoundError,
        CorruptedDataError, and ValueError for a range past the published length.
        """
        offset = start

        async def read(view: ManifestView) -> list[StoredBlock]:
            entry = await self.published_entry(view, segment_id, offset, end)
            index = await self._components.chunk_reader.index(entry)
            key = self._components.names.key(ObjectKind.CHUNKS, entry.identity)
            blocks = [_stored_block(entry, block, key) for block in index.entries]
            return [block for block in blocks if block.offset + block.length > offset]

        while offset < end:
            for block in await with_view(self, read):
                if block.offset >= end:
                    return
                offset = block.offset + block.length
                yield block

    async def list_chunks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredChunk, None]:
        """The chunks that hold published bytes of [start, end), in order; no chunk is looked at.

        O(log n + listed). Hold it in `aclosing`. Raises SegmentTruncatedError, SegmentNotFoundError,
        CorruptedDataError, and ValueError for a range past the published length.
        """
        offset = start

        async def read(view: ManifestView) -> StoredChunk:
            entry = await self.published_entry(view, segment_id, offset, end)
            return StoredChunk(
                start_offset=entry.start_offset,
                end_offset=entry.end_offset,
                object_key=self._components.names.key(ObjectKind.CHUNKS, entry.identity),
                position=entry.position,
                size=entry.size,
            )

        while offset < end:
            chunk = await with_view(self, read)
            offset = chunk.end_offset
            yield chunk

    async def _page(self, start: bytes, end: bytes) -> tuple[list[SegmentRecord], bytes | None]:
        async def read(view: ManifestView) -> tuple[list[SegmentRecord], bytes | None]:
            page, following = await view.scan(start, end, limit=_LISTING_PAGE_SEGMENTS)
            ids = [decode_id(value) for _, value in page if value is not None]
            values = await self.values(view, ids)
            records: list[SegmentRecord] = []
            for (key, _), segment_id in zip(page, ids, strict=True):
                if segment_id not in values:
                    raise CorruptedDataError(
                        f"the catalog names a segment that is not there name={name_of(key)!r}"
                        f" id={segment_id}"
                    )
                records.append(decode_record(segment_id, values[segment_id]))
            return records, following

        return await with_view(self, read)

    def check(self) -> None:
        self._records.check()
        self._windows.check()


def _decoded_attributes(entries: Iterable[Entry]) -> dict[AttributeKey, AttributeValue]:
    return {
        attribute_of(key): decode_attribute(value) for key, value in entries if value is not None
    }


def _stored_block(entry: LayoutEntry, block: BlockEntry, object_key: str) -> StoredBlock:
    offset = block.first_offset - entry.chunk_offset + entry.start_offset
    events = entry.block_events(block)
    first_event_offset = None
    number = lowest = highest = 0
    if events is not None:
        lowest, highest = events.lowest_time_ms, events.highest_time_ms
        if events.first_event_position is not None:
            first_event_offset = offset + events.first_event_position
            number = events.first_event_number
    return StoredBlock(
        offset=offset,
        length=block.uncompressed_length,
        first_event_offset=first_event_offset,
        event_number=number,
        events_known=events is not None,
        lowest_time_ms=lowest,
        highest_time_ms=highest,
        object_key=object_key,
        image_position=entry.position,
        position=entry.position + block.position,
        stored_length=block.stored_length,
        compression=int(block.compression),
    )


def _catalog_range(prefix: str) -> tuple[bytes, bytes]:
    start, end = range_of(CATALOG)
    if not prefix:
        return start, end
    # No character is encoded with the byte 0xff, so it lies above every name that begins with the prefix.
    return catalog_key(prefix), catalog_key(prefix) + b"\xff"
