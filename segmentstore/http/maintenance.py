"""What the HTTP server does without being asked: look at the clocks, let go of idle segments, expire streams.

One task, from start() to close(). Each tick does a bounded amount of work; a sweep over all streams is spread over as
many ticks as it needs.

Nothing but close() ends it: a fault in one step, or at one stream, is told and tried again.
"""

import asyncio
import logging

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_directory import StreamDirectory, StreamHandle
from segmentstore.runtime.clock import ClockWatch
from segmentstore.runtime.handle_cache import HandleCache
from segmentstore.runtime.task_set import TaskSet

logger = logging.getLogger(__name__)

_KEEPS_IDLE_SEGMENTS = "idle segments are not let go of"
_KEEPS_STREAMS_THAT_ARE_OVER = "streams that are over are not removed"


class Maintenance:
    """start(), then close()."""

    def __init__(
        self,
        *,
        clock_watch: ClockWatch,
        directory: StreamDirectory,
        handles: HandleCache[StreamHandle],
        settings: HttpSettings,
    ) -> None:
        self._clock_watch = clock_watch
        self._directory = directory
        self._handles = handles
        self._settings = settings
        self._tasks = TaskSet(on_failure=self._ticks_failed)
        self._is_closed = False
        self._sweep_due = 0.0
        self._sweep_position = ""
        self._faults: dict[str, str] = {}
        """By step: what went wrong when it was last done."""
        self._pass_has_fault = False
        """Whether the pass over all streams that is under way met a fault."""

    @property
    def complaint(self) -> str:
        """What does not work now, in a sentence; "" if all is well."""
        return "; ".join(self._faults.values())

    def start(self) -> None:
        """Begin the ticks."""
        now = asyncio.get_running_loop().time()
        self._sweep_due = now + self._settings.sweep_interval_seconds
        self._tasks.start(self._run_ticks(), name="http upkeep")

    async def close(self) -> None:
        """After the last request: let go of every segment. Idempotent."""
        self._is_closed = True
        await self._tasks.close()
        await self._handles.close()

    async def _run_ticks(self) -> None:
        """A step that fails unexpectedly is tried again; meanwhile `/health` says so."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self._clock_watch.look()
            try:
                await self._handles.release_idle(loop.time())
            except Exception as error:  # noqa: BLE001  # told, and tried again
                self._fail(_KEEPS_IDLE_SEGMENTS, error)
            else:
                self._faults.pop(_KEEPS_IDLE_SEGMENTS, None)
            if loop.time() >= self._sweep_due:
                await self._sweep()

    async def _sweep(self) -> None:
        try:
            self._sweep_position, fault = await self._directory.sweep_page(
                self._sweep_position, self._settings.sweep_page_segments
            )
        except SegmentStoreError as error:
            # A container that is away now is swept when it is back.
            logger.info("sweep of expired streams is put off: %s", error)
            self._sweep_position, fault = "", None
        except Exception as error:  # noqa: BLE001  # told, and tried again
            self._sweep_position, fault = "", error
        if fault is not None:
            self._pass_has_fault = True
            self._fail(_KEEPS_STREAMS_THAT_ARE_OVER, fault)
        if not self._sweep_position:
            if not self._pass_has_fault:
                self._faults.pop(_KEEPS_STREAMS_THAT_ARE_OVER, None)
            self._pass_has_fault = False
            now = asyncio.get_running_loop().time()
            self._sweep_due = now + self._settings.sweep_interval_seconds

    def _fail(self, consequence: str, error: Exception) -> None:
        fault = f"upkeep failed and is tried again; {consequence}: {error!r}"
        if self._faults.get(consequence) != fault:
            # Once, and not in each tick.
            logger.error("upkeep failed", exc_info=error)
        self._faults[consequence] = fault

    def _ticks_failed(self, error: BaseException) -> None:
        """Without ticks streams that are over would stay: they begin again."""
        logger.error("upkeep failed", exc_info=error)
        if not self._is_closed:
            self._tasks.start(self._run_ticks(), name="http upkeep")
