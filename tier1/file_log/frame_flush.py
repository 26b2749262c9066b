"""Writes and syncs frames: in an executor job that goes from one frame to the next without asking the loop.

A lone small frame may be written on the loop itself, when `InlineSyncPolicy` says that this is shorter.

A frame that was handed over while the job is busy is begun as soon as the one before it is synced: the disk does not
wait for the loop to wake, to complete futures and to plan. The loop learns of a frame while the next is being
written. The loop appends to the queue and the job takes from it; both are single operations of a deque. No frame is
forgotten when a job ends beside a hand-over, because the end of the job is noticed on the loop, which then looks
again.

Invariants:
- One job at a time. A frame is written only when the one before it is written, synced and passed the epoch check:
  what its header says of earlier frames is true by then.
- After a failure nothing more is written, also of what was handed over already.
- `on_written` and `on_failure` run on the loop, in the order of the frames.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Final

from segmentstore.contracts.errors import DurableDataLogError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.guarded_callback import guarded
from tier1.file_log.directory import LogDirectory
from tier1.file_log.frame_planner import PlannedFrame, SinglePageFrame
from tier1.file_log.frames import encode_frame

_INLINE_FRAME_BYTES_MAX: Final = 32 * 1024
_RECENT_WRITE_WEIGHT: Final = 1 / 16


class InlineSyncPolicy:
    """Whether a frame may be written and synced on the loop itself instead of in a thread.

    A lone small append pays for two switches between threads about as much as for its sync. On the loop it saves both,
    but everything else of the process waits meanwhile. So it is done only while syncs are short, and only for frames
    that come one at a time: what comes in crowds shares frames, and its threads overlap with the loop.

    Shared by the logs of one loop, because they would keep the same loop waiting. Called on the loop only.

    Invariants, over all logs that share one object:
    - a frame above `bytes_max` is never written on the loop;
    - it happens only while writes take `usual_seconds_max` on average, wherever they ran: a disk whose every write is
      slow is left to threads, one that is late now and then is not;
    - after a write that took longer than `seconds_max`, the next `fast_writes_min` go through a thread;
    - the loop is given to syncs at most half of the time: after one that took t seconds the next comes t seconds later.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        usual_seconds_max: float = 0.0003,
        seconds_max: float = 0.001,
        fast_writes_min: int = 16,
        bytes_max: int = _INLINE_FRAME_BYTES_MAX,
    ) -> None:
        """`now` is a clock in seconds that resolves microseconds; the loop's own may not."""
        self.now = now
        self._usual_seconds_max = usual_seconds_max
        self._seconds_max = seconds_max
        self._fast_writes_min = fast_writes_min
        self._bytes_max = bytes_max
        self._usual_seconds = usual_seconds_max
        self._fast_writes = 0
        self._free_again = 0.0

    def may_wait(self, length: int) -> bool:
        """Whether the loop may wait for a frame of so many bytes."""
        return (
            length <= self._bytes_max
            and self._fast_writes >= self._fast_writes_min
            and self._usual_seconds <= self._usual_seconds_max
            and self.now() >= self._free_again
        )

    def note(self, seconds: float, *, on_loop: bool) -> None:
        """A frame was written and synced in so many seconds."""
        if on_loop:
            self.note_since(self.now() - seconds)
        else:
            self._count(seconds)

    def note_since(self, began: float) -> float:
        """The loop has just written and synced a frame, begun at that time: how many seconds that took."""
        now = self.now()
        seconds = now - began
        self._free_again = now + seconds
        self._count(seconds)
        return seconds

    def _count(self, seconds: float) -> None:
        if seconds > self._seconds_max:
            self._fast_writes = 0
            # One write that stalled says how often the disk stalls, not how long it usually takes.
            seconds = self._seconds_max
        else:
            self._fast_writes += 1
        self._usual_seconds += (seconds - self._usual_seconds) * _RECENT_WRITE_WEIGHT


