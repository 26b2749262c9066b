"""Scopes and streams as Tier 2 alone shows them: their records lie in table segments like any others (H78).

Invariants:

- The service is never asked. What it has not flushed is not seen: a segment without a record in Tier 2 is empty.
- A stream that is being created or deleted is not there.
- Order comes from the epochs: what an epoch adds follows, where key ranges overlap, what it takes away.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from segmentstore.codec.stream_names import creation_epoch_of, is_user_name, segment_name
from segmentstore.codec.stream_records import record_places
from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.scope_record import ScopeRecord, ScopeState
from segmentstore.codec.stream_records.stream_configuration_record import (
    StreamConfigurationRecord,
)
from segmentstore.codec.stream_records.stream_segment import StreamSegment
from segmentstore.codec.stream_records.stream_state_record import StreamState, StreamStateRecord
from segmentstore.codec.stream_records.truncation_record import TruncationRecord
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.errors import StreamMissingError
from segmentstore.spark.published_table import PublishedTable
from segmentstore.spark.stream_map import MappedSegment, StreamMap
from segmentstore.spark.tier2_view import Tier2View

_INVISIBLE: Final = (StreamState.CREATING, StreamState.DELETING)
_EPOCHS_PER_READ: Final = 32


class PublishedStreams:
    """Of one store."""

    def __init__(self, view: Tier2View) -> None:
        self._view = view

    async def scopes(self) -> list[str]:
        """Names of the scopes that exist, in order. Raises StorageError."""
        table = await self._table(record_places.SCOPES_TABLE)
        if table is None:
            return []
        found: list[str] = []
        prefix = record_places.scope("")
        async with aclosing(table.scan(prefix)) as entries:
            async for key, value in entries:
                if value != record_places.REMOVED and _is_active(ScopeRecord.decode(value)):
                    found.append(key.removeprefix(prefix))
        return found

    async def streams(self, scope: str) -> list[str]:
        """Names of a scope's streams that users made, in order. Raises StreamMissingError, StorageError."""
        table = await self.scope_table(scope)
        found: list[str] = []
        # Record kinds stand behind the name of the stream, so all of them are passed on the way.
        async with aclosing(table.scan("stream/")) as entries:
            async for key, value in entries:
                _, name, kind = key.split("/", 2)
                if kind != "state" or value == record_places.REMOVED or not is_user_name(name):
                    continue
                if StreamStateRecord.decode(value).state not in _INVISIBLE:
                    found.append(name)
        return found

    async def stream_map(self, scope: str, stream: str) -> StreamMap:
        """One stream from its head on. Raises StreamMissingError, StorageError."""
        table = await self.scope_table(scope)
        state_value, configuration_value, truncation_value = await table.get(
            [
                record_places.state(stream),
                record_places.configuration(stream),
                record_places.truncation(stream),
            ]
        )
        state = StreamStateRecord.decode(state_value) if state_value else None
        if state is None or state.state in _INVISIBLE:
            raise StreamMissingError(f"stream does not exist in Tier 2 name={scope}/{stream}")
        head: Mapping[int, int] = {}
        if truncation_value:
            head = TruncationRecord.decode(truncation_value).head
        first = min(map(creation_epoch_of, head), default=0)
        epochs = await self._epochs(table, f"{scope}/{stream}", stream, first, state.last_epoch)
        if not head:
            head = {segment.segment_id: 0 for segment in epochs[0].segments}
        configuration = (
            StreamConfigurationRecord.decode(configuration_value) if configuration_value else None
        )
        order = order_of(epochs, head)
        segments = [await self._segment(scope, stream, node, head) for node in order]
        return StreamMap(
            scope=scope,
            stream=stream,
            segments=segments,
            head=dict(head),
            tags=() if configuration is None else configuration.tags,
            is_sealed=state.state is StreamState.SEALED,
            created_ms=state.created_ms,
        )

    async def scope_table(self, scope: str) -> PublishedTable:
        """The table with a scope's records. Raises StreamMissingError if there is no such scope."""
        scopes = await self._table(record_places.SCOPES_TABLE)
        value = (await scopes.get([record_places.scope(scope)]))[0] if scopes else None
        record = ScopeRecord.decode(value) if value else None
        if record is None or not _is_active(record):
            raise StreamMissingError(f"scope does not exist in Tier 2 name={scope}")
        table = await self._table(record_places.scope_table(scope, record.incarnation))
        if table is None:
            raise StreamMissingError(f"scope has no records in Tier 2 name={scope}")
        return table

    async def _table(self, name: str) -> PublishedTable | None:
        container = await self._view.container(self._view.container_id(name))
        return None if container is None else PublishedTable(container=container, name=name)

    async def _epochs(
        self, table: PublishedTable, name: str, stream: str, first: int, last: int
    ) -> list[EpochRecord]:
        epochs: list[EpochRecord] = []
        for start in range(first, last + 1, _EPOCHS_PER_READ):
            numbers = range(start, min(start + _EPOCHS_PER_READ, last + 1))
            values = await table.get([record_places.epoch(stream, number) for number in numbers])
            for number, value in zip(numbers, values, strict=True):
                if not value:
                    raise CorruptedDataError(f"epoch is missing stream={name} epoch={number}")
                epochs.append(EpochRecord.decode(value))
        return epochs

    async def _segment(
        self, scope: str, stream: str, node: "SegmentOrder", head: Mapping[int, int]
    ) -> MappedSegment:
        name = segment_name(scope, stream, node.segment.segment_id)
        record: SegmentRecord | None = await self._view.find(name)
        length = 0 if record is None else record.length
        start = max(
            head.get(node.segment.segment_id, 0), 0 if record is None else record.start_offset
        )
        return MappedSegment(
            segment_id=node.segment.segment_id,
            name=name,
            epoch=node.segment.creation_epoch,
            low=node.segment.low,
            high=node.segment.high,
            # The head may have been recorded before the bytes below it were flushed.
            start_offset=min(start, length),
            end_offset=length,
            published_end=length,
            is_sealed=record is not None and record.sealed,
            container_id=self._view.container_id(name),
            successors=tuple(sorted(node.successors)),
            predecessors=tuple(sorted(node.predecessors)),
        )


@dataclass(slots=True)
class SegmentOrder:
    """A segment and its neighbours in the order of a stream."""

    segment: StreamSegment
    successors: list[int] = field(default_factory=list)
    predecessors: list[int] = field(default_factory=list)


def order_of(epochs: Sequence[EpochRecord], head: Mapping[int, int]) -> list[SegmentOrder]:
    """The segments from the head on, predecessors first. O(epochs x segments of one + edges)."""
    nodes: dict[int, SegmentOrder] = {}
    before: EpochRecord | None = None
    for epoch in epochs:
        kept = {segment.segment_id for segment in epoch.segments}
        known = {segment.segment_id for segment in before.segments} if before else set()
        gone = [each for each in before.segments if each.segment_id not in kept] if before else []
        for segment in epoch.segments:
            if segment.segment_id in known:
                continue
            parents = [
                nodes[each.segment_id]
                for each in gone
                if each.segment_id in nodes and each.overlaps(segment)
            ]
            if not parents and segment.segment_id not in head:
                continue
            node = nodes.setdefault(segment.segment_id, SegmentOrder(segment))
            # Before a segment of the head nothing can be read any more.
            for parent in () if segment.segment_id in head else parents:
                parent.successors.append(segment.segment_id)
                node.predecessors.append(parent.segment.segment_id)
        before = epoch
    return list(nodes.values())


def _is_active(record: ScopeRecord) -> bool:
    return record.state is ScopeState.ACTIVE
