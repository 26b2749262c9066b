"""A Tier 2 in dictionaries: the plain meaning of the Storage door, refusing whatever TieredStorage would refuse.

Faults are asked of a function before each publish; see Fault. A publication whose outcome its caller does not know may
land late: at the next publish, whatever that is, as a root update may.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from segmentstore.contracts.errors import (
    SegmentTruncatedError,
    ServiceHaltError,
    StorageError,
    StorageFullError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    Epoch,
    SegmentId,
    SequenceNumber,
)
from segmentstore.contracts.storage import (
    AttributePage,
    ClaimedManifest,
    DataPiece,
    KeptBytes,
    Publication,
    SegmentPublication,
    SegmentRecord,
    SnapshotInfo,
    StorageRead,
    StorageStatistics,
    StoredBlock,
    StoredChunk,
)


class Fault(Enum):
    NONE = "none"
    BEFORE = "before"
    """An error, and nothing happened."""
    AFTER = "after"
    """It happened, and the answer was lost."""
    LATE = "late"
    """An error, and it happens at the beginning of the next publish."""
    FULL = "full"
    FULL_LATE = "full late"
    FENCED = "fenced"


@dataclass
class Stored:
    record: SegmentRecord
    content: bytearray = field(default_factory=bytearray)
    """From offset 0; what was truncated before it was flushed is zeros."""
    attributes: dict[AttributeKey, AttributeValue] = field(default_factory=dict)


class MemoryStorage:
    def __init__(self) -> None:
        self.segments: dict[SegmentId, Stored] = {}
        self.catalog: dict[str, SegmentId] = {}
        self.highest_segment_id = SegmentId(0)
        self.highest_sequence_number = SequenceNumber(0)
        self.epoch = Epoch(0)
        self.next_fault: Callable[[], Fault] = lambda: Fault.NONE
        self.delay: Callable[[], float] = lambda: 0.0
        self.read_fault: Callable[[], bool] = lambda: False
        self.after_change: Callable[[], None] = lambda: None
        self.lands_before_claim: Callable[[], bool] = lambda: False
        self.landed: list[Publication] = []
        self.attempts: list[Publication] = []
        self.garbage_collections = 0
        self.maintenances = 0
        self.loads = 0
        self._open: Publication | None = None
        self._busy = False

    async def claim(self, *, epoch: Epoch, log_id: bytes, follows: bytes = b"") -> ClaimedManifest:
        if epoch <= self.epoch:
            raise StorageNotPrimaryError(f"epoch {epoch} <= {self.epoch}")
        created = self.epoch == 0
        # An update under the former epoch either lands before the claim or never does.
        late, self._open = self._open, None
        if late is not None and self.lands_before_claim():
            self._land(late)
        self.epoch = epoch
        self._busy = False  # the caller that was in the middle of a call is gone
        return ClaimedManifest(
            created=created,
            was_ours=not created,
            epoch=epoch,
            version=len(self.landed),
            changes=len(self.landed),
            highest_segment_id=self.highest_segment_id,
            highest_sequence_number=self.highest_sequence_number,
        )

    @property
    def root_changes(self) -> int:
        return len(self.landed)

    async def publish(self, publication: Publication) -> None:
        assert not self._busy, "two calls at once"
        self._busy = True
        try:
            await self._publish(publication)
        finally:
            self._busy = False

    async def _publish(self, publication: Publication) -> None:
        self.attempts.append(publication)
        await asyncio.sleep(self.delay())
        late, self._open = self._open, None
        if late is not None:
            self._land(late)
        if self.landed and self.landed[-1] is publication:
            return
        fault = self.next_fault()
        match fault:
            case Fault.FENCED:
                raise StorageNotPrimaryError("claimed under a higher epoch")
            case Fault.BEFORE:
                raise StorageError("no answer")
            case Fault.FULL:
                raise StorageFullError("no space left")
            case Fault.LATE:
                self._open = publication
                raise StorageError("no answer yet")
            case Fault.FULL_LATE:
                self._open = publication
                raise StorageFullError("no space left, perhaps")
            case Fault.AFTER:
                self._land(publication)
                raise StorageError("answer lost")
            case Fault.NONE:
                self._land(publication)

    def _land(self, publication: Publication) -> None:
        if (
            publication.highest_segment_id < self.highest_segment_id
            or publication.highest_sequence_number < self.highest_sequence_number
        ):
            raise ServiceHaltError("highest numbers go back")
        changed: dict[SegmentId, Stored | None] = {}
        by_id = {change.record.segment_id: change for change in publication.segments}
        if len(by_id) != len(publication.segments):
            raise ServiceHaltError("a segment is named twice")
        for change in publication.segments:
            self._check(change, publication)
            changed[change.record.segment_id] = (
                None if change.deleted else self._changed(change, by_id)
            )
        for change in publication.segments:
            self._enter(change, changed[change.record.segment_id])
        self.highest_segment_id = publication.highest_segment_id
        self.highest_sequence_number = publication.highest_sequence_number
        self.landed.append(publication)
        self.after_change()

    def _enter(self, change: SegmentPublication, stored: Stored | None) -> None:
        segment_id, name = change.record.segment_id, change.record.name
        if stored is None:
            self.segments.pop(segment_id, None)
            if self.catalog.get(name) == segment_id:
                del self.catalog[name]
            return
        if self.catalog.get(name, segment_id) <= segment_id:
            self.catalog[name] = segment_id
        self.segments[segment_id] = stored

    def _check(self, change: SegmentPublication, publication: Publication) -> None:
        record = change.record
        if record.segment_id > publication.highest_segment_id:
            raise ServiceHaltError("id above the highest")
        if record.sequence_number > publication.highest_sequence_number:
            raise ServiceHaltError("sequence number above the highest")
        if not 0 <= record.start_offset <= record.length:
            raise ServiceHaltError(f"start offset past the end {record}")
        before = self.segments.get(record.segment_id)
        if before is None:
            return
        old = before.record
        if record.length < old.length or record.start_offset < old.start_offset:
            raise ServiceHaltError(f"goes back {old} -> {record}")
        if record.sequence_number < old.sequence_number or record.name != old.name:
            raise ServiceHaltError(f"is older or another {old} -> {record}")
        if old.sealed and (not record.sealed or record.length != old.length):
            raise ServiceHaltError(f"was sealed {old} -> {record}")

    def _changed(
        self, change: SegmentPublication, by_id: Mapping[SegmentId, SegmentPublication]
    ) -> Stored:
        record = change.record
        before = self.segments.get(record.segment_id)
        content = bytearray(before.content if before else b"")
        end = max(len(content), record.start_offset)
        content.extend(bytes(end - len(content)))
        for piece in change.pieces:
            if piece.offset != end:
                raise ServiceHaltError(f"gap or overlap: {piece.offset} expected {end} {record}")
            if isinstance(piece, DataPiece):
                for run in piece.runs:
                    content += run
                end += sum(len(run) for run in piece.runs)
                continue
            source = self.segments[piece.source_id]
            departure = by_id.get(piece.source_id)
            if departure is None or not departure.deleted or not departure.record.sealed:
                raise ServiceHaltError(f"merges a source that stays {piece}")
            if source.record.length != piece.length or source.record.start_offset:
                raise ServiceHaltError(f"merges part of a source {piece} {source.record}")
            content += source.content
            end += piece.length
        if end != record.length:
            raise ServiceHaltError(f"ends at {end} not at {record.length}")
        attributes = dict(before.attributes if before else {})
        for key, value in change.attributes.items():
            if value is None:
                attributes.pop(key, None)
            else:
                attributes[key] = value
        none_ever = before is None or before.record.extended_attribute_count_is_zero
        return Stored(
            replace(
                record,
                core_attributes=dict(record.core_attributes),
                extended_attribute_count_is_zero=none_ever and not change.attributes,
            ),
            content,
            attributes,
        )

    async def find(self, name: str) -> SegmentRecord | None:
        found = self.catalog.get(name)
        return None if found is None else self.segments[found].record

    async def load(self, segment_ids: Sequence[SegmentId]) -> Mapping[SegmentId, SegmentRecord]:
        await asyncio.sleep(self.delay())
        self.loads += 1
        if self.read_fault():
            raise StorageError("no answer to a read")
        return {key: self.segments[key].record for key in segment_ids if key in self.segments}

    async def load_attributes(
        self, segment_id: SegmentId, keys: Sequence[AttributeKey] | None
    ) -> Mapping[AttributeKey, AttributeValue]:
        attributes = self.segments[segment_id].attributes
        return {key: value for key, value in attributes.items() if keys is None or key in keys}

    async def scan_attributes(
        self, segment_id: SegmentId, *, start: AttributeKey, end: AttributeKey, count: int
    ) -> AttributePage:
        stored = sorted(self.segments[segment_id].attributes.items())
        found = [(key, value) for key, value in stored if start <= key < end]
        return AttributePage(found[:count], found[count][0] if len(found) > count else None)

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead:
        await asyncio.sleep(self.delay())
        stored = self.segments[segment_id]
        if offset < stored.record.start_offset:
            raise SegmentTruncatedError(stored.record.name, start_offset=stored.record.start_offset)
        first = max(stored.record.start_offset, offset - 3)
        return StorageRead(first, memoryview(bytes(stored.content))[first : offset + length + 3])

    def list_segments(self, prefix: str, start_after: str) -> AsyncGenerator[SegmentRecord, None]:
        raise NotImplementedError("the writer lists nothing")

    def list_chunks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredChunk, None]:
        raise NotImplementedError("the writer lists nothing")

    def list_blocks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredBlock, None]:
        raise NotImplementedError("the writer lists nothing")

    def statistics(self) -> StorageStatistics:
        raise NotImplementedError("the writer asks for no statistics")

    async def collect_garbage(self) -> int:
        assert not self._busy, "garbage collection beside another call"
        self.garbage_collections += 1
        return 0

    async def sweep_orphans(self) -> None: ...

    async def maintain(self) -> bool:
        assert not self._busy, "maintenance beside another call"
        self.maintenances += 1
        return False

    async def scrub(self, kept: KeptBytes) -> bool:
        assert not self._busy, "scrubbing beside another call"
        return False

    async def create_snapshot(self, name: str, *, is_proved: bool = True) -> SnapshotInfo:
        raise NotImplementedError("the writer makes no backups")

    async def prove_snapshot(self, name: str, version: int) -> bool:
        raise NotImplementedError("the writer proves no backups")

    async def delete_snapshot(self, name: str) -> bool:
        raise NotImplementedError("the writer drops no backups")

    async def snapshots(self) -> Sequence[SnapshotInfo]:
        raise NotImplementedError("the writer lists no backups")

    async def close(self) -> None: ...
