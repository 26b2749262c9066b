"""What the HTTP room does without being asked: look at the clocks, release idle pins, expire streams.

One task, owned by the application: it starts with it and is cancelled and awaited when the application ends. Each tick
does a bounded amount of work; a sweep over all streams is spread over as many ticks as it needs.
"""

import asyncio
import logging

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_directory import StreamDirectory, StreamHandleCache
from segmentstore.http.stream_read import Waiters
from segmentstore.runtime.clock import ClockWatch

logger = logging.getLogger(__name__)


class Maintenance:
    """Ticks until cancelled."""

    def __init__(
        self,
        *,
        clock_watch: ClockWatch,
        directory: StreamDirectory,
        pins: StreamHandleCache,
        waiters: Waiters,
        settings: HttpSettings,
    ) -> None:
        self._clock_watch = clock_watch
        self._directory = directory
        self._pins = pins
        self._waiters = waiters
        self._settings = settings
        self._sweep_due = 0.0
        self._sweep_position = ""
        self.complaint = ""
        """Why it does nothing any more, in a sentence; "" while it works."""

    async def run(self) -> None:
        """Until cancelled, or until something happens that should not: then it stops and `/health` says so."""
        try:
            await self._tick_for_ever()
        except Exception as error:
            logger.exception("upkeep stopped")
            self.complaint = f"upkeep stopped, so nothing expires and no pin is released: {error}"

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep_due = loop.time() + self._settings.sweep_interval_seconds
        while True:
            await asyncio.sleep(self._settings.tick_seconds)
            self._clock_watch.look()
            await self._pins.release_idle(loop.time())
            if loop.time() >= self._sweep_due:
                await self._sweep()

    async def _sweep(self) -> None:
        try:
            self._sweep_position = await self._directory.sweep_page(
                self._sweep_position, self._settings.sweep_page_segments
            )
        except SegmentStoreError as error:
            # A container that is away now is swept when it is back.
            logger.info("sweep of expired streams is put off: %s", error)
            self._sweep_position = ""
        if not self._sweep_position:
            now = asyncio.get_running_loop().time()
            self._sweep_due = now + self._settings.sweep_interval_seconds

    def stop_waiting(self) -> None:
        """Ends long polls and event streams, so that the server can close."""
        self._waiters.stop()

    async def close(self) -> None:
        """After the last request: let go of every segment."""
        await self._pins.close()
