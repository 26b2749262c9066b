"""Takes operations in: judges them against pending state, numbers them, and hands them to the frame pipeline.

Invariants:
- P1  sequence numbers strictly increase in the order of acceptance, which is the order of the log;
- P2  a future completes only when its operation is durable and applied; refusals that were judged against pending
      state complete only when that state has committed (H24);
- P3  what cannot be accepted yet waits in line, in call order per segment; delay comes before acceptance (H35);
- P4  any failure of the pipeline ends the processor for good; whoever owns the container next recovers.

Submitting never waits and never starts a task.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from containers.attributes.judgement import UnknownAttributesError
from containers.log.admission_line import AdmissionLine, WaitingRequest
from containers.log.checkpoint_policy import CheckpointPolicy
from containers.log.data_frame_builder import OPERATION_BYTES, DataFrameBuilder
from containers.log.frame_pipeline import FramePipeline, FramePipelineSettings
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.log.operation_metadata_updater import OperationMetadataUpdater
from containers.log.reported_elsewhere import reported_elsewhere
from containers.log.throttler import NO_THROTTLE, Throttle, Throttler
from containers.log.truncation_markers import TruncationMarkers
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges, Barrier, Operation, SegmentOperation
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    CacheFullError,
    LogFullError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.runtime.clock import WallClock


@dataclass(frozen=True, slots=True)
class OperationProcessorSettings:
    """Bounds of the pipeline between acceptance and Tier 1."""

    append_bytes_max: int = 8 * 1024 * 1024
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Bytes of requests that wait to be accepted; beyond them appends fail as unavailable."""
    pipeline: FramePipelineSettings = field(default_factory=FramePipelineSettings)


@dataclass(frozen=True, slots=True)
class OperationProcessorStatistics:
    """A snapshot for `/metrics`."""

    queued_operations: int
    frames_in_flight: int
    outstanding_bytes: int
    waiting_requests: int
    appended_operations: int
    appended_bytes: int
    frames: int
    frame_bytes: int


