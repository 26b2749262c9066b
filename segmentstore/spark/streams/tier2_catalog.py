"""Scopes and streams as Tier 2 alone shows them: their records lie in table segments like any others.

`Tier2StreamCatalog` reads the records through `Tier2Table`, which finds entries by key through the index in the
attributes of the table's segment. What of a table lies in Tier 2 (containers/tables owns the format; a test holds both
together):

    attribute key      0x01, then the key
    attribute value    u64 offset, u32 length of the newest record, after compaction also u64 version; big-endian
    record             u8 1, i32 key length, i32 value length, i64 version, key, value

Invariants:

- The service is never asked. What it has not flushed is not seen: a segment without a record in Tier 2 is empty.
- What a table returns is as of one published manifest or a newer one; a record that compaction moved meanwhile is
  looked up again, at most _LOOKUP_ATTEMPTS_MAX times.
- A key that was removed has no entry.
- A stream that is being created or deleted is not there.
- The order of segments comes from the epochs: what an epoch adds follows, where key ranges overlap, what it takes away.
"""

import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import ScopeRecord, ScopeState
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    SealedSegmentRecord,
    StreamConfigurationRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
    TruncationRecord,
)
from segmentstore.codec.stream_names import creation_epoch_of, is_user_name, segment_name
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    StorageError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.streams.segment_graph import (
    StreamMetadata,
    StreamMissingError,
    StreamSegmentMetadata,
)
from segmentstore.spark.tier2_access import Tier2Reader
from tier2.outside_access import ContainerReader

_INDEX_KEY_PREFIX: Final = b"\x01"
_INDEX_ENTRY = struct.Struct(">QI")
_MOVED_INDEX_ENTRY = struct.Struct(">QIQ")
_RECORD_HEADER = struct.Struct(">Biiq")
_RECORD_FORMAT: Final = 1
_LOOKUP_ATTEMPTS_MAX: Final = 8
_SCAN_PAGE_KEYS: Final = 512
_INVISIBLE_STATES: Final = (StreamState.CREATING, StreamState.DELETING)
_EPOCHS_PER_READ: Final = 32


