"""From names to active segments: activation, creation, pins, and eviction of what is idle.

Invariants:
- one resolution of a name is in flight at a time, shared by all callers that ask; of several creates one wins;
- of two creations at most one waits for the other, whatever was merged into what;
- a segment is logged (mapped) before anything else of it can be, because mapping is submitted in the very stretch in
  which the segment becomes active, and none becomes active where that would be refused;
- existence is decided by active metadata, else by the catalog under the manifest; never by a listing, and "does not
  exist" is never remembered;
- a segment is evicted only if no caller pins it, no request of it waits and all of its operations are published; the
  check and the removal are one stretch.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from containers.attributes.attribute_updates import (
    evaluate_updates,
    merged_source_key,
    validate_updates,
)
from containers.attributes.extended_attributes import AttributeFetches
from containers.container_settings import SegmentMapperSettings
from containers.log.operation_processor import OperationProcessor
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.ownership import Ownership
from containers.read_index.container_read_index import ContainerReadIndex
from segmentstore.contracts.errors import (
    LogFullError,
    SegmentExistsError,
    SegmentNotFoundError,
    TooManyActiveSegmentsError,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    ContainerId,
    SequenceNumber,
)
from segmentstore.contracts.segments import AttributeUpdate, check_segment_name
from segmentstore.contracts.storage import ReadOnlyStorage, SegmentRecord
from segmentstore.runtime.cancellation import retrieve_exception
from segmentstore.runtime.guarded_callback import guarded

_FLUSH_ATTEMPTS_MAX = 4


class SegmentMapper:
    """Keeps the active set. Everything that takes a name goes through here first."""

    def __init__(
        self,
        *,
        metadata: ContainerMetadata,
        storage: ReadOnlyStorage,
        read_index: ContainerReadIndex,
        processor: OperationProcessor,
        attribute_fetches: AttributeFetches,
        ownership: Ownership,
        acknowledged: Callable[[], SequenceNumber],
        flush: Callable[[], Awaitable[None]],
        now_ms: Callable[[], int],
        core_is_full: Callable[[], bool],
        storage_is_full: Callable[[], bool],
        settings: SegmentMapperSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._metadata = metadata
        self._storage = storage
        self._read_index = read_index
        self._processor = processor
        self._attribute_fetches = attribute_fetches
        self.ownership = ownership
        """Its handles ask it: a field of their own would take each of them over the end of its cache line."""
        self._acknowledged = acknowledged
        self._flush = flush
        self._now_ms = now_ms
        self._core_is_full = core_is_full
        self.storage_is_full = storage_is_full
        self._settings = settings
        self._resolutions: dict[str, Future[None]] = {}
        self._mapping: dict[str, Future[int]] = {}
        self._forgetting: set[str] = set()
        """Names that are free and about to be given to a new segment: their merges are being forgotten."""
        self._evicted = 0
        self._activated = 0

    @property
    def container_id(self) -> ContainerId:
        return self._metadata.container_id

    async def resolve(self, name: str) -> SegmentMetadata:
        """The active segment of that name, pinned: the caller unpins it. Raises SegmentNotFoundError."""
        while True:
            segment = self._metadata.get(name)
            if segment is not None:
                segment.pins += 1
                segment.last_used = self._loop.time()
                mapping = self._mapping.get(name)
                if mapping is None:
                    return segment
                try:
                    await asyncio.shield(mapping)
                except BaseException:
                    segment.pins -= 1
                    raise
                if not segment.is_pending_gone():
                    return segment
                segment.pins -= 1
                continue
            flight = self._resolutions.get(name)
            if flight is not None:
                await asyncio.shield(flight)
                continue
            last = self._metadata.last_of_name(name)
            if last is None:
                await self._activate(name)
                continue
            if not last.is_gone():
                # Its end is accepted and not yet durable: no caller may be told of it before.
                await asyncio.shield(self._processor.barrier(None))
            if self._metadata.last_of_name(name) is last:
                raise SegmentNotFoundError(name)

    async def _activate(self, name: str) -> None:
        flight = self._loop.create_future()
        self._resolutions[name] = flight
        try:
            record = await self.find_inactive(name)
            if record is None:
                raise SegmentNotFoundError(name)
            await self._make_place()
            if self._metadata.last_of_name(name) is not None:
                return
            self._processor.require_accepting()
            segment = _from_record(record)
            segment.last_used = self._loop.time()
            self._metadata.add(segment)
            self._read_index.open(segment)
            self._activated += 1
            mapping = self._processor.map(segment, created=False)
            mapping.add_done_callback(retrieve_exception)
        finally:
            del self._resolutions[name]
            flight.set_result(None)

    async def find_inactive(self, name: str) -> SegmentRecord | None:
        """The segment of that name as Tier 2 knows it, unless memory knows that it is gone.

        Tier 2 may still name an older segment than the last one of a name that is gone from memory. Raises
        InvalidRequestError for what can be no segment's name.
        """
        check_segment_name(name)
        while True:
            removals = self._metadata.removals
            record = await self._storage.find(name)
            if record is None or removals == self._metadata.removals:
                break
        if record is not None and record.segment_id in self._metadata.by_id:
            return None
        return record

    async def create(self, name: str, updates: Sequence[AttributeUpdate]) -> SegmentMetadata:
        """A new segment, durable when this returns; pinned. Raises SegmentExistsError."""
        validate_updates(updates, at_creation=True)
        while True:
            present = self._metadata.get(name)
            if present is not None:
                mapping = self._mapping.get(name)
                if mapping is not None:
                    await asyncio.shield(mapping)
                raise SegmentExistsError(name)
            flight = self._resolutions.get(name)
            if flight is None:
                break
            await asyncio.shield(flight)
        flight = self._loop.create_future()
        self._resolutions[name] = flight
        try:
            segment, mapping = await self._create(name, updates)
        finally:
            del self._resolutions[name]
            flight.set_result(None)
        try:
            await asyncio.shield(mapping)
        except BaseException:
            segment.pins -= 1
            raise
        return segment

    async def _create(
        self, name: str, updates: Sequence[AttributeUpdate]
    ) -> "tuple[SegmentMetadata, Future[int]]":
        if self._metadata.last_of_name(name) is None and await self.find_inactive(name) is not None:
            raise SegmentExistsError(name)
        self._forgetting.add(name)
        try:
            await self._forget_merge(name)
        finally:
            self._forgetting.discard(name)
        await self._make_place()
        if self._metadata.get(name) is not None:
            raise SegmentExistsError(name)
        # Else a checkpoint would have it, and the next owner take for created what was refused here.
        self._processor.require_accepting()
        if self._processor.log_full:
            raise LogFullError("the disk of the log is full: no segment can be created")
        segment = SegmentMetadata(segment_id=self._metadata.next_segment_id(), name=name)
        segment.attributes.complete = True
        segment.last_used = self._loop.time()
        segment.last_modified_ms = segment.pending_last_modified_ms = self._now_ms()
        changes = evaluate_updates(segment.attributes, name, updates)
        self._metadata.add(segment)
        self._read_index.open(segment)
        segment.pins += 1
        mapping = self._processor.map(segment, created=True, attributes=changes)
        self._mapping[name] = mapping
        mapping.add_done_callback(
            guarded(lambda done: self._mapped(name, done), self._processor.fail)
        )
        return segment, mapping

    async def _forget_merge(self, name: str) -> None:
        """Before the name is another segment's: a merge of that one must not be taken for the one that was done.

        Durable before the segment is created: no crash leaves both. Of merges that the log let go of before the last
        start nothing is known: then a name that came again, and is gone again unmerged, counts as merged.
        """
        found = self._metadata.merged_into.get(name)
        if found is None:
            return
        target_name, target_id = found
        if target_name in self._forgetting:
            # Gone as well. Its creation may wait for this one in here, for a merge the other way round.
            return
        try:
            target = await self.resolve(target_name)
        except SegmentNotFoundError:
            return  # gone, and its memory with it
        try:
            if target.segment_id == target_id:
                forget = [AttributeUpdate(merged_source_key(name), None)]
                await asyncio.shield(self._processor.update_attributes(target, forget))
        except SegmentNotFoundError:
            pass  # the same, meanwhile
        finally:
            target.pins -= 1
        self.forget_merged([name])

    def forget_merged(self, source_names: Iterable[str]) -> None:
        """The targets remember these no more."""
        for name in source_names:
            self._metadata.merged_into.pop(name, None)

    def _mapped(self, name: str, done: "Future[int]") -> None:
        retrieve_exception(done)
        if _is_durable(done) and self._mapping.get(name) is done:
            del self._mapping[name]

    def is_being_created(self, name: str) -> bool:
        """Its creation is accepted and not yet durable: no query may show it."""
        mapping = self._mapping.get(name)
        return mapping is not None and not _is_durable(mapping)

    async def attribute_values(
        self, segment: SegmentMetadata, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue | None]:
        """Committed values, from Tier 2 where memory does not know them; None for absent ones."""
        return await self._attribute_fetches.values(segment, keys)

    # --- eviction --------------------------------------------------------------------------------

    async def _make_place(self) -> None:
        """Wait until one more segment may become active."""
        for _ in range(_FLUSH_ATTEMPTS_MAX):
            if self._has_place():
                return
            if self.evict_some():
                continue
            await self._flush()
        if not self._has_place() and not self.evict(1):
            raise TooManyActiveSegmentsError(
                f"every active segment is busy active={len(self._metadata.by_id)} "
                f"active_max={self._settings.active_segments_max}"
            )

    def _has_place(self) -> bool:
        return (
            len(self._metadata.by_id) < self._settings.active_segments_max
            and not self._core_is_full()
        )

    def evict_some(self) -> int:
        """Evict a share of the active set, if so many are idle; O(active). The number evicted."""
        active_count = min(len(self._metadata.by_id), self._settings.active_segments_max)
        return self.evict(max(1, int(active_count * self._settings.eviction_share)))

    def evict(self, count_max: int) -> int:
        """Evict the least recently used idle segments; O(active). The number evicted."""
        acknowledged = self._acknowledged()
        idle = [
            segment
            for segment in self._metadata.by_id.values()
            if self._may_evict(segment, acknowledged)
        ]
        if len(idle) > count_max:
            idle.sort(key=lambda segment: (segment.last_used, segment.segment_id))
            del idle[count_max:]
        for segment in idle:
            self._read_index.remove(segment.segment_id)
            self._metadata.remove(segment)
        self._evicted += len(idle)
        return len(idle)

    @staticmethod
    def _may_evict(segment: SegmentMetadata, acknowledged: SequenceNumber) -> bool:
        return (
            segment.pins == 0
            and segment.pending_operations == 0
            and segment.waiting_requests == 0
            and segment.last_sequence_number <= acknowledged
            and segment.storage_length == segment.length
            and segment.sealed_in_storage == segment.sealed
            and not segment.is_pending_gone()
            and not segment.read_index.has_waiters
        )

    def metrics(self) -> dict[str, float]:
        return {
            "active_segments": len(self._metadata.by_id),
            "activated_segments_total": self._activated,
            "evicted_segments_total": self._evicted,
        }


def _is_durable(mapping: "Future[int]") -> bool:
    """Whether that creation is durable.

    A creation that failed never becomes durable. It ends the container; until then each caller that asks for the
    segment gets the failure.
    """
    return mapping.done() and not mapping.cancelled() and mapping.exception() is None


def _from_record(record: SegmentRecord) -> SegmentMetadata:
    segment = SegmentMetadata(segment_id=record.segment_id, name=record.name)
    segment.start_offset = record.start_offset
    segment.length = segment.storage_length = record.length
    segment.last_modified_ms = record.last_modified_ms
    segment.sealed = segment.sealed_in_storage = record.sealed
    segment.published_sequence_number = record.sequence_number
    segment.last_sequence_number = record.sequence_number
    segment.attributes.complete = record.extended_attribute_count_is_zero
    segment.attributes.load_core(record.core_attributes)
    segment.reset_pending()
    return segment
