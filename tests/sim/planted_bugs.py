"""Bugs to plant in the real node: each breaks one promise by which data could be lost.

A bug is a set of durability rules for the file log, or a change of one method while the patch lasts. One that few seeds
reach in their own worlds has a world made for it; the store without the bug keeps its promises there, too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from containers.cache.cache_entry import CacheEntry
from containers.log.admission_queue import AdmissionQueue, WaitingRequest
from containers.log.data_frame import DataFrameBuilder, FrameInFlight
from containers.log.log_truncation import TruncationMarkers
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges
from containers.ownership import Ownership
from containers.read_index.segment_read_index import SegmentReadIndex
from containers.tables import table_batch as batch
from containers.tables.table_batch import RemovalBatch
from containers.tables.table_index import encode_place
from containers.writer.backlog import AckCalculator
from containers.writer.publication import PublicationBuilder
from containers.writer.segment_flush import SegmentFlush
from containers.writer.storage_writer import StorageWriter
from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import BufferView, LogAddress, SequenceNumber
from segmentstore.contracts.storage import Publication, SegmentPublication
from tests.sim.actor import Actor, Stage
from tests.sim.old_locations import OldLocationAsker, owners_that_are_replaced_while_they_idle
from tests.sim.settings import Swarm, without_troubles
from tests.tier1.file_log.planted import (
    AcknowledgesBeforeSync,
    ReplaysFormerLives,
    ServesTheUnsyncedTail,
)
from tier1.file_log.settings import DurabilityRules
from tier2.volumes import rebuild as plain_rows
from tier2.volumes.index import plain_row_sequence
from tier2.volumes.recovery import TailReplay
from tier2.volumes.volume_files import OpenVolume


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """What is broken. `patch` breaks a class until the patch is undone; `world` changes a seed's world to show it, and
    `actor` is a client that only that world has."""

    rules: DurabilityRules | None = None
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    world: Callable[[Swarm], Swarm] | None = None
    actor: Callable[[Stage], Actor] | None = None


def power_cuts_behind_recoveries(swarm: Swarm) -> Swarm:
    """Nothing but crashes under many appends in flight, and each recovery ends in a power cut."""
    trouble = replace(
        without_troubles(swarm.trouble),
        seconds=30.0,
        event_seconds_mean=0.3,
        crash=1.0,
        power_loss=0.01,
        power_loss_behind_crash=1.0,
        job_seconds_mean=0.01,
    )
    node = replace(
        swarm.node,
        container_count=1,
        frames_in_flight_max=8,
        frame_operations_max=3,
        flush_seconds=10.0,
        flush_bytes=10_000,
    )
    work = replace(
        swarm.work,
        think_seconds_mean=0.001,
        pipeline_max=10,
        operations_per_actor=400,
        table_count=0,
    )
    return Swarm(node, work, trouble)


def writers_of_cold_attributes(swarm: Swarm) -> Swarm:
    """Attributes leave memory at once, many appends and batches of tables are in flight, few are let in together."""
    node = replace(swarm.node, attribute_bytes_max=1, frame_operations_max=2, flush_seconds=0.01)
    work = replace(
        swarm.work,
        pipeline_max=10,
        think_seconds_mean=0.001,
        segment_count=2,
        actor_count=10,
        operations_per_actor=100,
        table_count=2,
    )
    slow = replace(swarm.trouble.store, latency_seconds_mean=0.05)
    trouble = replace(swarm.trouble, seconds=5.0, event_seconds_mean=1.0, store=slow)
    return Swarm(node, work, trouble)


def _truncate_one_frame_too_far(patch: pytest.MonkeyPatch) -> None:
    def address_before(self: TruncationMarkers, checkpoint: SequenceNumber) -> LogAddress | None:
        """Also the frame in which the checkpoint begins (H30)."""
        address: LogAddress | None = None
        for marker, candidate in self._frames:
            address = candidate
            if marker >= checkpoint:
                break
        return address

    patch.setattr(TruncationMarkers, "address_before", address_before)


def _mark_frames_by_what_they_complete(patch: pytest.MonkeyPatch) -> None:
    seal = DataFrameBuilder._seal

    def seal_with_that_mark(self: DataFrameBuilder, *given: Any, **named: Any) -> FrameInFlight:
        last_started = self._last_started
        half_written = 1 if self.has_rest else 0
        self._last_started = SequenceNumber(max(0, last_started - half_written))
        try:
            return seal(self, *given, **named)
        finally:
            self._last_started = last_started

    patch.setattr(DataFrameBuilder, "_seal", seal_with_that_mark)


def _truncate_past_unflushed_attributes(patch: pytest.MonkeyPatch) -> None:
    def new_ack_calculator(self: StorageWriter) -> AckCalculator:
        writer = self

        class BytesOnly(AckCalculator):
            def hold_back(self, lowest_unpublished: SequenceNumber) -> None:
                if writer.statistics().pending_bytes:
                    super().hold_back(lowest_unpublished)

        return BytesOnly(self._consumed_up_to)

    patch.setattr(StorageWriter, "_new_ack_calculator", new_ack_calculator)


def _let_storage_length_run_ahead(patch: pytest.MonkeyPatch) -> None:
    honest = StorageWriter._hand_over

    async def hand_over(self: StorageWriter, publication: Publication) -> None:
        try:
            await honest(self, publication)
        except StorageError:
            return  # taken for done

    patch.setattr(StorageWriter, "_hand_over", hand_over)


def _publish_half_a_merge(patch: pytest.MonkeyPatch) -> None:
    honest = PublicationBuilder.publications_of

    def publications_of(
        self: PublicationBuilder, flush: SegmentFlush
    ) -> Iterator[SegmentPublication]:
        merged_sources, flush.merged_sources = flush.merged_sources, []
        yield from honest(self, flush)
        flush.merged_sources = merged_sources

    patch.setattr(PublicationBuilder, "publications_of", publications_of)


def _reuse_blocks_before_they_are_flushed(patch: pytest.MonkeyPatch) -> None:
    """The newest entry counts as flushed as soon as its first byte is (H53, H56)."""
    honest = SegmentReadIndex.storage_advanced

    def storage_advanced(self: SegmentReadIndex, storage_length: int) -> None:
        honest(self, storage_length)
        for entry in self._entries or ():
            if isinstance(entry, CacheEntry) and entry.offset < storage_length < entry.end:
                assert entry.block is not None, f"{entry!r} was released"
                entry.block.view[:] = bytes(entry.block.size_bytes)

    patch.setattr(SegmentReadIndex, "storage_advanced", storage_advanced)


def _give_moved_records_new_versions(patch: pytest.MonkeyPatch) -> None:
    """A copy counts as a new value (H65)."""

    def encode_new(offset: int, length: int, _: int) -> bytes:
        return encode_place(offset, length)

    patch.setattr(batch, "encode_moved", encode_new)


def _forget_that_removed_keys_are_gone(patch: pytest.MonkeyPatch) -> None:
    """Removals change the count, and leave the places where they were (H64)."""

    def evaluate_known(self: RemovalBatch, segment: SegmentMetadata) -> AttributeChanges:
        _ = self._values_before(segment)
        return []

    patch.setattr(RemovalBatch, "_evaluate_known", evaluate_known)


def _answer_for_volumes_before_they_are_synced(patch: pytest.MonkeyPatch) -> None:
    def write(
        self: OpenVolume, buffers: Sequence[BufferView], length: int, *, past_cache: bool = False
    ) -> None:
        self.file.write_at(self.end, buffers)
        self.end += length

    patch.setattr(OpenVolume, "write", write)


def _keep_the_older_row_in_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    """Of two records of one key the lower number counts (H69)."""
    patch.setattr(plain_rows, "plain_row_sequence", lambda row: -plain_row_sequence(row))


def _skip_what_the_index_of_the_volumes_lacks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TailReplay, "_apply", lambda *_: None)


def _queue_late_requests_behind_those_that_stepped_aside(patch: pytest.MonkeyPatch) -> None:
    """Others of the segment that came before them are in the queue still (H35)."""
    honest = AdmissionQueue.add

    def add(self: AdmissionQueue, request: WaitingRequest) -> None:
        honest(self, request)
        waiting = self._waiting_for_attributes.get(request.segment)
        if waiting is not None:
            waiting.append(self._requests.pop())

    patch.setattr(AdmissionQueue, "add", add)


def _refuse_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    """What is judged by memory is told at once, whether or not another owner knows more."""
    patch.setattr(Ownership, "is_sure", lambda _: True)


BUGS: dict[str, PlantedBug] = {
    "acknowledged before it is synced": PlantedBug(rules=AcknowledgesBeforeSync()),
    "a stale frame of a recycled file is replayed": PlantedBug(rules=ReplaysFormerLives()),
    "a recovered tail is served before it is synced": PlantedBug(
        rules=ServesTheUnsyncedTail(), world=power_cuts_behind_recoveries
    ),
    "the log is truncated one frame too far": PlantedBug(patch=_truncate_one_frame_too_far),
    "a frame is marked by what it completes": PlantedBug(patch=_mark_frames_by_what_they_complete),
    "the log is truncated past attributes that are not flushed": PlantedBug(
        patch=_truncate_past_unflushed_attributes
    ),
    "storage length runs ahead of Tier 2": PlantedBug(patch=_let_storage_length_run_ahead),
    "requests of a segment leave the admission queue out of order": PlantedBug(
        patch=_queue_late_requests_behind_those_that_stepped_aside, world=writers_of_cold_attributes
    ),
    "half a merge is published": PlantedBug(patch=_publish_half_a_merge),
    "compaction of a table gives new versions": PlantedBug(patch=_give_moved_records_new_versions),
    "a removed key stays in its table": PlantedBug(patch=_forget_that_removed_keys_are_gone),
    "a cache block is reused while its bytes are needed": PlantedBug(
        patch=_reuse_blocks_before_they_are_flushed
    ),
    "an object in the volumes is answered for before it is synced": PlantedBug(
        patch=_answer_for_volumes_before_they_are_synced
    ),
    "a rebuild of the index keeps older rows": PlantedBug(patch=_keep_the_older_row_in_a_rebuild),
    "records behind the index of the volumes are skipped": PlantedBug(
        patch=_skip_what_the_index_of_the_volumes_lacks
    ),
    "an owner that was replaced refuses by what it remembers": PlantedBug(
        patch=_refuse_without_a_proof,
        world=owners_that_are_replaced_while_they_idle,
        actor=OldLocationAsker,
    ),
}
