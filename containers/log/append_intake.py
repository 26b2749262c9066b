"""Takes appends in: accepts them at once where that is possible, puts them in line where it is not.

The hot path of the container: an append that can be accepted is judged, copied, numbered and queued in the call that
submits it. What it cannot get at once (throttle, cache room, room in the queue, an attribute that is not in memory), it
waits for in line, in call order per segment (H35).
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable

from containers.attributes.judgement import AttributeDecision, UnknownAttributesError
from containers.log.admission_line import AdmissionLine, WaitingRequest
from containers.log.checkpoint_policy import CheckpointPolicy
from containers.log.checkpoint_preparation import CheckpointPreparation
from containers.log.data_frame_builder import OPERATION_BYTES, DataFrameBuilder
from containers.log.frame_pipeline import FramePipeline
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.log.operation_metadata_updater import OperationMetadataUpdater
from containers.log.processor_settings import OperationProcessorSettings
from containers.log.throttler import NO_THROTTLE, Throttle, Throttler
from containers.log.truncation_markers import TruncationMarkers
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import Barrier, Operation, SegmentOperation
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    CacheFullError,
    ContainerStoppedError,
    LogFullError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.reported_elsewhere import reported_elsewhere

_GAUGES_FRESH_SECONDS = 0.005


class AppendIntake:
    """The incoming end of an operation processor."""

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
        self._preparation = CheckpointPreparation(
            metadata=metadata_updater.metadata, done=self._take_due_checkpoint
        )
        self._queued_bytes_max = settings.pipeline.queued_bytes_max
        self._throttle: Throttle = NO_THROTTLE
        self._log_full = False
        self._gauges_due = 0.0
        self._now_ms = wall_clock.now_ms()
        self._appended_operations = 0
        self._appended_bytes = 0

    def append(
        self,
        segment: SegmentMetadata,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: AttributeDecision = (),
        seal: bool = False,
        events: int | None = None,
    ) -> "Future[int]":
        """See contracts.segments.Segment.append; what judges by itself is a batch of a table."""
        future: Future[int] = self._loop.create_future()
        if data.__class__ is not bytes:
            data = bytes(data)
        assert isinstance(data, bytes)
        if len(data) > self._settings.append_bytes_max:
            length_max = self._settings.append_bytes_max
            if callable(attribute_updates):
                length_max = max(length_max, self._settings.table_batch_bytes_max)
            if len(data) > length_max:
                future.set_exception(AppendTooLargeError(length=len(data), length_max=length_max))
                return future
        if (
            segment.line
            or self._throttle.is_active
            or self._line.is_blocked
            or not self._queue_has_room()
        ):
            self._wait_in_line(segment, data, offset, attribute_updates, seal, events, future)
            return future
        try:
            self._try_append(segment, data, offset, attribute_updates, seal, events, future)
        except (CacheFullError, UnknownAttributesError):
            self._wait_in_line(segment, data, offset, attribute_updates, seal, events, future)
        return future

    def _try_append(
        self,
        segment: SegmentMetadata,
        data: bytes,
        offset: int | None,
        updates: AttributeDecision,
        seal: bool,  # positional on the hot path
        events: int | None,
        future: "Future[int]",
    ) -> None:
        if self._pipeline.failure is not None:
            self._stopped(future)
            return
        if self._log_full:
            future.set_exception(log_full_error())
            return
        try:
            operation = self._updater.accept_append(
                segment,
                data,
                expected_offset=offset,
                updates=updates,
                seal=seal,
                events=events,
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
        updates: AttributeDecision,
        seal: bool,
        events: int | None,
        future: "Future[int]",
    ) -> None:
        if self._pipeline.failure is not None:
            self._stopped(future)
            return
        if self._log_full:
            future.set_exception(log_full_error())
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
                attempt=lambda: self._try_append(
                    segment, data, offset, updates, seal, events, future
                ),
                fail=lambda error: fail_unless_done(future, error),
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

    def _read_clock(self) -> None:
        """Once per turn, not per append."""
        self._now_ms = self._wall_clock.now_ms()

    def _queue_has_room(self) -> bool:
        return self._pipeline.queued_bytes < self._queued_bytes_max

    def _note_log_full(self) -> None:
        self._log_full = True

    def _take_due_checkpoint(self) -> None:
        raise NotImplementedError

    def _after_completion(self) -> None:
        """A frame is durable and applied, or nothing was left to be written."""
        # Gauges cost a lone append a tenth of its time. While nobody is held up by them, they may be a moment old.
        if (
            self._throttle is not NO_THROTTLE
            or self._log_full
            or len(self._line)
            or self._loop.time() >= self._gauges_due
        ):
            self.refresh_throttle()

    def refresh_throttle(self) -> None:
        """Look at the gauges and the clock again; lets waiting requests through if the gauges fell."""
        self._read_clock()
        self._gauges_due = self._loop.time() + _GAUGES_FRESH_SECONDS
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

    def _roll_back(self, stopped: list[Operation]) -> None:
        for operation in stopped:
            if isinstance(operation, SegmentOperation):
                operation.segment.reset_pending()
        self._line.fail_all(self._pipeline.stop_error())

    def _stopped(self, future: "Future[int]") -> None:
        fail_unless_done(future, self._pipeline.stop_error())


def fail_unless_done(future: "Future[int]", error: Exception) -> None:
    """End a submission that may have been cancelled."""
    if not future.done():
        future.set_exception(error)
        if isinstance(error, ContainerStoppedError):
            # Whoever waited for it may have left.
            reported_elsewhere(future)


def log_full_error() -> LogFullError:
    """Why nothing is taken in that would need more of the log's disk."""
    return LogFullError(
        "the disk of the log is full: appends are refused until space is freed; "
        "deletes and truncates work"
    )