class Tier2Table:
    """One table segment as it is published."""

    def __init__(self, *, container: ContainerReader, name: str) -> None:
        self._container = container
        self._name = name

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values in the order of the keys; None where there is no entry, or no such table. Raises StorageError."""
        names = [AttributeKey(_INDEX_KEY_PREFIX + key.encode()) for key in keys]
        for _ in range(_LOOKUP_ATTEMPTS_MAX):
            record = await self._container.find(self._name)
            if record is None:
                return [None] * len(keys)
            places = await self._container.load_attributes(record.segment_id, names)
            try:
                return [
                    await self._value(record, name, places[name]) if name in places else None
                    for name in names
                ]
            except (SegmentNotFoundError, SegmentTruncatedError):
                # Compaction moved the record between the two looks, or the table was removed.
                await self._container.refresh()
        raise StorageError(f"a table moved during every attempt to read it table={self._name!r}")

    async def scan(self, prefix: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """Keys that begin so, with their values, in the order of the keys. Hold it in `aclosing`.

        Entries that change meanwhile may be missed or be of different moments. Raises StorageError.
        """
        record = await self._container.find(self._name)
        if record is None:
            return
        start = _INDEX_KEY_PREFIX + prefix.encode()
        # No byte of UTF-8 is 0xff, so it lies above every key that begins with the prefix.
        end = AttributeKey(start + b"\xff")
        following: AttributeKey | None = AttributeKey(start)
        while following is not None:
            page = await self._container.scan_attributes(
                record.segment_id, start=following, end=end, count=_SCAN_PAGE_KEYS
            )
            keys = [key[1:].decode() for key, _ in page.values]
            for key, value in zip(keys, await self.get(keys), strict=True):
                if value is not None:
                    yield key, value
            following = page.following

    async def _value(
        self, record: SegmentRecord, name: AttributeKey, place: AttributeValue
    ) -> bytes:
        offset, length = _decode_index_entry(place)
        content = b""
        while len(content) < length:
            at = offset + len(content)
            found = await self._container.read(record.segment_id, at, length - len(content))
            content += found.content[at - found.offset :][: length - len(content)]
        key = name[1:]
        kind, key_length, value_length, _ = _RECORD_HEADER.unpack_from(content)
        if (
            kind != _RECORD_FORMAT
            or value_length < 0
            or _RECORD_HEADER.size + key_length + value_length != length
            or content[_RECORD_HEADER.size : _RECORD_HEADER.size + key_length] != key
        ):
            raise CorruptedDataError(
                f"table index points at another record table={self._name!r} key={key!r} offset={offset}"
            )
        return content[_RECORD_HEADER.size + key_length :]


def _decode_index_entry(value: AttributeValue) -> tuple[int, int]:
    if isinstance(value, bytes) and len(value) in (_INDEX_ENTRY.size, _MOVED_INDEX_ENTRY.size):
        offset, length = _INDEX_ENTRY.unpack_from(value)
        return offset, length
    raise CorruptedDataError(f"table index is damaged value={value!r}")


class Tier2StreamCatalog:
    """Of one store."""

    def __init__(self, view: Tier2Reader) -> None:
        self._view = view

    async def scopes(self) -> list[str]:
        """Names of the scopes that exist, in order. Raises StorageError."""
        table = await self._table(record_keys.SCOPES_TABLE)
        if table is None:
            return []
        found: list[str] = []
        prefix = record_keys.scope("")
        async with aclosing(table.scan(prefix)) as entries:
            async for key, value in entries:
                if value != record_keys.REMOVED and _is_active_scope(ScopeRecord.decode(value)):
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
                if kind != "state" or value == record_keys.REMOVED or not is_user_name(name):
                    continue
                if StreamStateRecord.decode(value).state not in _INVISIBLE_STATES:
                    found.append(name)
        return found

    async def stream_metadata(self, scope: str, stream: str) -> StreamMetadata:
        """One stream from its head on. Raises StreamMissingError, StorageError."""
        table = await self.scope_table(scope)
        state_value, configuration_value, truncation_value = await table.get(
            [
                record_keys.state(stream),
                record_keys.configuration(stream),
                record_keys.truncation(stream),
            ]
        )
        state = StreamStateRecord.decode(state_value) if state_value else None
        if state is None or state.state in _INVISIBLE_STATES:
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
        return StreamMetadata(
            scope=scope,
            stream=stream,
            segments=segments,
            head=dict(head),
            tags=() if configuration is None else configuration.tags,
            is_sealed=state.state is StreamState.SEALED,
            created_ms=state.created_ms,
        )

    async def ends_of_gone(
        self, scope: str, stream: str, segment_ids: Sequence[int]
    ) -> list[SealedSegmentRecord | None]:
        """How segments that retention removed have ended; None where nothing is recorded of it here (yet)."""
        table = await self.scope_table(scope)
        values = await table.get([record_keys.sealed(stream, each) for each in segment_ids])
        return [SealedSegmentRecord.decode(value) if value else None for value in values]

    async def scope_table(self, scope: str) -> Tier2Table:
        """The table with a scope's records. Raises StreamMissingError if there is no such scope."""
        scopes = await self._table(record_keys.SCOPES_TABLE)
        value = (await scopes.get([record_keys.scope(scope)]))[0] if scopes else None
        record = ScopeRecord.decode(value) if value else None
        if record is None or not _is_active_scope(record):
            raise StreamMissingError(f"scope does not exist in Tier 2 name={scope}")
        table = await self._table(record_keys.scope_table(scope, record.incarnation))
        if table is None:
            raise StreamMissingError(f"scope has no records in Tier 2 name={scope}")
        return table

    async def _table(self, name: str) -> Tier2Table | None:
        container = await self._view.container(self._view.container_id(name))
        return None if container is None else Tier2Table(container=container, name=name)

    async def _epochs(
        self, table: Tier2Table, name: str, stream: str, first: int, last: int
    ) -> list[EpochRecord]:
        epochs: list[EpochRecord] = []
        for start in range(first, last + 1, _EPOCHS_PER_READ):
            numbers = range(start, min(start + _EPOCHS_PER_READ, last + 1))
            values = await table.get([record_keys.epoch(stream, number) for number in numbers])
            for number, value in zip(numbers, values, strict=True):
                if not value:
                    raise CorruptedDataError(f"epoch is missing stream={name} epoch={number}")
                epochs.append(EpochRecord.decode(value))
        return epochs

    async def _segment(
        self, scope: str, stream: str, node: "SegmentOrder", head: Mapping[int, int]
    ) -> StreamSegmentMetadata:
        name = segment_name(scope, stream, node.segment.segment_id)
        record: SegmentRecord | None = await self._view.find(name)
        length = 0 if record is None else record.length
        start = max(
            head.get(node.segment.segment_id, 0), 0 if record is None else record.start_offset
        )
        return StreamSegmentMetadata(
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


def _is_active_scope(record: ScopeRecord) -> bool:
    return record.state is ScopeState.ACTIVE
