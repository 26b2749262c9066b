"""Compares volumes and index again and again, slowly, so that damage is found while there is still another copy.

    volume after volume: every byte is read; every version has to be in the index, unless a tombstone took it
    every row of the index: its record stands where it says
    -> what does not fit is a finding: a line of the log, `findings` until a pass does not meet it any more, a count

It is the deep verification (verification.py), a piece at a time, beside everything else.

Invariants:

- Rate and share of the time are bounded: a piece is some records, and a rest follows it.
- A pass that a restart interrupts goes on with the volume that it had come to, which `DIR/scrub` says: nothing else is
  written. What the index hides is looked for by tombstones of all volumes, so no pass depends on the one before it.
- Nothing is mended here. A damaged index is made anew by the next start, damaged bytes are refused when they are read.
- What cannot be read now is tried again by the next pass; nothing ends the task but close().
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, SegmentStoreError
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from tier2.background_pace import BackgroundPace
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.verification import Verification, advance
from tier2.volumes.volume_files import VolumeFiles

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LOGGER = logging.getLogger(__name__)
_ABSENT_VERSIONS_MAX = 200_000
_PIECE_BYTES = 64 << 10
_PIECE_STEPS = 32
"""Records or rows, about a millisecond. By number, not by time, so that a simulation does the same again."""
_BUSY_SHARE_MIN, _BUSY_SHARE_MAX = 0.02, 0.1
_FAILED_PASS_SECONDS = 60.0
_PLACE_LAYOUT = struct.Struct(">II")
"""Number of a volume and the CRC-32 of its four bytes."""


class VolumeScrubber:
    """start(), close(). Of the process that writes the volumes."""

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        index: IndexDatabase,
        volumes: VolumeFiles,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
    ) -> None:
        """`path`: the file that says how far a pass has come."""
        self._path = path
        self._files = files
        self._index = index
        self._volumes = volumes
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._pace = BackgroundPace(busy_share_min=_BUSY_SHARE_MIN, busy_share_max=_BUSY_SHARE_MAX)
        self._task: asyncio.Task[None] | None = None
        self._stopped_by: Exception | None = None
        self._found: list[str] = []
        """By the pass under way, or the last one."""
        self._found_before: list[str] = []
        self.passes = 0
        self.scrubbed_bytes = 0
        self.damages = 0
        """Findings of all passes."""
        self.last_pass_ms = 0
        """When the last whole one ended."""

    @property
    def findings(self) -> Sequence[str]:
        """One sentence each: of the pass under way and, until it has ended, of the one before it."""
        return list(dict.fromkeys([*self._found, *self._found_before]))

    def start(self) -> None:
        assert self._task is None, "the scrubber is started already"
        if self._settings.scrub_bytes_per_second:
            self._task = asyncio.create_task(self._run_in_background(), name="volumes: scrub")

    @property
    def complaint(self) -> str:
        """What stopped the scrubber, for `/health`; "" if it works."""
        if self._stopped_by is None:
            return ""
        return f"the volumes are not scrubbed until the next start: {self._stopped_by!r}"

    async def close(self) -> None:
        """The piece under way ends. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run_in_background(self) -> None:
        try:
            await self._scrub_again_and_again()
        except Exception as error:
            # A bug. Scrubbing only reads.
            self._stopped_by = error
            _LOGGER.critical("scrubbing of the volumes stops", exc_info=error)

    async def _scrub_again_and_again(self) -> None:
        await asyncio.sleep(self._settings.scrub_delay_seconds)
        while True:
            pause = self._settings.scrub_pass_seconds
            try:
                await self.scrub()
            except (OSError, SegmentStoreError) as error:
                _LOGGER.warning("the volumes could not be scrubbed, tried again later: %s", error)
                pause = min(pause, _FAILED_PASS_SECONDS)
            await asyncio.sleep(pause)

    async def scrub(self) -> None:
        """One pass, or the rest of one. Raises OSError, SegmentStoreError."""
        first = await self._call(self._place)
        verification = Verification(
            index=self._index,
            volumes=self._volumes,
            absent_versions_max=_ABSENT_VERSIONS_MAX,
            first_volume=first,
        )
        self._found_before, self._found = self._found, []
        steps = verification.steps(deep=True)
        try:
            with self._pace.working():
                while await self._piece(steps, verification):
                    pass
        except CorruptedDataError as error:
            # Behind it nothing can be compared. The pass counts: the next one begins where it does.
            self._report(str(error))
        finally:
            await self._call(steps.close)
        self._found_before = []
        self.passes += 1
        self.last_pass_ms = self._wall_clock.now_ms()
        await self._call(self._note_place, 0)

    async def _piece(self, steps: Iterator[int], verification: Verification) -> bool:
        volume = verification.volume
        read, ended = await self._call(
            advance, steps, bytes_max=_PIECE_BYTES, steps_max=_PIECE_STEPS
        )
        self.scrubbed_bytes += read
        for problem in verification.report.problems[len(self._found) :]:
            self._report(problem)
        if verification.volume != volume:
            await self._call(self._note_place, verification.volume)
        await self._pace.rest(at_least=read / self._settings.scrub_bytes_per_second)
        return not ended

    def _report(self, what: str) -> None:
        self._found.append(what)
        if what not in self._found_before:
            self.damages += 1
            _LOGGER.error("the volumes are damaged: %s", what)

    async def _call(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """In the executor, to its end also if the scrubber is cancelled: files and index are closed behind it."""
        loop = asyncio.get_running_loop()
        return await finish_despite_cancellation(
            loop.run_in_executor(self._executor, partial(call, *args, **kwargs))
        )

    def _place(self) -> int:
        """The volume that the last pass had come to."""
        try:
            file = self._files.open(self._path)
        except FileNotFoundError:
            return 0
        try:
            content = file.read_at(0, _PLACE_LAYOUT.size)
        finally:
            file.close()
        if len(content) < _PLACE_LAYOUT.size:
            return 0
        number: int
        number, checksum = _PLACE_LAYOUT.unpack(content)
        return number if checksum == crc32_of(content[:4]) else 0

    def _note_place(self, number: int) -> None:
        file = self._files.open(self._path, create=True)
        try:
            content = number.to_bytes(4, "big")
            file.write_at(0, [_PLACE_LAYOUT.pack(number, crc32_of(content))])
        finally:
            file.close()
