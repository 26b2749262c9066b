"""Deletes transient segments whose writers are gone.

A writer collects a large event in a segment of its own and merges it into the stream's. One that dies in between leaves
that segment behind, with its bytes, and nothing refers to it. The wire server deletes it when the connection ends that
made it. What is left by a server that ended itself, by a merge without an answer, or because the store could not delete
it then, goes by age: once nothing was written to it for `keep_seconds`.

Invariants:

- A segment that was written to within `keep_seconds` is not deleted, nor one whose last write has no known time.
- Nothing is deleted while the clocks are not trusted, nor by what a listing said alone: each segment is asked
  once more before it goes.
- One pass reads one page of names after the other and pauses between them; it remembers nothing, so a restart costs
  nothing but time.
"""

import asyncio
import logging

from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.segments import SegmentApi, SegmentProperties
from segmentstore.controller.settings import TransientSegmentSettings
from segmentstore.runtime.clock import ClockWatch, WallClock

_LOG = logging.getLogger(__name__)


class TransientSegments:
    """The background work."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        wall_clock: WallClock,
        clock_watch: ClockWatch,
        settings: TransientSegmentSettings,
    ) -> None:
        """The loop of retention looks at `clock_watch` often; this one only asks it."""
        self._segments = segments
        self._wall_clock = wall_clock
        self._clock_watch = clock_watch
        self._settings = settings

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_seconds)
            try:
                await self.run_once()
            except SegmentStoreError as error:
                _LOG.warning("abandoned transient segments stay for now: %s", error)

    async def run_once(self) -> int:
        """One pass over all segments; how many were deleted. Raises what the store raises: the next pass goes on."""
        deleted, after = 0, ""
        while True:
            page = await self._segments.list_segments(
                start_after=after, limit=self._settings.segments_per_read
            )
            for properties in page:
                if _is_transient(properties.name) and self._is_abandoned(properties):
                    deleted += await self._delete(properties.name)
            if len(page) < self._settings.segments_per_read:
                return deleted
            after = page[-1].name
            await asyncio.sleep(self._settings.pause_seconds)

    def _is_abandoned(self, properties: SegmentProperties) -> bool:
        if not properties.last_modified_ms or not self._clock_watch.trusted():
            return False
        age_ms = self._wall_clock.now_ms() - properties.last_modified_ms
        return age_ms > self._settings.keep_seconds * 1000

    async def _delete(self, name: str) -> bool:
        try:
            if not self._is_abandoned(await self._segments.info(name)):
                return False
            await self._segments.delete(name)
        except SegmentNotFoundError:
            return False
        _LOG.info("segment=%s was never merged by its writer, and is deleted", name)
        return True


def _is_transient(name: str) -> bool:
    try:
        return parse_segment(name).transient is not None
    except InvalidRequestError:
        return False
