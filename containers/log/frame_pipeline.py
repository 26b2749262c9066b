"""From the operation queue to Tier 1 and back: frames what came together, applies what is durable.

    submit() -> queue -> pump: data frame builder -> durable data log
        -> completion, from the head only: memory state updater -> futures

Invariants:
- frames are handed to the log, and applied, in the order in which they were built; when one fails, it and everything
  behind it is rolled back, and nothing is handed to the log behind one that it has refused: a log that is full for one
  entry may take a smaller one, and would have a gap for ever;
- a barrier completes when everything submitted before it is applied;
- any failure of the log or of a commit, and any exception in a turn of the loop, ends the pipeline for good, and with
  it every operation that it has: each accepted operation is in the queue, with the builder or in flight at any moment,
  so that fail() finds it;
- what was accepted is written: if the log has become full meanwhile, into its reserve. `queued_bytes_max` and the
  largest append bound how much that can be;
- the loop is given back after about `slice_seconds`.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from containers.container_settings import FramePipelineSettings
from containers.log.checkpoints import CheckpointPolicy
from containers.log.data_frame import DataFrameBuilder, FrameInFlight
from containers.log.log_truncation import TruncationMarkers
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.operations.operation import Barrier, MetadataCheckpointOperation, Operation
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import ContainerStoppedError, LogFullError
from segmentstore.contracts.identifiers import LogAddress
from segmentstore.runtime.cancellation import fail_unless_done, retrieve_exception
from segmentstore.runtime.guarded_callback import guarded


class FramePipeline:
    """The part of the write path that is the same for every operation."""

    def __init__(
        self,
        *,
        log: DurableDataLog,
        memory_state: MemoryStateUpdater,
        builder: DataFrameBuilder,
        markers: TruncationMarkers,
        checkpoints: CheckpointPolicy,
        settings: FramePipelineSettings,
        before_pump: Callable[[], None],
        after_completion: Callable[[], None],
        on_failure: Callable[[list[Operation]], None],
        on_log_full: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._memory_state = memory_state
        self._builder = builder
        self._markers = markers
        self._checkpoints = checkpoints
        self._settings = settings
        self._before_pump = before_pump
        self._after_completion = after_completion
        self._on_failure = on_failure
        self._on_log_full = on_log_full
        self._run_pump = guarded(self._pump, self.fail)
        self._run_completion = guarded(self._complete_frames, self.fail)
        self._on_frame_done = guarded(self._frame_done, self.fail)
        self.queue: deque[Operation] = deque()
        """Accepted operations; append through submit(), or here and then schedule()."""
        self.queued_bytes = 0
        """Appends in the queue: their data, and OPERATION_BYTES each."""
        self.scheduled = False
        """The pump will run in this turn of the loop."""
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        self._in_flight: deque[tuple[FrameInFlight, Future[LogAddress]]] = deque()
        self._completion_scheduled = False
        self._refused = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.outstanding_bytes = 0
        self.frames = 0
        self.frame_bytes = 0

    @property
    def frames_in_flight(self) -> int:
        return len(self._in_flight)

    # --- queue -> frames -> Tier 1 ---------------------------------------------------------------

    def submit(self, operation: Operation, future: "Future[int]") -> None:
        """Queue an accepted operation."""
        operation.future = future
        self.queue.append(operation)
        if not self.scheduled:
            self.schedule()

    def submit_barrier(self, barrier: Barrier, future: "Future[int]") -> None:
        """Queue a barrier; complete it at once if there is nothing to wait for."""
        if self.queue or self._in_flight or self._builder.has_rest:
            self.submit(barrier, future)
        else:
            barrier.future = future
            self._memory_state.complete_barriers([barrier])

    def schedule(self) -> None:
        """Run the pump in the next turn of the loop: everything that comes until then shares a frame."""
        self.scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._run_pump)

    def _pump(self) -> None:
        self.scheduled = False
        if self.failure is not None or self._refused:
            return  # after a refusal the end comes when those before it are acknowledged
        self._send_frames()
        # A log may have written the frame before it returned: it is then completed here, a turn of the loop earlier.
        if self._in_flight and self._in_flight[0][1].done() and not self._completion_scheduled:
            self._complete_frames()

    def _send_frames(self) -> None:
        self._before_pump()
        outstanding_max = self._log.write_settings.outstanding_bytes_max
        end = self._loop.time() + self._settings.slice_seconds
        while self.queue or self._builder.has_rest:
            if self._may_wait():
                return  # a completion pumps again
            if (
                len(self._in_flight) >= self._settings.frames_in_flight_max
                or self.outstanding_bytes >= outstanding_max
            ):
                return  # a completion pumps again
            frame = self._builder.build(self.queue)
            if frame is None:
                self._release_barriers()
                continue
            self.queued_bytes -= frame.queued_bytes
            if not self._send(frame) or self._refused:
                return
            if self._loop.time() >= end:
                self.schedule()
                return
        self._note_idle()

    def _may_wait(self) -> bool:
        settings = self._settings
        return (
            len(self._in_flight) >= self._log.write_settings.writes_at_once
            and len(self.queue) < settings.small_operations
            and self.queued_bytes < settings.small_bytes
            and not self._builder.has_rest
        )

    def _send(self, frame: FrameInFlight) -> bool:
        self.outstanding_bytes += frame.length
        self.frames += 1
        self.frame_bytes += frame.length
        try:
            future = self._log.append(frame.buffers, internal=frame.internal)
            refused = _is_refused(future)
            if refused and not frame.internal:
                self._on_log_full()
                future = self._log.append(frame.buffers, internal=True)
                refused = _is_refused(future)
            self._refused = refused
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing is handed to the log behind it
            self.fail(error)
            return False
        self._in_flight.append((frame, future))
        self._builder.frame_taken()
        if not future.done():
            future.add_done_callback(self._on_frame_done)
        return True

    def _release_barriers(self) -> None:
        """Barriers with nothing to be logged before them wait for the newest frame in flight."""
        barriers = list(takewhile(lambda operation: operation.__class__ is Barrier, self.queue))
        if self._in_flight:
            self._in_flight[-1][0].completed.extend(barriers)
        else:
            self._memory_state.complete_barriers(barriers)
        for _ in barriers:
            self.queue.popleft()

    # --- Tier 1 -> memory state -> futures -------------------------------------------------------

    def _frame_done(self, _future: "Future[LogAddress]") -> None:
        if not self._completion_scheduled:
            self._complete_frames()

    def _complete_frames(self) -> None:
        self._completion_scheduled = False
        if self.failure is not None:
            return
        end = self._loop.time() + self._settings.slice_seconds
        while self._in_flight and self._in_flight[0][1].done():
            frame, future = self._in_flight[0]
            error = (
                ContainerStoppedError("the log cancelled a frame")
                if future.cancelled()
                else future.exception()
            )
            if error is not None:
                self.fail(error)
                return
            try:
                self._apply(frame, future.result())
            except Exception as bug:  # noqa: BLE001  # a commit must not fail: halt
                self.fail(bug)
                return
            self._in_flight.popleft()
            self.outstanding_bytes -= frame.length
            if self._in_flight and self._loop.time() >= end:
                self._completion_scheduled = True
                self._loop.call_soon(self._run_completion)
                break
        self._after_completion()
        if (self.queue or self._builder.has_rest) and not self.scheduled:
            self.schedule()
        self._note_idle()

    def _apply(self, frame: FrameInFlight, address: LogAddress) -> None:
        self._markers.add_frame(frame.last_started, address)
        self._memory_state.commit(frame.completed)
        self._checkpoints.committed(length=frame.length, operations=len(frame.completed))
        for operation in frame.completed:
            if operation.__class__ is MetadataCheckpointOperation:
                self._markers.add_truncation_point(operation.sequence_number)

    def _note_idle(self) -> None:
        if not self.queue and not self._in_flight and not self._builder.has_rest:
            self._idle.set()

    # --- drain and failure -----------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until nothing is queued or in flight, or the pipeline failed."""
        await self._idle.wait()

    def fail(self, cause: BaseException) -> None:
        """End for good. Operations under way are rolled back; whether the log has them stays unknown here."""
        if self.failure is not None:
            return
        self.failure = cause if isinstance(cause, Exception) else ContainerStoppedError(repr(cause))
        try:
            self._roll_back()
        finally:
            # Whatever else goes wrong: the container ends by the one, and its close() goes on by the other.
            self.failed.set()
            self._idle.set()

    def _roll_back(self) -> None:
        stopped: list[Operation] = []
        for frame, future in self._in_flight:
            future.remove_done_callback(self._on_frame_done)
            future.add_done_callback(retrieve_exception)
            stopped.extend(frame.completed)
        stopped.extend(self._builder.taken())
        stopped.extend(self.queue)
        self._in_flight.clear()
        self.queue.clear()
        for operation in stopped:
            if operation.future is not None:
                fail_unless_done(operation.future, self.stop_error())
        self._on_failure(stopped)

    def stop_error(self) -> ContainerStoppedError:
        """What callers get whose operation was on its way."""
        error = ContainerStoppedError(
            f"the container stopped; the outcome is unknown cause={self.failure}"
        )
        error.__cause__ = self.failure
        return error


def _is_refused(future: "Future[LogAddress]") -> bool:
    """The log is full: it took nothing of the entry and stays open."""
    return future.done() and not future.cancelled() and isinstance(future.exception(), LogFullError)
