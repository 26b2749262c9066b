"""Takes operations in, numbers them, frames them, hands frames to Tier 1 and applies them in order.

    append() ... -> accepted against pending state -> queue -> pump: data frame builder -> durable data log
        -> completion, from the head only: memory state updater -> futures

Invariants:
- P1  sequence numbers strictly increase in the order of acceptance, which is the order of the log;
- P2  a future completes only when its operation is durable and applied; refusals that were judged against pending
      state complete only when that state has committed (H24);
- P3  frames are applied in order; when one fails, it and everything behind it is rolled back (H51);
- P4  any failure of the log or of a commit ends the processor for good; whoever owns the container next recovers.

Submitting never waits and never starts a task; one callback on the loop frames whatever came together.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from containers.attributes.judgement import UnknownAttributesError
from containers.log.admission_line import AdmissionLine, WaitingRequest
from containers.log.checkpoint_policy import CheckpointPolicy
from containers.log.data_frame_builder import DataFrameBuilder, FrameInFlight
from containers.log.memory_state_updater import MemoryStateUpdater, complete_barriers
from containers.log.operation_metadata_updater import OperationMetadataUpdater
from containers.log.throttler import NO_THROTTLE, Throttle, Throttler
from containers.log.truncation_markers import TruncationMarkers
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    AttributeChanges,
    Barrier,
    MetadataCheckpointOperation,
    Operation,
)
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    CacheFullError,
    ContainerStoppedError,
    LogFullError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView, LogAddress
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.runtime.clock import WallClock


@dataclass(frozen=True, slots=True)
class OperationProcessorSettings:
    """Bounds of the pipeline between acceptance and Tier 1."""

    append_bytes_max: int = 8 * 1024 * 1024
    frame_operations_max: int = 2048
    frames_in_flight_max: int = 16
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Bytes of requests that wait to be accepted; beyond them appends fail as unavailable."""
    slice_seconds: float = 0.001
    """The loop is given back after about this long (H23)."""


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
        self._memory_state = memory_state
        self._builder = builder
        self._markers = markers
        self._checkpoints = checkpoints
        self._throttler = throttler
        self._wall_clock = wall_clock
        self._settings = settings
        self._line = AdmissionLine(
            throttle=lambda: self._throttle,
            fetch_attributes=fetch_attributes,
            make_room=make_room,
            bytes_max=settings.waiting_bytes_max,
        )
        self._queue: deque[Operation] = deque()
        self._in_flight: deque[tuple[FrameInFlight, Future[LogAddress]]] = deque()
        self._outstanding_bytes = 0
        self._pump_scheduled = False
        self._completion_scheduled = False
        self._throttle: Throttle = NO_THROTTLE
        self._log_full = False
        self._now_ms = wall_clock.now_ms()
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._appended_operations = 0
        self._appended_bytes = 0
        self._frames = 0
        self._frame_bytes = 0

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
        if segment.line or self._throttle.is_active:
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
        if self._failure is not None:
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
        self._queue.append(operation)
        if not self._pump_scheduled:
            self._schedule_pump()

    def _wait_in_line(
        self,
        segment: SegmentMetadata,
        data: bytes,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        seal: bool,
        future: "Future[int]",
    ) -> None:
        if self._failure is not None:
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
        """The target's new length."""
        return self._process(
            target, lambda: self._updater.accept_merge(target, source, now_ms=self._now_ms)
        )

    def delete(self, segment: SegmentMetadata) -> "Future[int]":
        """Never waits in line: it frees space, and what waits will be refused."""
        return self._process(segment, lambda: self._updater.accept_delete(segment), overtakes=True)

    def update_attributes(
        self, segment: SegmentMetadata, updates: Sequence[AttributeUpdate]
    ) -> "Future[int]":
        return self._process(segment, lambda: self._updater.accept_attributes(segment, updates))

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
        if self._failure is not None:
            self._stopped(future)
            return future
        operation = self._updater.accept_checkpoint()
        self._checkpoints.checkpoint_taken(sum(len(part) for part in operation.payload))
        operation.result = operation.sequence_number
        self._submit(operation, future)
        return future

    def storage_checkpoint(self) -> "Future[int]":
        """Write the storage lengths (H31)."""
        future: Future[int] = self._loop.create_future()
        if self._failure is not None:
            self._stopped(future)
            return future
        self._submit(self._updater.accept_storage_checkpoint(), future)
        return future

    def _process(
        self,
        segment: SegmentMetadata,
        accept: Callable[[], Operation | None],
        *,
        overtakes: bool = False,
    ) -> "Future[int]":
        future: Future[int] = self._loop.create_future()

        def attempt() -> None:
            if self._failure is not None:
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
                self._submit(operation, future)

        if segment.line and not overtakes:
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

    # --- queue -> frames -> Tier 1 ---------------------------------------------------------------

    def _refuse(
        self, segment: SegmentMetadata, refusal: SegmentStoreError, future: "Future[int]"
    ) -> None:
        self._submit_barrier(Barrier(segment, refusal), future)

    def _submit_barrier(self, barrier: Barrier, future: "Future[int]") -> None:
        if self._failure is not None:
            self._stopped(future)
            return
        barrier.future = future
        if self._queue or self._in_flight or self._builder.has_rest:
            self._submit(barrier, future)
        else:
            complete_barriers([barrier])

    def _submit(self, operation: Operation, future: "Future[int]") -> None:
        operation.future = future
        self._queue.append(operation)
        if not self._pump_scheduled:
            self._schedule_pump()

    def _schedule_pump(self) -> None:
        self._pump_scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Frame what is queued, as long as Tier 1 takes more and the slice lasts."""
        self._pump_scheduled = False
        if self._failure is not None:
            return
        self._now_ms = self._wall_clock.now_ms()
        settings = self._settings
        outstanding_max = self._log.write_settings.outstanding_bytes_max
        end = self._loop.time() + settings.slice_seconds
        while self._queue or self._builder.has_rest:
            if (
                len(self._in_flight) >= settings.frames_in_flight_max
                or self._outstanding_bytes >= outstanding_max
            ):
                return  # a completion pumps again
            frame = self._builder.build(self._queue)
            if frame is None:
                self._release_barriers()
                continue
            self._send(frame)
            if self._failure is not None:
                return
            if self._loop.time() >= end:
                self._schedule_pump()
                return

    def _send(self, frame: FrameInFlight) -> None:
        self._outstanding_bytes += frame.length
        self._frames += 1
        self._frame_bytes += frame.length
        try:
            future = self._log.append(frame.buffers, internal=frame.internal)
        except SegmentStoreError as error:
            self.fail(error)
            return
        self._in_flight.append((frame, future))
        future.add_done_callback(self._frame_done)

    def _release_barriers(self) -> None:
        """Barriers with nothing to be logged before them wait for the newest frame in flight."""
        barriers: list[Operation] = []
        while self._queue and self._queue[0].__class__ is Barrier:
            barriers.append(self._queue.popleft())
        if self._in_flight:
            self._in_flight[-1][0].completed.extend(barriers)
        else:
            complete_barriers(barriers)

    # --- Tier 1 -> memory state -> futures -------------------------------------------------------

    def _frame_done(self, _future: "Future[LogAddress]") -> None:
        if not self._completion_scheduled:
            self._complete_frames()

    def _complete_frames(self) -> None:
        """Apply durable frames from the head, as long as the slice lasts."""
        self._completion_scheduled = False
        end = self._loop.time() + self._settings.slice_seconds
        while self._in_flight and self._in_flight[0][1].done():
            if self._failure is not None:
                return
            frame, future = self._in_flight[0]
            if future.cancelled():
                self.fail(ContainerStoppedError("the log cancelled a frame"))
                return
            error = future.exception()
            if error is not None:
                self.fail(error)
                return
            self._in_flight.popleft()
            self._outstanding_bytes -= frame.length
            try:
                self._apply(frame, future.result())
            except Exception as bug:  # noqa: BLE001  # a commit must not fail: halt (H22)
                self.fail(bug)
                return
            if self._loop.time() >= end and self._in_flight:
                self._completion_scheduled = True
                self._loop.call_soon(self._complete_frames)
                break
        self._after_completion()

    def _apply(self, frame: FrameInFlight, address: LogAddress) -> None:
        frame.address = address
        self._markers.add_frame(frame.last_started, address)
        self._memory_state.commit(frame.completed)
        self._checkpoints.committed(length=frame.length, operations=len(frame.completed))
        if frame.internal:
            for operation in frame.completed:
                if isinstance(operation, MetadataCheckpointOperation):
                    self._markers.add_truncation_point(operation.sequence_number)
        else:
            for operation in frame.completed:
                if operation.__class__ is MetadataCheckpointOperation:
                    self._markers.add_truncation_point(operation.sequence_number)

    def _after_completion(self) -> None:
        self.refresh_throttle()
        if self._checkpoints.is_due() and self._failure is None:
            self._checkpoint_because_due()
        if self._queue or self._builder.has_rest:
            if not self._pump_scheduled:
                self._schedule_pump()
        elif not self._in_flight:
            self._idle.set()

    def _checkpoint_because_due(self) -> None:
        operation = self._updater.accept_checkpoint()
        self._checkpoints.checkpoint_taken(sum(len(part) for part in operation.payload))
        self._queue.append(operation)
        if not self._pump_scheduled:
            self._schedule_pump()

    def refresh_throttle(self) -> None:
        """Look at the gauges again; lets waiting requests through if they fell."""
        self._log_full = self._log.statistics().full
        self._throttle = self._throttler.throttle()
        self._line.wake()

    # --- life ------------------------------------------------------------------------------------

    @property
    def throttle(self) -> Throttle:
        return self._throttle

    @property
    def log_full(self) -> bool:
        return self._log_full

    @property
    def failure(self) -> Exception | None:
        return self._failure

    async def run(self) -> None:
        """Work the waiting line off; raises what ended the processor."""
        async with asyncio.TaskGroup() as tasks:
            line = tasks.create_task(self._line.run())
            await self._failed.wait()
            line.cancel()
        assert self._failure is not None, "woken without a failure"
        raise self._failure

    async def drain(self) -> None:
        """Wait until nothing is queued or in flight (or the processor failed)."""
        await self._idle.wait()

    def fail(self, cause: BaseException) -> None:
        """End for good: everything accepted and not durable is rolled back, its outcome unknown to its caller."""
        if self._failure is not None:
            return
        self._failure = (
            cause if isinstance(cause, Exception) else ContainerStoppedError(repr(cause))
        )
        stopped: list[Operation] = []
        for frame, future in self._in_flight:
            future.remove_done_callback(self._frame_done)
            future.add_done_callback(_retrieve)
            stopped.extend(frame.completed)
        stopped.extend(self._queue)
        self._in_flight.clear()
        self._queue.clear()
        for operation in stopped:
            if operation.future is not None:
                self._stopped(operation.future)
        self._line.fail_all(self._stop_error())
        self._failed.set()
        self._idle.set()

    def _stop_error(self) -> ContainerStoppedError:
        error = ContainerStoppedError(
            f"the container stopped; the outcome is unknown cause={self._failure}"
        )
        error.__cause__ = self._failure
        return error

    def _stopped(self, future: "Future[int]") -> None:
        _fail(future, self._stop_error())

    def statistics(self) -> OperationProcessorStatistics:
        return OperationProcessorStatistics(
            queued_operations=len(self._queue),
            frames_in_flight=len(self._in_flight),
            outstanding_bytes=self._outstanding_bytes,
            waiting_requests=len(self._line),
            appended_operations=self._appended_operations,
            appended_bytes=self._appended_bytes,
            frames=self._frames,
            frame_bytes=self._frame_bytes,
        )


def _fail(future: "Future[int]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _retrieve(future: "Future[LogAddress]") -> None:
    """The failure was dealt with; the loop need not report it again."""
    if not future.cancelled():
        future.exception()


def _full() -> LogFullError:
    return LogFullError(
        "the disk of the log is full: appends are refused until space is freed; "
        "deletes and truncates work"
    )
