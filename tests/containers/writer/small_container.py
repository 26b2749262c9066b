"""A container without Tier 1: operations are numbered, applied and handed to the storage writer as in the real one, and
every state of every segment is kept, so that anything published can be compared with the history.

The log is a list of steps that are applied again after a crash. Nothing is ever cut off it, so a recovery replays even
what was published long ago, which is the hardest case for H32.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from containers.log.in_memory_log import InMemoryLog
from containers.metadata.append_run import AppendRun
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    DeleteOperation,
    MapSegmentOperation,
    MergeOperation,
    MetadataCheckpointOperation,
    Operation,
    SealOperation,
    SegmentOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from containers.operations.snapshot_codec import encode_segment_snapshot
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    AttributeValue,
    ContainerId,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import SegmentRecord
from tests.containers.writer.memory_storage import MemoryStorage, Stored

Changes = Sequence[tuple[AttributeKey, AttributeValue | None]]

EVENTS = AttributeKey(CORE_ATTRIBUTE_PREFIX + bytes(8))
WRITER = AttributeKey(b"writer-0000-0001")


@dataclass(frozen=True)
class State:
    """A segment after one of its operations."""

    start_offset: int
    length: int
    sealed: bool
    core: Mapping[AttributeKey, AttributeValue]
    extended: Mapping[AttributeKey, AttributeValue]
    gone: bool = False


@dataclass
class History:
    """Every state a segment ever had, by the sequence number that made it."""

    name: str
    content: bytearray = field(default_factory=bytearray)
    states: dict[int, State] = field(default_factory=dict)

    def at(self, number: int) -> tuple[int, State] | None:
        """The last state at or below that number."""
        found = [key for key in self.states if key <= number]
        return (max(found), self.states[max(found)]) if found else None

    @property
    def last(self) -> State:
        return self.states[max(self.states)]


class SmallContainer:
    """Implements WriterDataSource."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(container_id=ContainerId(1))
        self.log = InMemoryLog(metadata=self.metadata)
        self.steps: list[Callable[[SmallContainer], None]] = []
        self.histories: dict[SegmentId, History] = {}
        self.bytes_of: dict[SegmentId, bytearray] = {}
        self.acknowledged: list[int] = []
        self.told: list[tuple[str, int]] = []
        self.skipped_offsets: dict[int, int] = {}
        self.lent: list[tuple[int, int, bytearray]] = []
        """Bytes that the writer has views of: segment, offset, bytes."""
        self.removed: list[int] = []
        self.recovering = False
        self.is_refreshed = True
        """Whether it knew where each segment stands in Tier 2 when it began."""
        self.on_acknowledge: Callable[[int], Awaitable[None]] = _nothing
        self.acknowledge_delay = 0.0
        self._reader: asyncio.Future[None] | None = None

    # --- the verbs ----------------------------------------------------------------------------

    def create(self, name: str, attributes: Changes = ()) -> SegmentId:
        segment_id = self.metadata.next_segment_id()
        self._do(lambda container: container._create(segment_id, name, attributes))
        return segment_id

    def append(
        self,
        segment_id: SegmentId,
        data: bytes,
        attributes: Changes | None = None,
        *,
        seal: bool = False,
    ) -> None:
        self._do(lambda container: container._append(segment_id, data, attributes, seal))

    def seal(self, segment_id: SegmentId) -> None:
        self._do(lambda container: container._seal(segment_id))

    def truncate(self, segment_id: SegmentId, offset: int) -> None:
        self._do(lambda container: container._truncate(segment_id, offset))

    def merge(self, target_id: SegmentId, source_id: SegmentId) -> None:
        self._do(lambda container: container._merge(target_id, source_id))

    def delete(self, segment_id: SegmentId) -> None:
        self._do(lambda container: container._delete(segment_id))

    def update(self, segment_id: SegmentId, attributes: Changes) -> None:
        self._do(lambda container: container._update(segment_id, attributes))

    def reactivate(self, segment_id: SegmentId) -> None:
        self._do(lambda container: container._reactivate(segment_id))

    def checkpoint(self) -> None:
        self._do(lambda container: container._checkpoint())

    def _do(self, step: Callable[["SmallContainer"], None]) -> None:
        self.steps.append(step)
        step(self)

    def recovered(self, storage: MemoryStorage, *, refreshed: bool = True) -> "SmallContainer":
        """What a new owner rebuilds from the log, told by Tier 2 where each segment stands (H31)."""
        other = SmallContainer()
        other.recovering, other.is_refreshed = True, refreshed
        other.steps = self.steps
        for step in self.steps:
            step(other)
        other.metadata.raise_numbers(
            sequence_number=self.metadata.sequence_number,
            segment_id=self.metadata.highest_segment_id,
        )
        other.recovering = False
        for segment in other.metadata.by_id.values():
            stored = storage.segments.get(SegmentId(segment.segment_id))
            if stored is not None and refreshed:
                segment.set_storage_length(stored.record.length)
                segment.published_sequence_number = stored.record.sequence_number
                segment.sealed_in_storage = stored.record.sealed
        other.histories = self.histories
        return other

    # --- how each is applied ------------------------------------------------------------------

    def _create(self, segment_id: SegmentId, name: str, attributes: Changes) -> None:
        segment = SegmentMetadata(segment_id=segment_id, name=name)
        segment.attributes.complete = True
        segment.last_modified_ms = 1000 + segment_id
        segment.reset_pending()
        self.metadata.add(segment)
        self.bytes_of[segment_id] = bytearray()
        operation = MapSegmentOperation(
            segment, created=True, snapshot=encode_segment_snapshot(segment)
        )
        operation.attributes = attributes
        if not self.recovering:
            self.histories[segment_id] = History(name)
        self._add(operation, segment)
        segment.attributes.commit(attributes, operation.sequence_number)
        self._note(segment)

    def _append(
        self, segment_id: SegmentId, data: bytes, attributes: Changes | None, seal: bool
    ) -> None:
        segment = self.metadata.by_id[segment_id]
        number = self.metadata.next_sequence_number()
        offset = segment.length
        self.bytes_of[segment_id] += data
        segment.length += len(data)
        segment.pending_length = segment.length
        segment.last_sequence_number = number
        segment.set_last_modified(2000 + number)
        if attributes is not None:
            segment.attributes.commit(attributes, number)
        self.log.add_append(
            segment,
            offset=offset,
            end=segment.length,
            data=data,
            sequence_number=number,
            last_modified_ms=2000 + number,
            attributes=attributes,
        )
        if seal:
            operation = SealOperation(segment)
            operation.sequence_number = number
            operation.last_modified_ms = 2000 + number
            segment.sealed = segment.pending_sealed = True
            self.log.add(operation, segment)
        self._committed(number)
        self._note(segment)

    def _seal(self, segment_id: SegmentId) -> None:
        segment = self.metadata.by_id[segment_id]
        segment.sealed = segment.pending_sealed = True
        self._add(SealOperation(segment), segment)
        self._note(segment)

    def _truncate(self, segment_id: SegmentId, offset: int) -> None:
        segment = self.metadata.by_id[segment_id]
        segment.set_start_offset(offset)
        segment.pending_start_offset = offset
        self._add(TruncateOperation(segment, offset), segment)
        self._note(segment)

    def _merge(self, target_id: SegmentId, source_id: SegmentId) -> None:
        target, source = self.metadata.by_id[target_id], self.metadata.by_id[source_id]
        assert source.sealed, f"{source!r} is not sealed"
        operation = MergeOperation(target, source)
        operation.offset, operation.length = target.length, source.length
        source.merged = source.pending_merged = True
        target.length += source.length
        target.pending_length = target.length
        self.bytes_of[target_id] += self.bytes_of[source_id]
        self._add(operation, target, source)
        self._note(target)
        self._note(source)

    def _delete(self, segment_id: SegmentId) -> None:
        segment = self.metadata.by_id[segment_id]
        segment.deleted = segment.pending_deleted = True
        self._add(DeleteOperation(segment), segment)
        self._note(segment)

    def _update(self, segment_id: SegmentId, attributes: Changes) -> None:
        segment = self.metadata.by_id[segment_id]
        self._add(operation := UpdateAttributesOperation(segment, attributes), segment)
        segment.attributes.commit(attributes, operation.sequence_number)
        self._note(segment)

    def _reactivate(self, segment_id: SegmentId) -> None:
        segment = self.metadata.by_id[segment_id]
        snapshot = encode_segment_snapshot(segment)
        self._add(MapSegmentOperation(segment, created=False, snapshot=snapshot), segment)

    def _checkpoint(self) -> None:
        self._add(MetadataCheckpointOperation(()))

    def _add(self, operation: Operation, *segments: SegmentMetadata) -> None:
        operation.sequence_number = self.metadata.next_sequence_number()
        if isinstance(operation, SealOperation | MergeOperation):
            operation.last_modified_ms = 2000 + operation.sequence_number
            assert isinstance(operation, SegmentOperation), f"{operation!r}"
            operation.segment.set_last_modified(operation.last_modified_ms)
        for segment in segments:
            segment.last_sequence_number = operation.sequence_number
            segment.encoded_snapshot = None
        self.log.add(operation, *segments)
        self._committed(operation.sequence_number)

    def _committed(self, number: SequenceNumber) -> None:
        self.metadata.committed_sequence_number = number
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _note(self, segment: SegmentMetadata) -> None:
        if self.recovering:
            return
        history = self.histories[SegmentId(segment.segment_id)]
        history.content = self.bytes_of[SegmentId(segment.segment_id)]
        attributes = segment.attributes
        history.states[self.metadata.committed_sequence_number] = State(
            start_offset=segment.start_offset,
            length=segment.length,
            sealed=segment.sealed,
            core=attributes.core(),
            extended={key: v for key, (v, _) in attributes.extended() if v is not None},
            gone=segment.is_gone(),
        )

    # --- WriterDataSource ---------------------------------------------------------------------

    async def read(self, count_max: int) -> Sequence[AppendRun | Operation]:
        # Not the log's own waiting, which lets items rest: here the clock is the test's.
        while not len(self.log):
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self.log.read_nowait(count_max)

    def read_nowait(self, count_max: int) -> Sequence[AppendRun | Operation]:
        return self.log.read_nowait(count_max)

    @property
    def handed_out_sequence_number(self) -> SequenceNumber:
        return self.log.handed_out_sequence_number

    def segment(self, segment_id: SegmentId) -> SegmentMetadata | None:
        return self.metadata.by_id.get(segment_id)

    def data(self, segment_id: SegmentId, offset: int, length: int) -> Sequence[memoryview]:
        """In two views now and then, as if it lay in two cache blocks. Bytes in Tier 2 are gone from memory."""
        segment = self.metadata.by_id[segment_id]
        assert offset >= segment.storage_length, f"{offset} of {segment!r} is in Tier 2"
        skipped = self.skipped_offsets.get(segment_id, 0)
        assert offset >= skipped, f"{offset} of {segment!r} is forgotten below {skipped}"
        assert not segment.deleted, f"bytes of a deleted segment {segment!r}"
        content = bytearray(self.bytes_of[segment_id][offset : offset + length])
        self.lent.append((segment_id, offset, content))
        middle = length // 2 if (offset + length) % 3 == 0 else 0
        views = [memoryview(content)[:middle], memoryview(content)[middle:]]
        return [view for view in views if len(view)]

    def read_cached(self, segment_id: SegmentId, start: int, end: int) -> bytes | None:
        return None

    def published(
        self,
        segment_id: SegmentId,
        *,
        storage_length: int,
        sealed: bool,
        sequence_number: SequenceNumber,
    ) -> None:
        segment = self.metadata.by_id[segment_id]
        assert sequence_number > segment.published_sequence_number, f"again {segment!r}"
        if self.is_refreshed:
            skipped = self.skipped_offsets.get(segment_id, 0)
            assert storage_length >= skipped, (
                f"{segment!r} ends at {storage_length}, below {skipped}"
            )
        segment.set_storage_length(storage_length)
        segment.sealed_in_storage = sealed
        segment.published_sequence_number = sequence_number
        self.lent = [each for each in self.lent if each[0] != segment_id]
        self.told.append(("published", segment_id))

    def skipped(self, segment_id: SegmentId, offset: int) -> None:
        segment = self.metadata.by_id[segment_id]
        assert offset <= segment.start_offset, f"{offset} of {segment!r} is readable"
        self.skipped_offsets[segment_id] = offset
        for lent_id, begin, content in self.lent:
            if lent_id == segment_id and begin < offset:
                # Another segment's bytes are there now.
                length = min(offset - begin, len(content))
                content[:length] = b"\xff" * length
        self.told.append(("skipped", segment_id))

    def merge_completed(self, target_id: SegmentId, source_id: SegmentId) -> None:
        assert self.metadata.by_id[source_id].merged, f"{source_id} was not merged"
        self.told.append(("merged", source_id))

    def segment_removed(self, segment_id: SegmentId) -> None:
        segment = self.metadata.by_id[segment_id]
        assert segment.is_gone(), f"still here {segment!r}"
        self.metadata.remove(segment)
        self.told.append(("removed", segment_id))
        self.removed.append(segment_id)

    async def acknowledge(self, up_to: SequenceNumber) -> None:
        await asyncio.sleep(self.acknowledge_delay)
        assert not self.acknowledged or up_to > self.acknowledged[-1], f"again {up_to}"
        self.acknowledged.append(up_to)
        await self.on_acknowledge(up_to)

    # --- comparing with the history -----------------------------------------------------------

    def check_stored(self, storage: MemoryStorage) -> None:
        """Everything stored is a state that the segment had, after exactly the operation it names (H15)."""
        for segment_id, stored in storage.segments.items():
            check_record(self.histories[segment_id], stored)

    def check_acknowledged(self, storage: MemoryStorage, number: int) -> None:
        """A store rebuilt from Tier 2 alone has every effect of every operation up to `number` (H13)."""
        for segment_id, history in self.histories.items():
            found = history.at(number)
            if found is None:
                continue
            stored = storage.segments.get(segment_id)
            if stored is None:
                assert history.last.gone, f"acknowledged {number} without segment {segment_id}"
                continue
            assert not found[1].gone, f"acknowledged {number}, segment {segment_id} is still there"
            assert stored.record.sequence_number >= found[0], (
                f"acknowledged {number}, segment {segment_id} stands at"
                f" {stored.record.sequence_number}, not at {found[0]}"
            )

    def check_equal(self, storage: MemoryStorage) -> None:
        """Tier 2 holds exactly the last state of every segment."""
        self.check_stored(storage)
        self.check_acknowledged(storage, self.metadata.committed_sequence_number)
        alive = {key: value for key, value in self.histories.items() if not value.last.gone}
        assert sorted(storage.segments) == sorted(alive)
        assert storage.catalog == {history.name: key for key, history in alive.items()}


def check_record(history: History, stored: Stored) -> None:
    record: SegmentRecord = stored.record
    found = history.at(record.sequence_number)
    assert found is not None, f"a state before the creation {record}"
    number, state = found
    assert number == record.sequence_number, f"{record} is not after an operation of its own"
    assert not state.gone, f"{record} was gone at {number}"
    assert (record.start_offset, record.length, record.sealed) == (
        state.start_offset,
        state.length,
        state.sealed,
    ), f"{record} at {number} should be {state}"
    assert dict(record.core_attributes) == dict(state.core), f"{record} should be {state}"
    assert stored.attributes == dict(state.extended), f"{stored.attributes} should be {state}"
    expected = history.content[state.start_offset : state.length]
    assert stored.content[state.start_offset :] == expected, f"other bytes {record}"
    if not record.extended_attribute_count_is_zero:
        return
    assert not stored.attributes, f"has extended attributes {record}"


async def _nothing(number: int) -> None: ...


def checksum_of(content: bytes | bytearray) -> int:
    return crc32c(bytes(content))