class FrameFlush:
    """The frames between planning and acknowledgement. Belongs to one loop."""

    def __init__(
        self,
        *,
        directory: LogDirectory,
        executor: Executor | None,
        pace: InlineSyncPolicy | None,
        on_written: Callable[[PlannedFrame], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._directory = directory
        self._executor = executor
        self._pace = pace
        self._on_written = on_written
        self._on_failure = on_failure
        self._on_thread_ended = guarded(self._thread_ended, self._fail)
        self._next: deque[PlannedFrame] = deque()
        self._job: asyncio.Future[PlannedFrame] | None = None
        self._stopped = False
        self.write_seconds = 0.0
        """What the last write and its sync took, if there is a pace."""

    @property
    def idle(self) -> bool:
        """Nothing is being written."""
        return self._job is None

    @property
    def has_next(self) -> bool:
        """A frame waits for the one that is being written."""
        return bool(self._next)

    def hand_over(self, planned: PlannedFrame) -> None:
        """Write this frame after those before it. Not after stop() or a failure.

        `on_written` or `on_failure` may come before this returns, and may hand over the next one.
        """
        assert not self._stopped, f"a frame after the end number={planned.header.number}"
        if self._job is not None:
            self._next.append(planned)
        elif (
            self._pace is not None
            and planned.leaves is None
            and self._pace.may_wait(planned.length)
        ):
            self._write_on_loop(planned, self._pace)
        else:
            self._start(planned)

    def may_write_on_loop(self, length: int) -> bool:
        """Whether a frame of so many bytes may be written here and now, by write_single_page()."""
        return self._job is None and self._pace is not None and self._pace.may_wait(length)

    def write_single_page(self, frame: SinglePageFrame) -> bool:
        """Write and sync it before this returns; False after a failure, of which `on_failure` has been told."""
        assert self._pace is not None, "asked without may_write_on_loop()"
        assert frame.journal.file is not None, f"not an own journal path={frame.journal.path!r}"
        began = self._pace.now()
        try:
            frame.journal.file.write_synced(frame.offset, (frame.content,))
            self._directory.check_epoch()
        except Exception as error:  # noqa: BLE001 - whatever it is, the log cannot go on
            self._fail(error)
            return False
        self.write_seconds = self._pace.note_since(began)
        return True

    def stop(self) -> None:
        """Begin no further frame; the one that is being written ends, and its end is not reported."""
        self._stopped = True
        self._next.clear()

    async def wait_until_idle(self) -> None:
        """Returns when no thread writes any more; also when cancelled, and raises CancelledError only then."""
        while self._job is not None:
            job = self._job
            if job.done():
                # The job has ended and its callback, which clears `_job`, waits for its turn of the loop: let it run.
                await asyncio.sleep(0)
                continue
            try:
                await finish_despite_cancellation(job)
            except Exception:  # noqa: BLE001 - on_failure has it
                return

    # --- on the loop -------------------------------------------------------------------------

    def _start(self, planned: PlannedFrame) -> None:
        loop = asyncio.get_running_loop()
        # What the job reports belongs to the process that started it: the simulation tells processes by their context.
        context = copy_context()
        try:
            job = loop.run_in_executor(self._executor, self._write_frames, planned, loop, context)
        except RuntimeError as error:
            failure = DurableDataLogError(f"the log has no thread to write with: {error}")
            failure.__cause__ = error
            self._fail(failure)
            return
        self._job = job
        job.add_done_callback(self._on_thread_ended)

    def _thread_ended(self, job: "asyncio.Future[PlannedFrame]") -> None:
        if self._pace is not None:
            self._pace.note(self.write_seconds, on_loop=False)
        self._ended(job)

    def _write_on_loop(self, planned: PlannedFrame, pace: InlineSyncPolicy) -> None:
        """The caller of hand_over() learns of the frame's end before that call returns: a loop turn is spared."""
        try:
            self._write(planned, encode_frame(planned.header, planned.pending))
        except Exception as error:  # noqa: BLE001 - whatever it is, the log cannot go on
            self._fail(error)
        else:
            pace.note(self.write_seconds, on_loop=True)
            self._report(planned)

    def _ended(self, job: "asyncio.Future[PlannedFrame]") -> None:
        self._job = None
        if job.cancelled():
            self._fail(
                DurableDataLogError("the log has no thread to write with: the job was cancelled")
            )
        elif (error := job.exception()) is not None:
            self._fail(error)
        else:
            written = job.result()
            if self._next:
                self._start(self._next.popleft())
            self._report(written)

    def _report(self, written: PlannedFrame) -> None:
        if self._stopped:
            return
        try:
            self._on_written(written)
        except Exception as error:  # noqa: BLE001 - a callback's top: whatever it is, nothing may be acknowledged any more
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._stopped:
            self.stop()
            self._on_failure(error)

    # --- in the executor, or on the loop in its place ------------------------------------------

    def _write_frames(
        self, planned: PlannedFrame, loop: asyncio.AbstractEventLoop, context: Context
    ) -> PlannedFrame:
        """The last frame that was written; those before it are reported while the next one is written."""
        buffers = encode_frame(planned.header, planned.pending)
        while True:
            self._write(planned, buffers)
            try:
                following = self._next.popleft()
            except IndexError:
                return planned
            buffers = encode_frame(following.header, following.pending)
            # Not earlier: the loop would take the interpreter while the disk has nothing to do.
            loop.call_soon_threadsafe(self._report, planned, context=context)
            planned = following

    def _write(self, planned: PlannedFrame, buffers: list[BufferView]) -> None:
        began = self._pace.now() if self._pace is not None else 0.0
        if planned.leaves is not None and planned.leaves.file is not None:
            planned.leaves.file.sync_data()
        file = planned.journal.file
        assert file is not None, f"only own journals are written path={planned.journal.path!r}"
        offset = planned.offset
        if not planned.sync:
            file.write_at(offset, buffers)
        else:
            if planned.settles_mark:
                file.write_at(offset, buffers)
                file.sync_data()
            else:
                file.write_synced(offset, buffers)
            self._directory.check_epoch()
        if self._pace is not None:
            self.write_seconds = self._pace.now() - began
