"""The operation processor: accepts operations in the call that submits them, and hands them to the frame pipeline.

An operation is judged against pending state, numbered and queued at once; appends, the hot path of the container, have
their bytes copied in that call, too. What an operation cannot get at once (throttle, cache room, room in the queue, an
attribute that is not in memory), it waits for in the admission queue. Submitting never waits and never starts a task.

Invariants:
- P1  sequence numbers strictly increase in the order of acceptance, which is the order of the log;
- P2  a future completes only when its operation is durable and applied; refusals that were judged against pending
  state complete only when that state has committed, and the container is known to be the owner behind that (where its
  log has to be asked, what was submitted later may be told of earlier);
- P3  what cannot be accepted yet waits in the admission queue, in call order per segment; delay comes before
  acceptance;
- P4  any failure of the pipeline ends the processor for good, and what comes then is refused; the container's next
  owner recovers;
- P5  a processor that is stopped in order refuses what comes, and what waits to be accepted, as not done; what it has
  accepted it finishes.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from containers.attributes.attribute_updates import (
    AttributeUpdatesOrFunction,
    UnknownAttributesError,
)
from containers.container_settings import OperationProcessorSettings
from containers.log.admission_queue import AdmissionQueue, WaitingRequest
from containers.log.checkpoints import CheckpointPolicy, CheckpointPreparation
from containers.log.data_frame import OPERATION_BYTES, DataFrameBuilder
from containers.log.frame_pipeline import FramePipeline
from containers.log.log_truncation import TruncationMarkers
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.log.operation_metadata_updater import OperationMetadataUpdater
from containers.log.throttler import NO_THROTTLE, Throttle, Throttler
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    AttributeChanges,
    Barrier,
    MergeOperation,
    Operation,
    SegmentOperation,
)
from containers.ownership import Ownership
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    CacheFullError,
    ContainerNotFoundError,
    LogFullError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.runtime.cancellation import fail_unless_done, retrieve_exception
from segmentstore.runtime.clock import WallClock

_GAUGES_FRESH_SECONDS = 0.005


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
        ownership: Ownership,
        fetch_attributes: Callable[[SegmentMetadata, list[AttributeKey]], Awaitable[None]],
        request_flush: Callable[[], None],
        wall_clock: WallClock,
        settings: OperationProcessorSettings,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._updater = metadata_updater
        self._checkpoints = checkpoints
        self._throttler = throttler
        self._ownership = ownership
        self._wall_clock = wall_clock
        self._settings = settings
        self._admission_queue = AdmissionQueue(
            throttle=lambda: self._throttle,
            fetch_attributes=fetch_attributes,
            request_flush=request_flush,
            queue_has_room=self._queue_has_room,
            settings=settings,
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
            metadata=metadata_updater.metadata,
            done=self._take_due_checkpoint,
            fail=self._pipeline.fail,
        )
        self._queued_bytes_max = settings.pipeline.queued_bytes_max
        self._throttle: Throttle = NO_THROTTLE
        self._log_full = False
        self._is_stopping = False
        self._gauges_due = 0.0
        self._now_ms = wall_clock.now_ms()
        self._appended_operations = 0
        self._appended_bytes = 0

    # --- appends ---------------------------------------------------------------------------------

    def append(
        self,
        segment: SegmentMetadata,
        data: BufferView,
        *,
        offset: int | None = None,
        attribute_updates: AttributeUpdatesOrFunction = (),
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
                too_large = AppendTooLargeError(length=len(data), length_max=length_max)
                fail_unless_done(future, too_large)
                return future
        if (
            segment.waiting_requests
            or self._throttle.is_active
            or self._admission_queue.needs_cache_room
            or not self._queue_has_room()
        ):
            self._enqueue_append(segment, data, offset, attribute_updates, seal, events, future)
            return future
        try:
            self._try_append(segment, data, offset, attribute_updates, seal, events, future)
        except (CacheFullError, UnknownAttributesError):
            self._enqueue_append(segment, data, offset, attribute_updates, seal, events, future)
        return future

    def _try_append(
        self,
        segment: SegmentMetadata,
        data: bytes,
        offset: int | None,
        updates: AttributeUpdatesOrFunction,
        seal: bool,  # positional on the hot path
        events: int | None,
        future: "Future[int]",
    ) -> None:
        if self._is_stopping or self._pipeline.failure is not None:
            self._stopped(future)
            return
        if self._log_full:
            fail_unless_done(future, log_full_error())
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

    def _enqueue_append(
        self,
        segment: SegmentMetadata,
        data: bytes,
        offset: int | None,
        updates: AttributeUpdatesOrFunction,
        seal: bool,
        events: int | None,
        future: "Future[int]",
    ) -> None:
        if self._is_stopping or self._pipeline.failure is not None:
            self._stopped(future)
            return
        if self._log_full:
            fail_unless_done(future, log_full_error())
            return
        if not self._admission_queue.has_room:
            error = SegmentStoreError(
                "too many appends wait to be accepted "
                f"reason={self._throttle.reason or 'cache_full'}"
            )
            fail_unless_done(future, error)
            return
        self._enqueue(
            segment,
            lambda: self._try_append(segment, data, offset, updates, seal, events, future),
            future,
            length=len(data),
        )

    # --- verbs besides append --------------------------------------------------------------------

    def seal(self, segment: SegmentMetadata) -> "Future[int]":
        """Final length. Queues behind waiting appends of the segment."""
        return self._process(
            segment, lambda: self._updater.accept_seal(segment, now_ms=self._now_ms)
        )

    def truncate(self, segment: SegmentMetadata, offset: int) -> "Future[int]":
        """Never waits in the admission queue: it frees space."""
        return self._process(
            segment, lambda: self._updater.accept_truncate(segment, offset), overtakes=True
        )

    def merge(
        self,
        target: SegmentMetadata,
        source: SegmentMetadata,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> "Future[int]":
        """The target's new length. The source stays active while the merge is queued."""
        future = self._process(
            target,
            lambda: self._updater.accept_merge(
                target,
                source,
                updates=attribute_updates,
                seal_source=seal_source,
                now_ms=self._now_ms,
            ),
        )
        _pin_until(future, [source])
        return future

    def merge_first(
        self,
        target: SegmentMetadata,
        sources: Sequence[SegmentMetadata],
        merged: list[MergeOperation],
        *,
        seal_sources: bool = False,
    ) -> "Future[int]":
        """Merge sources behind one another, up to one that is refused; refused as a whole if that is the first one.

        `merged` has the operations of those that were taken in, once the future is done: the target's new length.
        """
        future = self._process(
            target,
            lambda: self._accept_merges(target, sources, merged, seal_sources=seal_sources),
        )
        _pin_until(future, sources)
        return future

    def _accept_merges(
        self,
        target: SegmentMetadata,
        sources: Sequence[SegmentMetadata],
        merged: list[MergeOperation],
        *,
        seal_sources: bool,
    ) -> MergeOperation:
        for source in sources:
            try:
                operation = self._updater.accept_merge(
                    target, source, updates=(), seal_source=seal_sources, now_ms=self._now_ms
                )
            except SegmentStoreError:
                if not merged:
                    raise
                break
            merged.append(operation)
        # These need no future: the log keeps the order, so they are durable when the last one is.
        self._pipeline.queue.extend(merged[:-1])
        return merged[-1]

    def delete(self, segment: SegmentMetadata) -> "Future[int]":
        """Never waits in the admission queue: it frees space, and what waits will be refused."""
        return self._process(segment, lambda: self._updater.accept_delete(segment), overtakes=True)

    def update_attributes(
        self, segment: SegmentMetadata, updates: Sequence[AttributeUpdate]
    ) -> "Future[int]":
        """Throttled like an append: it costs memory until it is in Tier 2."""
        if self._log_full:
            future: Future[int] = self._loop.create_future()
            fail_unless_done(future, log_full_error())
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
        """Done when everything submitted before it (of the segment: also what is in the admission queue) is done."""
        future: Future[int] = self._loop.create_future()
        if segment is not None and segment.waiting_requests:
            self._enqueue(segment, lambda: self._submit_barrier(Barrier(segment), future), future)
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

    async def first_checkpoint(self) -> None:
        """Write the checkpoint behind a recovery; other containers serve while it is prepared."""
        await self._preparation.encode_all()
        await self.checkpoint()

    def storage_checkpoint(self) -> "Future[int]":
        """Write the storage lengths."""
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
            if self._is_stopping or self._pipeline.failure is not None:
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

        has_to_wait = waits or (segment.waiting_requests and not overtakes)
        if has_to_wait and not self._is_stopping and self._pipeline.failure is None:
            self._enqueue(segment, attempt, future)
            return future
        try:
            attempt()
        except UnknownAttributesError:
            self._enqueue(segment, attempt, future)
        return future

    def _enqueue(
        self,
        segment: SegmentMetadata,
        attempt: Callable[[], None],
        future: "Future[int]",
        *,
        length: int = 0,
    ) -> None:
        """It waits in call order; `length` are the bytes that an append brings."""
        self._admission_queue.add(
            WaitingRequest(
                segment,
                length=length,
                attempt=attempt,
                fail=lambda error: fail_unless_done(future, error),
            )
        )

    def require_accepting(self) -> None:
        """Raises what every operation is refused with from now on, if it has failed or is to stop."""
        if self._is_stopping or self._pipeline.failure is not None:
            raise self._stop_error()

    def _refuse(
        self, segment: SegmentMetadata, refusal: SegmentStoreError, future: "Future[int]"
    ) -> None:
        self._submit_barrier(Barrier(segment, refusal), future)

    def _submit_barrier(self, barrier: Barrier, future: "Future[int]") -> None:
        if self._is_stopping or self._pipeline.failure is not None:
            self._stopped(future)
        else:
            self._pipeline.submit_barrier(barrier, future)

    def _stopped(self, future: "Future[int]") -> None:
        fail_unless_done(future, self._stop_error())

    def _stop_error(self) -> SegmentStoreError:
        return self._not_accepted() if self._is_stopping else self._pipeline.stop_error()

    def _not_accepted(self) -> ContainerNotFoundError:
        return ContainerNotFoundError(self._updater.metadata.container_id, "it is stopping")

    # --- throttling, completions, checkpoints ----------------------------------------------------

    def _read_clock(self) -> None:
        """Once per turn, not per append."""
        self._now_ms = self._wall_clock.now_ms()

    def _queue_has_room(self) -> bool:
        return self._pipeline.queued_bytes < self._queued_bytes_max

    def _note_log_full(self) -> None:
        self._log_full = True

    def _after_completion(self) -> None:
        """A frame is durable and applied, or nothing was left to be written."""
        # Gauges cost a lone append a tenth of its time. While they hold up no request, they may be a moment old.
        if (
            self._throttle is not NO_THROTTLE
            or self._log_full
            or len(self._admission_queue)
            or self._loop.time() >= self._gauges_due
        ):
            self.refresh_throttle()
        if self._checkpoints.is_due():
            self._preparation.start()

    def refresh_throttle(self) -> None:
        """Look at the gauges and the clock again; lets waiting requests through if the gauges fell."""
        self._read_clock()
        self._gauges_due = self._loop.time() + _GAUGES_FRESH_SECONDS
        self._log_full = self._log.statistics().full
        self._throttle = self._throttler.throttle()
        self._admission_queue.wake()

    @property
    def throttle(self) -> Throttle:
        return self._throttle

    @property
    def log_full(self) -> bool:
        return self._log_full

    @property
    def failure(self) -> Exception | None:
        return self._pipeline.failure

    def _take_due_checkpoint(self) -> None:
        if self._checkpoints.is_due():
            self.checkpoint().add_done_callback(retrieve_exception)

    def _roll_back(self, stopped: list[Operation]) -> None:
        self._preparation.stop()
        for operation in stopped:
            if isinstance(operation, SegmentOperation):
                operation.segment.reset_pending()
        self._admission_queue.fail_all(self._pipeline.stop_error())
        self._ownership.end(f"it has stopped: {self._pipeline.failure}")

    # --- start and end ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Work the admission queue off; raises what ended the processor."""
        async with asyncio.TaskGroup() as tasks:
            admission = tasks.create_task(self._admission_queue.run())
            await self._pipeline.failed.wait()
            admission.cancel()
        assert self._pipeline.failure is not None, "woken without a failure"
        raise self._pipeline.failure

    def stop(self) -> None:
        """Refuse from now on what is asked for, and what waits; nothing of it was done. Then drain()."""
        self._is_stopping = True
        self._admission_queue.fail_all(self._not_accepted())

    async def drain(self) -> None:
        """Wait until nothing is queued or in flight (or the processor failed)."""
        await self._pipeline.drain()

    def fail(self, cause: BaseException) -> None:
        """End for good: what was accepted and is not durable is rolled back, its outcome unknown to its caller."""
        self._pipeline.fail(cause)

    def statistics(self) -> OperationProcessorStatistics:
        pipeline = self._pipeline
        return OperationProcessorStatistics(
            queued_operations=len(pipeline.queue),
            frames_in_flight=pipeline.frames_in_flight,
            outstanding_bytes=pipeline.outstanding_bytes,
            waiting_requests=len(self._admission_queue),
            appended_operations=self._appended_operations,
            appended_bytes=self._appended_bytes,
            frames=pipeline.frames,
            frame_bytes=pipeline.frame_bytes,
        )


def _pin_until(done: "Future[int]", segments: Sequence[SegmentMetadata]) -> None:
    """Segments stay active while an operation on them is queued."""
    if done.done():
        return
    for segment in segments:
        segment.pins += 1

    def unpin(_: "Future[int]") -> None:
        for segment in segments:
            segment.pins -= 1

    done.add_done_callback(unpin)


def log_full_error() -> LogFullError:
    """Why nothing is taken in that would need more of the log's disk."""
    return LogFullError(
        "the disk of the log is full: appends are refused until space is freed; "
        "deletes and truncates work"
    )
