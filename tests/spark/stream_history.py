"""The life of one segment of a stream in a Tier 2 in memory, with a tail that is not flushed, and how it is read.

`History` is written to: appends at different times, merges of older events, events of several blocks, bytes of which
nobody said where events lie, compaction, truncation. `Reads` reads it as Spark does, by either reader: the rows of
a plan with or without pushed filters. The Java reader is here as its algorithm (RangeReader.java) over the blocks that
the planner names for it.
"""

import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import cast

from pyspark.sql.datasource import Filter

from segmentstore.client.byte_segment import ByteSegment, SegmentInfo
from segmentstore.contracts.errors import (
    ObjectNotFoundError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import BufferView, SegmentId, SequenceNumber
from segmentstore.contracts.storage import DataPiece, MergePiece, RunEvents, SegmentPublication
from segmentstore.spark.jvm.block_locations import RangeResolver, ResolvedBlockCache
from segmentstore.spark.jvm.planner_server import read_tail
from segmentstore.spark.options import SourceOptions, parse_options
from segmentstore.spark.scan.arrow_batches import EventBatchBuilder
from segmentstore.spark.scan.block_reader import Block, BlockInfo
from segmentstore.spark.scan.partitions import BlockLocation, BlockRange, SegmentRange
from segmentstore.spark.scan.range_reader import RangeReader
from segmentstore.spark.scan.scan_planner import bounds_of, plan_scan
from segmentstore.spark.streams.segment_graph import StreamMetadata, StreamSegmentMetadata
from segmentstore.spark.streams.service_catalog import ServiceStreamCatalog
from segmentstore.spark.streams.stream_source import StreamSource
from segmentstore.spark.tier2_access import Tier2Reader
from tests.spark.event_segment import (
    NAME,
    SETTINGS,
    START_MS,
    CountingStore,
    EventSegment,
    event_segment,
    frame,
    publication,
)
from tier2.format.block import decode_block
from tier2.format.chunk_format import BLOCK_CHECKSUM_BYTES, BlockEntry, Compression

_HEADER = struct.Struct(">ii")
Row = dict[str, object]


@dataclass
class History:
    """Made by `begin_history`."""

    segment: EventSegment
    content: bytearray = field(default_factory=bytearray)
    """Everything that was acknowledged, the tail too."""
    starts: list[int] = field(default_factory=list)
    """Of every event."""
    sources: int = 0
    """Segments that were merged."""
    is_gone: bool = False
    """The service does not have the segment any more."""
    next_heads: list[tuple[int, int]] = field(default_factory=list)
    """Behind so many reads of the service the segment is truncated there; Tier 2 does not learn of it."""

    @property
    def published_end(self) -> int:
        return self.segment.record.length

    @property
    def head(self) -> int:
        return self.segment.record.start_offset

    def write(self, events: Iterable[bytes]) -> None:
        """Acknowledged, and not in Tier 2 yet."""
        for event in events:
            self.starts.append(len(self.content))
            self.content += frame(event)

    async def flush(self, at_ms: int, *, described: bool = True) -> None:
        """Publish the tail, an append for each event."""
        first = sum(start < self.published_end for start in self.starts)
        bounds = [*self.starts[first:], len(self.content)]
        runs: list[BufferView] = [bytes(self.content[start:end]) for start, end in pairwise(bounds)]
        if runs:
            said = [RunEvents(first + row, at_ms, at_ms) for row in range(len(runs))]
            await self._publish(runs, said if described else [None] * len(runs))

    async def append_large(self, event: bytes, times_ms: Sequence[int]) -> None:
        """One event in so many publications, each a block at least."""
        number, whole = len(self.starts), frame(event)
        self.write([event])
        step = -(-len(whole) // len(times_ms))
        for piece, at_ms in enumerate(times_ms):
            run = whole[piece * step : (piece + 1) * step]
            if run:
                said = RunEvents(None if piece else number, at_ms, at_ms)
                await self._publish([run], [said])

    async def merge(
        self, events: Sequence[bytes], at_ms: Sequence[int], *, described: bool = True
    ) -> None:
        """A transaction: its events were published as a segment of their own, at times of their own."""
        self.sources += 1
        source_id = SegmentId(10 + self.sources)
        first, length = len(self.starts), 0
        record = self.segment.record
        source = replace(record, segment_id=source_id, name=f"{NAME}#{source_id}", start_offset=0)
        for number, (event, time_ms) in enumerate(zip(events, at_ms, strict=True)):
            run = frame(event)
            said = [RunEvents(number, time_ms, time_ms)] if described else None
            piece = DataPiece(length, [run], said)
            length += len(run)
            self._step()
            source = replace(
                source, length=length, sequence_number=self.segment.record.sequence_number
            )
            await self._offer(SegmentPublication(source, [piece]))
        moved = MergePiece(
            self.published_end, source_id, length, first_event=first, begins_event=True
        )
        self.segment.record = replace(self.segment.record, length=self.published_end + length)
        self._step()
        number = self.segment.record.sequence_number
        await self._offer(
            SegmentPublication(self.segment.record, [moved]),
            SegmentPublication(replace(source, sequence_number=number), deleted=True),
        )
        self.write(events)

    async def truncate(self, offset: int) -> None:
        self.segment.record = replace(self.segment.record, start_offset=offset)
        self._step()
        await self._offer(SegmentPublication(self.segment.record))

    def is_read(self) -> None:
        """The service is asked for bytes."""
        left = [(reads - 1, head) for reads, head in self.next_heads]
        self.next_heads = [(reads, head) for reads, head in left if reads >= 0]
        heads = [head for reads, head in left if reads < 0]
        self.segment.record = replace(self.segment.record, start_offset=max([self.head, *heads]))

    async def remove(self) -> None:
        """With its chunks, as deletions do."""
        self._step()
        await self._offer(SegmentPublication(self.segment.record, deleted=True))
        await self.segment.compact()

    def event_at(self, start: int) -> bytes:
        (length,) = struct.unpack_from(">i", self.content, start + 4)
        return bytes(self.content[start + _HEADER.size : start + _HEADER.size + length])

    async def _publish(self, runs: Sequence[BufferView], said: Sequence[RunEvents | None]) -> None:
        piece = DataPiece(self.published_end, runs, said)
        length = self.published_end + sum(map(len, runs))
        self.segment.record = replace(self.segment.record, length=length)
        self._step()
        await self._offer(SegmentPublication(self.segment.record, [piece]))

    def _step(self) -> None:
        record = self.segment.record
        number = SequenceNumber(record.sequence_number + 1)
        self.segment.record = replace(record, sequence_number=number)

    async def _offer(self, *segments: SegmentPublication) -> None:
        number = self.segment.record.sequence_number
        highest = SegmentId(10 + self.sources)
        await self.segment.owner.publish(
            replace(publication(number, *segments), highest_segment_id=highest)
        )


async def begin_history(*, joins: bool = True) -> History:
    """Compaction moves every chunk, since cold ones are compressed otherwise. Not `joins`: it joins none of them."""
    settings = replace(
        SETTINGS,
        cold_compression=Compression.ZSTD,
        compaction_chunk_bytes=SETTINGS.compaction_chunk_bytes if joins else 1,
    )
    return History(await event_segment(settings, store=MovingStore()))


class ServedSegment:
    """The segment as the service serves it."""

    def __init__(self, history: History, *, piece_bytes: int) -> None:
        self._history = history
        self._piece_bytes = piece_bytes

    async def info(self) -> SegmentInfo:
        history = self._history
        if history.is_gone:
            raise SegmentNotFoundError(NAME)
        return SegmentInfo(NAME, history.head, len(history.content), False, START_MS)

    async def read(self, offset: int, length: int) -> bytes:
        history = self._history
        history.is_read()
        if history.is_gone:
            raise SegmentNotFoundError(NAME)
        if offset < history.head:
            raise SegmentTruncatedError(NAME, start_offset=history.head)
        return bytes(history.content[offset : offset + min(length, self._piece_bytes)])


class ServedCatalog:
    """What the service says of the segment."""

    def __init__(self, history: History, *, sees_tier2: bool) -> None:
        self._history = history
        self._sees_tier2 = sees_tier2

    async def segment_metadata_of(self, name: str) -> StreamMetadata:
        history = self._history
        segment = StreamSegmentMetadata(
            segment_id=0,
            name=name,
            epoch=0,
            low=0.0,
            high=1.0,
            start_offset=history.head,
            end_offset=len(history.content),
            published_end=history.published_end if self._sees_tier2 else 0,
            is_sealed=False,
            container_id=0 if self._sees_tier2 else -1,
        )
        return StreamMetadata("s", "t", [segment], {0: history.head})


class MovingStore(CountingStore):
    """Runs `before_read` once, behind so many reads of chunks and their indexes."""

    before_read: Callable[[], Awaitable[object]] | None = None
    reads_left = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if "/chunks/" in key:
            self.reads_left -= 1
        if self.reads_left < 0 and self.before_read is not None:
            work, self.before_read = self.before_read, None
            await work()
        return await super().get_range(key, start, length)


@dataclass
class Reads:
    """Reads a history in one way: which sources there are, what the events are, how they are cut."""

    history: History
    words: dict[str, str]
    with_tier2: bool = True
    with_service: bool = True
    piece_bytes: int = 1 << 20
    move_at: int | None = None
    """Behind so many reads of chunks all of them are moved elsewhere."""

    @property
    def options(self) -> SourceOptions:
        places = {"tier2": "here"} if self.with_tier2 else {}
        places |= {"controller": "tcp://here:1"} if self.with_service else {}
        return parse_options({"segment": NAME} | places | self.words)

    async def rows(self, reader: str, filters: Sequence[Filter] = ()) -> list[Row]:
        """As Spark gets them, before it filters. `reader`: python or java."""
        view = await self.history.segment.view() if self.with_tier2 else None
        parts = await self.plan(view, filters)
        return await self.rows_of_plan(reader, view, parts)

    async def plan(
        self, view: Tier2Reader | None, filters: Sequence[Filter] = ()
    ) -> list[SegmentRange]:
        catalog = ServedCatalog(self.history, sees_tier2=self.with_tier2)
        source = StreamSource(
            options=self.options,
            view=view,
            store=None,
            served=cast(ServiceStreamCatalog, catalog) if self.with_service else None,
        )
        return await plan_scan(source, self.options, bounds_of(filters))

    async def rows_of_plan(
        self, reader: str, view: Tier2Reader | None, parts: Sequence[SegmentRange]
    ) -> list[Row]:
        store = cast(MovingStore, self.history.segment.store)
        if self.move_at is not None:
            store.reads_left, store.before_read = self.move_at, self.history.segment.compact
        rows: list[Row] = []
        for part in parts:
            found = self._by_python if reader == "python" else self._by_java
            rows += await found(view, part)
        store.before_read = None
        return rows

    def _served(self) -> ServedSegment | None:
        return (
            ServedSegment(self.history, piece_bytes=self.piece_bytes) if self.with_service else None
        )

    async def _by_python(self, view: Tier2Reader | None, part: SegmentRange) -> list[Row]:
        reader = RangeReader(
            part,
            options=self.options,
            view=view,
            served=cast(ByteSegment | None, self._served()),
            executor=None,
        )
        async with aclosing(reader.batches()) as batches:
            return [row async for batch in batches for row in batch.to_pylist()]

    async def _by_java(self, view: Tier2Reader | None, part: SegmentRange) -> list[Row]:
        return await JavaReader(self, view, part).rows()

    def resolver(self, view: Tier2Reader | None, *, asks_now: bool) -> RangeResolver:
        served = self._served() if asks_now else None
        return RangeResolver(
            view,
            asks_service=self.with_service,
            fail_on_data_loss=self.options.fail_on_data_loss,
            executor=None,
            placed=ResolvedBlockCache(),
            served=None if served is None else lambda _: served.info(),
        )


class JavaReader:
    """RangeReader.java, without what it does to be fast."""

    def __init__(self, reads: Reads, view: Tier2Reader | None, part: SegmentRange) -> None:
        self._reads = reads
        self._view = view
        self._store = reads.history.segment.store
        self._served = reads._served()
        self._part = part
        self._start, self._end = part.start, part.end
        self._asked = False
        self._next_offset = part.start if part.content == "bytes" else part.walk_start
        self._number: int | None = None
        self._time_ms = 0
        self._begun: BlockLocation | None = None
        self._joined = b""
        self._failed: BlockLocation | None = None
        self._rows: list[Row] = []

    async def rows(self) -> list[Row]:
        range_ = await self._resolved()
        while range_ is not None:
            try:
                await self._read(range_)
                return self._rows
            except ObjectNotFoundError:
                # The planner opens Tier 2 anew for each question.
                if self._view is not None:
                    await self._view.refresh()
                range_ = await self._resolved()
        return self._rows

    async def _resolved(self) -> BlockRange | None:
        rest: SegmentRange = replace(
            self._part,
            start=max(self._next_offset, self._start),
            walk_from=self._next_offset,
        )
        if self._asked:
            # Asked again, by a question that has no bounds of times.
            names = ("scope", "stream", "segment_id", "own_id", "segment_name", "container_id")
            plain = {name: getattr(rest, name) for name in names}
            rest = SegmentRange(
                **plain,
                start=rest.start,
                end=self._end,
                content=rest.content,
                walk_from=rest.walk_from,
            )
        resolver = self._reads.resolver(self._view, asks_now=self._asked)
        self._asked = True
        return await resolver.place(rest)

    async def _read(self, part: BlockRange) -> None:
        is_bytes = part.content == "bytes"
        self._start, self._end, self._begun, self._joined = part.start, part.end, None, b""
        first = part.start if is_bytes else part.blocks[0].first_event_offset
        assert first is not None, "the first block has no event"
        if first != self._next_offset:
            self._number = None
        self._next_offset = first
        last = part.blocks[0]
        for block in part.blocks:
            if self._next_offset >= part.end:
                return
            assert block is part.blocks[0] or block.offset == last.offset + last.length, "a gap"
            last = block
            content = await self._content_of(block)
            if is_bytes:
                self._add_bytes(part, block, content)
            else:
                self._cut(part, block, self._joined + content, block.offset - len(self._joined))
        assert self._next_offset >= part.end or last.offset + last.length >= part.end, "blocks end"
        if self._next_offset < part.end and self._joined:
            await self._complete_last(part, last)

    async def _complete_last(self, part: BlockRange, block: BlockLocation) -> None:
        at = self._next_offset + len(self._joined)
        whole = self._joined + await self._tail(at, at + (1 << 20))
        self._cut(part, block, whole, self._next_offset)

    async def _tail(self, start: int, end: int) -> bytes:
        if self._served is None:
            return b""
        return await read_tail(
            cast(ByteSegment, self._served),
            replace(self._part, start=start, end=end),
            max(self._next_offset, self._start),
            fail_on_data_loss=self._reads.options.fail_on_data_loss,
        )

    def _add_bytes(self, part: BlockRange, block: BlockLocation, content: bytes) -> None:
        end = min(part.end, block.offset + block.length)
        row: Row = {
            "segment": part.segment_name,
            "offset": self._next_offset,
            "bytes": content[self._next_offset - block.offset : end - block.offset],
            "timestamp": _time_of(block.lowest_time_ms) if block.lowest_time_ms else None,
        }
        self._rows.append(row)
        self._next_offset = end

    def _cut(self, part: BlockRange, block: BlockLocation, content: bytes, offset: int) -> None:
        at = self._next_offset - offset
        while self._next_offset < part.end and at < len(content):
            if self._next_offset >= block.offset and self._begun is not block:
                self._enter(block)
            if at + _HEADER.size > len(content):
                break
            kind, length = _HEADER.unpack_from(content, at)
            assert kind == 0, f"no event begins here offset={self._next_offset}"
            assert length >= 0, f"no event begins here offset={self._next_offset}"
            if at + _HEADER.size + length > len(content):
                break
            if self._next_offset >= self._start:
                self._add_event(part, content[at : at + _HEADER.size + length])
            at += _HEADER.size + length
            self._next_offset = offset + at
            self._number = None if self._number is None else self._number + 1
        self._joined = content[at:] if self._next_offset < part.end else b""

    def _enter(self, block: BlockLocation) -> None:
        known = block.first_event_offset
        assert known in (None, self._next_offset), (
            f"an event is expected elsewhere {known} {self._next_offset}"
        )
        self._begun = block
        if known is not None and block.event_number >= 0:
            self._number = block.event_number
        self._time_ms = block.lowest_time_ms or self._time_ms

    def _add_event(self, part: BlockRange, event: bytes) -> None:
        # Key, value, headers: what the Python reader's columns make of the event.
        builder = EventBatchBuilder(
            replace(part, start=0, end=len(event), blocks=()), self._reads.options.columns
        )
        facts = BlockInfo(
            offset=0, first_event_offset=0, event_number=None, lowest_time_ms=self._time_ms
        )
        (batch,) = builder.add([Block(facts, event)])
        (row,) = batch.to_pylist()
        self._rows.append(row | {"offset": self._next_offset, "event_number": self._number})

    async def _content_of(self, block: BlockLocation) -> bytes:
        if not block.object_key:
            content = await self._tail(block.offset, block.offset + block.length)
            if len(content) < block.length:
                assert block != self._failed, f"the same bytes are named again {block}"
                self._failed = block
                raise ObjectNotFoundError("the service has fewer bytes than planned")
            return content
        length = block.stored_length + BLOCK_CHECKSUM_BYTES
        stored = await self._store.get_range(block.object_key, block.position, length)
        entry = BlockEntry(
            first_offset=block.offset,
            position=block.position,
            stored_length=block.stored_length,
            uncompressed_length=block.length,
            compression=Compression(block.compression),
        )
        return bytes(decode_block(entry, stored, source=block.object_key))


def _time_of(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


__all__ = ["START_MS", "History", "MovingStore", "Reads", "Row", "begin_history"]