class OperationProcessor:
    """The write path of one container between the verbs and Tier 1. There is only one."""

    def __init__(
        self,
        *,
        log: DurableDataLog,
        metadata_updater: OperationMetadataUpdater,
        memory_state: MemoryStateUpdater,
        builder: DataFrameBuilder,
        markers: TruncationMarkers,
        checkpoints: CheckpointPolicy,
        throttler: Throttler,
        fetch_attributes: Callable[[SegmentMetadata, list[AttributeKey]], Awaitable[None]],
        make_room: Callable[[], None],
        wall_clock: WallClock,
        settings: OperationProcessorSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._updater = metadata_updater
        self._checkpoints = checkpoints
        self._throttler = throttler
        self._wall_clock = wall_clock
        self._settings = settings
        self._line = AdmissionLine(
            throttle=lambda: self._throttle,
            fetch_attributes=fetch_attributes,
            make_room=make_room,
            queue_has_room=self._queue_has_room,
            bytes_max=settings.waiting_bytes_max,
        )
        self._pipeline = FramePipeline(
            log=log,
            memory_state=memory_state,
            builder=builder,
            markers=markers,
            checkpoints=checkpoints,
            settings=settings.pipeline,
            before_pump=self._read_clock,
            after_completion=self._after_completion,
            on_failure=self._roll_back,
            on_log_full=self._note_log_full,
        )
        self._queued_bytes_max = settings.pipeline.queued_bytes_max
        self._throttle: Throttle = NO_THROTTLE
        self._log_full = False
        self._now_ms = wall_clock.now_ms()
        self._appended_operations = 0
        self._appended_bytes = 0

    # --- verbs -----------------------------------------------------------------------------------

    def append(
        self,
        segment: SegmentMetadata,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal: bool = False,
    ) -> "Future[int]":
        """See contracts.segments.Segment.append."""
        future: Future[int] = self._loop.create_future()
        if data.__class__ is not bytes:
            data = bytes(data)
        assert isinstance(data, bytes)
        if len(data) > self._settings.append_bytes_max:
            future.set_exception(
                AppendTooLargeError(length=len(data), length_max=self._settings.append_bytes_max)
            )
            return future
        if (
            segment.line
            or self._throttle.is_active
            or self._line.is_blocked
            or not self._queue_has_room()
        ):
            self._wait_in_line(segment, data, offset, attribute_updates, seal, future)
            return future
        try:
            self._try_append(segment, data, offset, attribute_updates, seal, future)
        except (CacheFullError, UnknownAttributesError):
            self._wait_in_line(segment, data, offset, attribute_updates, seal, future)
        return future

    def _try_append(
        self,
        segment: SegmentMetadata,
        data: bytes,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        seal: bool,  # positional on the hot path
        future: "Future[int]",
    ) -> None:
        if self._pipeline.failure is not None:
            self._stopped(future)
            return
        if self._log_full:
            future.set_exception(_full())
            return
        try:
            operation = self._updater.accept_append(
                segment,
                data,
                expected_offset=offset,
                updates=updates,
                seal=seal,
                now_ms=self._now_ms,
            )
        except CacheFullError:
            raise
        except SegmentStoreError as refusal:
            self._refuse(segment, refusal, future)
            return
        operation.future = future
        self._appended_operations += 1
        self._appended_bytes += operation.length
        pipeline = self._pipeline
        pipeline.queue.append(operation)
        pipeline.queued_bytes += operation.length + OPERATION_BYTES
        if not pipeline.scheduled:
            pipeline.schedule()

    def _wait_in_line(
        self,
        segment: SegmentMetadata,
        data: bytes,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        seal: bool,
        future: "Future[int]",
    ) -> None:
        if self._pipeline.failure is not None:
            self._stopped(future)
            return
        if self._log_full:
            future.set_exception(_full())
            return
        if not self._line.has_room:
            future.set_exception(
                SegmentStoreError(
                    "too many appends wait to be accepted "
                    f"reason={self._throttle.reason or 'cache_full'}"
                )
            )
            return
        self._line.add(
            WaitingRequest(
                segment,
                length=len(data),
                attempt=lambda: self._try_append(segment, data, offset, updates, seal, future),
                fail=lambda error: _fail(future, error),
            )
        )

    def seal(self, segment: SegmentMetadata) -> "Future[int]":
        """Final length. Queues behind waiting appends of the segment."""
        return self._process(
            segment, lambda: self._updater.accept_seal(segment, now_ms=self._now_ms)
        )

    def truncate(self, segment: SegmentMetadata, offset: int) -> "Future[int]":
        """Never waits in line: it frees space (H35)."""
        return self._process(
            segment, lambda: self._updater.accept_truncate(segment, offset), overtakes=True
        )

    def merge(self, target: SegmentMetadata, source: SegmentMetadata) -> "Future[int]":
        """The target's new length. The source stays active while the merge waits in line (H27)."""
        future = self._process(
            target, lambda: self._updater.accept_merge(target, source, now_ms=self._now_ms)
        )
        if not future.done():
            source.pins += 1
            future.add_done_callback(lambda _: _unpin(source))
        return future

    def delete(self, segment: SegmentMetadata) -> "Future[int]":
        """Never waits in line: it frees space, and what waits will be refused."""
        return self._process(segment, lambda: self._updater.accept_delete(segment), overtakes=True)

    def update_attributes(
        self, segment: SegmentMetadata, updates: Sequence[AttributeUpdate]
    ) -> "Future[int]":
        """Throttled like an append: it costs memory until it is in Tier 2 (H34)."""
        if self._log_full:
            future: Future[int] = self._loop.create_future()
            future.set_exception(_full())
            return future
        return self._process(
            segment,
            lambda: self._updater.accept_attributes(segment, updates),
            waits=self._throttle.is_active,
        )

    def map(
        self, segment: SegmentMetadata, *, created: bool, attributes: AttributeChanges = ()
    ) -> "Future[int]":
        """Log a segment that was just made active."""
        return self._process(
            segment,
            lambda: self._updater.accept_map(segment, created=created, attributes=attributes),
        )

    def barrier(self, segment: SegmentMetadata | None) -> "Future[int]":
        """Done when everything submitted before it (of the segment: also what waits in line) is done."""
        future: Future[int] = self._loop.create_future()
        if segment is not None and segment.line:
            self._line.add(
                WaitingRequest(
                    segment,
                    length=0,
                    attempt=lambda: self._submit_barrier(Barrier(segment), future),
                    fail=lambda error: _fail(future, error),
                )
            )
        else:
            self._submit_barrier(Barrier(segment), future)
        return future

    def checkpoint(self) -> "Future[int]":
        """Write a metadata checkpoint now; gives its sequence number."""
        future: Future[int] = self._loop.create_future()
        if self._pipeline.failure is not None:
            self._stopped(future)
            return future
        operation = self._updater.accept_checkpoint()
        self._checkpoints.checkpoint_taken(sum(len(part) for part in operation.payload))
        operation.result = operation.sequence_number
        self._pipeline.submit(operation, future)
        return future

    def storage_checkpoint(self) -> "Future[int]":
        """Write the storage lengths (H31)."""
        future: Future[int] = self._loop.create_future()
        if self._pipeline.failure is not None:
            self._stopped(future)
            return future
        self._pipeline.submit(self._updater.accept_storage_checkpoint(), future)
        return future

    def _process(
        self,
        segment: SegmentMetadata,
        accept: Callable[[], Operation | None],
        *,
        overtakes: bool = False,
        waits: bool = False,
    ) -> "Future[int]":
        future: Future[int] = self._loop.create_future()

        def attempt() -> None:
            if self._pipeline.failure is not None:
                self._stopped(future)
                return
            try:
                operation = accept()
            except SegmentStoreError as refusal:
                self._refuse(segment, refusal, future)
                return
            if operation is None:
                self._submit_barrier(Barrier(segment), future)
            else:
                self._pipeline.submit(operation, future)

        if waits or (segment.line and not overtakes):
            self._line_up(segment, attempt, future)
            return future
        try:
            attempt()
        except UnknownAttributesError:
            self._line_up(segment, attempt, future)
        return future

    def _line_up(
        self, segment: SegmentMetadata, attempt: Callable[[], None], future: "Future[int]"
    ) -> None:
        self._line.add(
            WaitingRequest(
                segment, length=0, attempt=attempt, fail=lambda error: _fail(future, error)
            )
        )

    def _refuse(
        self, segment: SegmentMetadata, refusal: SegmentStoreError, future: "Future[int]"
    ) -> None:
        self._submit_barrier(Barrier(segment, refusal), future)

    def _submit_barrier(self, barrier: Barrier, future: "Future[int]") -> None:
        if self._pipeline.failure is not None:
            self._stopped(future)
        else:
            self._pipeline.submit_barrier(barrier, future)

    # --- what goes on beside the verbs -----------------------------------------------------------

    def _read_clock(self) -> None:
        """Once per turn, not per append."""
        self._now_ms = self._wall_clock.now_ms()

    def _queue_has_room(self) -> bool:
        return self._pipeline.queued_bytes < self._queued_bytes_max

    def _note_log_full(self) -> None:
        self._log_full = True

    def _after_completion(self) -> None:
        self.refresh_throttle()
        if self._checkpoints.is_due():
            self.checkpoint().add_done_callback(reported_elsewhere)

    def refresh_throttle(self) -> None:
        """Look at the gauges and the clock again; lets waiting requests through if the gauges fell."""
        self._read_clock()
        self._log_full = self._log.statistics().full
        self._throttle = self._throttler.throttle()
        self._line.wake()

    @property
    def throttle(self) -> Throttle:
        return self._throttle

    @property
    def log_full(self) -> bool:
        return self._log_full

    @property
    def failure(self) -> Exception | None:
        return self._pipeline.failure

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work the waiting line off; raises what ended the processor."""
        async with asyncio.TaskGroup() as tasks:
            line = tasks.create_task(self._line.run())
            await self._pipeline.failed.wait()
            line.cancel()
        assert self._pipeline.failure is not None, "woken without a failure"
        raise self._pipeline.failure

    async def drain(self) -> None:
        """Wait until nothing is queued or in flight (or the processor failed)."""
        await self._pipeline.drain()

    def fail(self, cause: BaseException) -> None:
        """End for good: what was accepted and is not durable is rolled back, its outcome unknown to its caller."""
        self._pipeline.fail(cause)

    def _roll_back(self, stopped: list[Operation]) -> None:
        for operation in stopped:
            if isinstance(operation, SegmentOperation):
                operation.segment.reset_pending()
        self._line.fail_all(self._pipeline.stop_error())

    def _stopped(self, future: "Future[int]") -> None:
        _fail(future, self._pipeline.stop_error())

    def statistics(self) -> OperationProcessorStatistics:
        pipeline = self._pipeline
        return OperationProcessorStatistics(
            queued_operations=len(pipeline.queue),
            frames_in_flight=pipeline.frames_in_flight,
            outstanding_bytes=pipeline.outstanding_bytes,
            waiting_requests=len(self._line),
            appended_operations=self._appended_operations,
            appended_bytes=self._appended_bytes,
            frames=pipeline.frames,
            frame_bytes=pipeline.frame_bytes,
        )


def _fail(future: "Future[int]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _unpin(segment: SegmentMetadata) -> None:
    segment.pins -= 1


def _full() -> LogFullError:
    return LogFullError(
        "the disk of the log is full: appends are refused until space is freed; "
        "deletes and truncates work"
    )
