"""A segment of events in a Tier 2 in memory, and its owner, who goes on while others read."""

import struct
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random

from segmentstore.contracts.identifiers import (
    BufferView,
    ContainerId,
    Epoch,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.contracts.storage import (
    DataPiece,
    MergePiece,
    Publication,
    RunEvents,
    SegmentPublication,
    SegmentRecord,
)
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.options import SourceOptions
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.scan.range_reader import RangeReader
from segmentstore.spark.schema import EVENT_COLUMNS
from segmentstore.spark.tier2_access import Tier2Reader
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

NAME = "s/t/0.#epoch.0"
SEGMENT_ID = SegmentId(1)
START_MS = 1_760_000_000_000
SETTINGS = StorageSettings(garbage_grace_seconds=0.0, cold_seconds=0.0)


class CountingStore(MemoryObjectStore):
    """Counts what a reader asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0
        self.listings = 0
        self.sent_bytes = 0

    async def get(self, key: str) -> VersionedObject:
        self.gets += 1
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets += 1
        content = await super().get_range(key, start, length)
        self.sent_bytes += len(content)
        return content

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        self.listings += 1
        async with aclosing(super().list(prefix)) as found:
            async for info in found:
                yield info


def frame(event: bytes) -> bytes:
    return struct.pack(">ii", 0, len(event)) + event


@dataclass
class EventSegment:
    """Made by `event_segment`."""

    store: CountingStore
    owner: TieredStorage
    record: SegmentRecord
    events: list[bytes]
    offsets: list[int]

    async def append(
        self, events: Sequence[bytes], *, at_ms: int = START_MS, described: bool = True
    ) -> None:
        """One flush round, an append for each event. Not `described`: nobody says where events lie."""
        runs: list[BufferView] = [frame(event) for event in events]
        first = len(self.events)
        said = [
            RunEvents(first + number, at_ms + number, at_ms + number)
            for number in range(len(events))
        ]
        await self._publish(DataPiece(self.record.length, runs, said if described else None), runs)
        self._note(events)

    async def append_pieces(self, event: bytes, piece_bytes: int) -> None:
        """One event that arrived in many appends, as what a merge of a transient segment leaves."""
        whole = frame(event)
        runs: list[BufferView] = [
            whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)
        ]
        said = [
            RunEvents(None if number else len(self.events), START_MS, START_MS)
            for number in range(len(runs))
        ]
        await self._publish(DataPiece(self.record.length, runs, said), runs)
        self._note([event])

    async def append_bytes(self, content: bytes) -> None:
        """Bytes that are no events."""
        await self._publish(DataPiece(self.record.length, [content], None), [content])

    async def merge(self, events: Sequence[bytes]) -> None:
        """Events of a transaction: published in a segment of their own first, with numbers from 0."""
        runs: list[BufferView] = [frame(event) for event in events]
        length = sum(map(len, runs))
        source = replace(self.record, segment_id=SegmentId(2), name=f"{NAME}#source", length=length)
        said = [RunEvents(number, START_MS, START_MS) for number in range(len(runs))]
        await self.owner.publish(
            publication(self._next(), SegmentPublication(source, [DataPiece(0, runs, said)]))
        )
        piece = MergePiece(
            self.record.length,
            SegmentId(2),
            length,
            first_event=len(self.events),
            begins_event=True,
        )
        self.record = replace(
            self.record, length=self.record.length + length, sequence_number=self._next()
        )
        await self.owner.publish(
            publication(
                self.record.sequence_number,
                SegmentPublication(self.record, [piece]),
                SegmentPublication(
                    replace(source, sequence_number=self.record.sequence_number), deleted=True
                ),
            )
        )
        self._note(events)

    async def truncate(self, offset: int) -> None:
        self.record = replace(self.record, start_offset=offset, sequence_number=self._next())
        await self.owner.publish(
            publication(self.record.sequence_number, SegmentPublication(self.record))
        )

    async def remove(self) -> None:
        """With its chunks, as retention and deletions do."""
        self.record = replace(self.record, sequence_number=self._next())
        removed = SegmentPublication(self.record, deleted=True)
        await self.owner.publish(publication(self.record.sequence_number, removed))
        await self.compact()

    async def compact(self) -> None:
        """Until nothing is left to join and nothing to delete."""
        while await self.owner.maintain():
            pass
        while await self.owner.collect_garbage():
            pass

    async def chunk_keys(self) -> list[str]:
        """Objects that hold chunks now."""
        async with aclosing(MemoryObjectStore.list(self.store, "containers/0000/chunks/")) as found:
            return [info.key async for info in found]

    async def view(self) -> Tier2Reader:
        """What a reader sees now; its requests are counted from here on."""
        view = Tier2Reader(store=self.store, executor=None)
        await view.open()
        self.store.gets = self.store.listings = 0
        return view

    def _next(self) -> SequenceNumber:
        return SequenceNumber(self.record.sequence_number + 1)

    def _note(self, events: Sequence[bytes]) -> None:
        for event in events:
            self.offsets.append(self.offsets[-1] + 8 + len(self.events[-1]) if self.events else 0)
            self.events.append(event)

    async def _publish(self, piece: DataPiece, runs: Sequence[BufferView]) -> None:
        self.record = replace(
            self.record,
            length=self.record.length + sum(map(len, runs)),
            sequence_number=self._next(),
        )
        await self.owner.publish(
            publication(self.record.sequence_number, SegmentPublication(self.record, [piece]))
        )


def publication(sequence: SequenceNumber, *segments: SegmentPublication) -> Publication:
    return Publication(segments, SegmentId(9), sequence)


async def event_segment(
    settings: StorageSettings = SETTINGS, name: str = NAME, store: CountingStore | None = None
) -> EventSegment:
    store = store or CountingStore()
    owner = await claimed_container(store, 0, count=1, settings=settings)
    record = SegmentRecord(SEGMENT_ID, name, 0, 0, False, START_MS, SequenceNumber(0))
    return EventSegment(store, owner, record, [], [])


async def claimed_container(
    store: CountingStore, number: int, *, count: int, settings: StorageSettings = SETTINGS
) -> TieredStorage:
    """The owner of one of so many containers, with a manifest."""
    owner = TieredStorage(
        object_store=store,
        store_id=b"\x01" * 16,
        container_id=ContainerId(number),
        container_count=count,
        settings=settings,
        wall_clock=SystemWallClock(),
        random=Random(3),
        executor=None,
    )
    await owner.claim(epoch=Epoch(1), log_id=b"\x02" * 16)
    return owner


def reading(
    part: SegmentRange,
    view: Tier2Reader,
    *,
    columns: Sequence[str] = EVENT_COLUMNS,
    fail_on_data_loss: bool = True,
    executor: Executor | None = None,
) -> RangeReader:
    options = SourceOptions(columns=tuple(columns), fail_on_data_loss=fail_on_data_loss)
    return RangeReader(part, options=options, view=view, served=None, executor=executor)


async def rows_of(found: RangeReader) -> list[dict[str, object]]:
    async with aclosing(found.batches()) as batches:
        return [row async for batch in batches for row in batch.to_pylist()]
