"""Makes our belief of a segment and Tier 2 agree before the first flush that touches it.

A publication may have happened without our learning of it, so the record in Tier 2 decides:

| Tier 2 has | then |
|---|---|
| the record we remember | go on |
| a newer one, within what the container has committed | believe it; items that it covers are dropped |
| bytes, seal, truncation or operations beyond what is committed | halt: only this container may write them |
| less than we were once told is published, or nothing | halt: something was lost |
| nothing, and the segment is new or deleted | go on |

Recovery may hand in checksums of replayed bytes that Tier 2 has already, by `expect()`. They are compared with Tier 2's
bytes before the segment's first flush, and all that remain before the first acknowledgement, after which the log
no longer has them. What Tier 2 has truncated or deleted meanwhile cannot be compared and is left out.

Invariants:
- a remembered record is the one under the published manifest: set when published or loaded, forgotten when in doubt;
- every DataCorruptionError is raised before anything of the segment is published.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c

from containers.container_settings import WriterSettings
from containers.metadata.append_run import AppendRun
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import MapSegmentOperation
from containers.writer.data_source import FlushSource
from containers.writer.segment_aggregator import PendingMerge, SegmentAggregator
from segmentstore.contracts.errors import (
    CorruptedDataError,
    DataCorruptionError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import NO_SEQUENCE_NUMBER, SegmentId, SequenceNumber
from segmentstore.contracts.storage import SegmentRecord, StorageRead


class PublishedRecords(Protocol):
    """What is asked of Tier 2; as contracts.storage.Storage."""

    async def load(self, segment_ids: Sequence[SegmentId]) -> Mapping[SegmentId, SegmentRecord]: ...

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead: ...


@dataclass(slots=True)
class ExpectedBytes:
    """Replayed bytes that Tier 2 claims to have: [offset, offset + length) with this CRC32C."""

    offset: int
    length: int
    checksum: int


class Reconciler:
    """Gives aggregators the record in Tier 2 on which their items build."""

    def __init__(
        self,
        *,
        source: FlushSource,
        storage: PublishedRecords,
        settings: WriterSettings,
    ) -> None:
        self._source = source
        self._storage = storage
        self._settings = settings
        self._remembered: OrderedDict[SegmentId, SegmentRecord] = OrderedDict()
        self._expected: dict[SegmentId, list[ExpectedBytes]] = {}
        self._new_above = NO_SEQUENCE_NUMBER
        self.compared_bytes = 0
        """Replayed bytes found equal to Tier 2's."""

    def set_new_above(self, sequence_number: SequenceNumber) -> None:
        """The claimed manifest knew no operation above this number: what is created later is not in Tier 2."""
        self._new_above = sequence_number

    def expect(self, segment_id: SegmentId, offset: int, length: int, checksum: int) -> None:
        """Recovery replayed these bytes, and Tier 2 claims to have them. Call before the writer runs."""
        if length > 0:
            expected = self._expected.setdefault(segment_id, [])
            expected.append(ExpectedBytes(offset, length, checksum))

    def remember(self, record: SegmentRecord) -> None:
        """This record was just published."""
        self._remembered[record.segment_id] = record
        self._remembered.move_to_end(record.segment_id)
        while len(self._remembered) > self._settings.remembered_records_max:
            self._remembered.popitem(last=False)

    def forget(self, segment_id: SegmentId) -> None:
        """The segment left Tier 2, or it is unknown what Tier 2 has of it."""
        self._remembered.pop(segment_id, None)
        self._expected.pop(segment_id, None)

    def note_unknown_outcome(self, segment_id: SegmentId) -> None:
        """A publication of it may or may not have happened: ask Tier 2 next time."""
        self._remembered.pop(segment_id, None)

    # --- before a flush -----------------------------------------------------------------------

    async def resolve(self, aggregators: Sequence[SegmentAggregator]) -> None:
        """Give each of them, and the sources waiting in them, its base. What they consume meanwhile may stay unknown.

        Raises StorageError, DataCorruptionError.
        """
        wanted: list[SegmentAggregator] = []
        for number, aggregator in enumerate(aggregators, 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            if not await self._is_resolved(aggregator):
                wanted.append(aggregator)
        # Targets first: their record may cover a merge, and then its source is not looked for.
        while wanted:
            await self._resolve_level(wanted)
            wanted = [
                source
                for aggregator in wanted
                for merge in list(aggregator.merges)
                if not await self._is_resolved(source := merge.source)
            ]

    async def _is_resolved(self, aggregator: SegmentAggregator) -> bool:
        """O(sources), in slices. Those that can be answered from memory are."""
        self._answer_from_memory(aggregator)
        resolved = aggregator.base_known
        for number, source in enumerate(aggregator.sources(), 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            self._answer_from_memory(source)
            resolved = resolved and source.base_known
        return resolved

    def _answer_from_memory(self, aggregator: SegmentAggregator) -> None:
        segment_id = aggregator.segment_id
        if aggregator.base_known or aggregator.finished or segment_id in self._expected:
            return
        record = self._remembered.get(segment_id)
        if record is not None:
            self._remembered.move_to_end(segment_id)
            self._learn(aggregator, record)
        elif self._is_new(aggregator):
            aggregator.learn(None)

    def _is_new(self, aggregator: SegmentAggregator) -> bool:
        """Created in this epoch of the container and never published."""
        first = aggregator.items[0] if aggregator.items else None
        return (
            isinstance(first, MapSegmentOperation)
            and first.sequence_number > self._new_above
            and aggregator.segment.published_sequence_number == NO_SEQUENCE_NUMBER
            and not aggregator.outcome_unknown
        )

    async def _resolve_level(self, aggregators: Sequence[SegmentAggregator]) -> None:
        unknown = [item for item in aggregators if not item.base_known and not item.finished]
        step = self._settings.load_records_max
        for first in range(0, len(unknown), step):
            batch = unknown[first : first + step]
            records = await self._storage.load([item.segment_id for item in batch])
            for aggregator in batch:
                record = records.get(aggregator.segment_id)
                if record is not None:
                    await self._compare(record)
                    await self._read_published_head(aggregator, record)
                # It may have been merged, deleted or dropped while we waited; its record is the same.
                if not aggregator.base_known and not aggregator.finished:
                    self._agree(aggregator, record)

    def _agree(self, aggregator: SegmentAggregator, record: SegmentRecord | None) -> None:
        segment = aggregator.segment
        if record is None:
            self._agree_on_absence(aggregator)
            return
        problem = _contradiction(segment, record)
        if problem:
            raise DataCorruptionError(
                f"Tier 2 {problem} of {segment!r}: start_offset={record.start_offset}"
                f" length={record.length} sealed={record.sealed} name={record.name!r}"
                f" sequence_number={record.sequence_number}"
            )
        self.remember(record)
        if (
            record.sequence_number > segment.published_sequence_number
            or record.length > segment.storage_length
        ):
            self._source.published(
                aggregator.segment_id,
                storage_length=record.length,
                sealed=record.sealed,
                sequence_number=record.sequence_number,
            )
        self._learn(aggregator, record)

    def _agree_on_absence(self, aggregator: SegmentAggregator) -> None:
        segment = aggregator.segment
        believed = segment.published_sequence_number > NO_SEQUENCE_NUMBER or segment.storage_length
        created = bool(aggregator.items) and isinstance(aggregator.items[0], MapSegmentOperation)
        # A deletion that was published just before a crash is consumed once more.
        if (believed or not created) and not aggregator.owner().deleted:
            raise DataCorruptionError(f"Tier 2 has lost the record of {segment!r}")
        self.forget(aggregator.segment_id)
        aggregator.learn(None)

    def _learn(self, aggregator: SegmentAggregator, record: SegmentRecord) -> None:
        for merge in aggregator.learn(record):
            self._merge_was_published(merge)

    def _merge_was_published(self, merge: PendingMerge) -> None:
        sources = [merge.source, *merge.source.sources()]
        for source in reversed(sources):
            merged_into = source.merged_into
            assert merged_into is not None, f"not merged {source.segment!r}"
            source.finished = True
            self.forget(source.segment_id)
            self._source.merge_completed(merged_into.segment_id, source.segment_id)
            self._source.segment_removed(source.segment_id)

    # --- replayed bytes -----------------------------------------------------------------------

    async def compare_rest(self) -> None:
        """Compare what has been expected of segments that were not flushed since. Raises as resolve()."""
        while self._expected:
            step = self._settings.load_records_max
            segment_ids = list(self._expected)[:step]
            records = await self._storage.load(segment_ids)
            for segment_id in segment_ids:
                record = records.get(segment_id)
                if record is not None:
                    await self._compare(record)
                self._expected.pop(segment_id, None)

    async def _compare(self, record: SegmentRecord) -> None:
        for expected in self._expected.get(record.segment_id, ()):
            if expected.offset >= record.start_offset:
                await self._compare_range(record, expected)
        self._expected.pop(record.segment_id, None)

    async def _compare_range(self, record: SegmentRecord, expected: ExpectedBytes) -> None:
        end = expected.offset + expected.length
        checksum = await self._checksum_in_storage(record, expected.offset, end)
        if checksum is None and end <= record.length:
            return  # truncated meanwhile
        if checksum != expected.checksum:
            raise DataCorruptionError(
                f"Tier 2's bytes are not those of the log segment_id={record.segment_id}"
                f" name={record.name!r} offset={expected.offset} length={expected.length}"
                f" published_length={record.length}"
                f" checksum={checksum} expected={expected.checksum}"
            )
        self.compared_bytes += expected.length

    async def _read_published_head(
        self, aggregator: SegmentAggregator, record: SegmentRecord
    ) -> None:
        """What Tier 2 has of the run in which it ends: the rest is checked together with it."""
        for item in aggregator.items:
            if isinstance(item, AppendRun) and item.offset >= record.length:
                break
            if isinstance(item, AppendRun) and item.offset + item.length > record.length:
                if item.offset >= record.start_offset:
                    offset = item.offset
                    checksum = await self._checksum_in_storage(record, offset, record.length)
                    if checksum is not None:
                        aggregator.published_head = {offset: checksum}
                break

    async def _checksum_in_storage(
        self, record: SegmentRecord, offset: int, end: int
    ) -> int | None:
        """CRC32C of [offset, end); None if Tier 2 lacks some of it, or has truncated it. Raises DataCorruptionError."""
        checksum = 0
        if end > record.length:
            return None
        try:
            while offset < end:
                wanted = min(end - offset, self._settings.compare_bytes)
                found = await self._storage.read(record.segment_id, offset, wanted)
                piece = found.content[offset - found.offset :][: end - offset]
                assert len(piece), f"nothing read at {offset} of segment {record.segment_id}"
                checksum = crc32c(piece, checksum)
                offset += len(piece)
        except SegmentTruncatedError:
            return None
        except CorruptedDataError as error:
            raise DataCorruptionError(f"replayed bytes cannot be compared: {error}") from error
        return checksum


def _contradiction(segment: SegmentMetadata, record: SegmentRecord) -> str:
    """What is wrong with the record, in words; "" if nothing is."""
    if record.name != segment.name:
        return "has another name"
    if record.length > segment.length:
        return "has bytes that were never committed"
    if record.start_offset > segment.start_offset:
        return "has a truncation that was never committed"
    if record.sealed and not segment.sealed:
        return "has a seal that was never committed"
    if record.sequence_number > segment.last_sequence_number > NO_SEQUENCE_NUMBER:
        return "has an operation that was never committed"
    if record.length < segment.storage_length:
        return "lost bytes"
    if record.sequence_number < segment.published_sequence_number:
        return "lost operations"
    return ""
