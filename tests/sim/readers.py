"""Actors that read. What they see is checked in the model as it comes, and stays true for ever."""

import asyncio
from contextlib import suppress

from segmentstore.contracts.errors import BadOffsetError
from segmentstore.contracts.segments import ReadResultEntryKind
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import ModelBreachError
from tests.sim.client import REQUEST_ERRORS, OpenSegment, Piece

_WAKE_SECONDS_MAX = 30.0
_ENDS_IN_A_ROW = 1_000
"""So often a reader looks at the end of a sealed segment as fast as it looks anywhere. In a trouble of an hour it would
use up the steps of its world there."""
_REST_AT_THE_END_SECONDS = 5.0


class RandomReader(Actor):
    """Reads stretches anywhere, also where they may be truncated, cold or not there yet."""

    async def step(self) -> None:
        segment = await self.open(self.name)
        try:
            info = await segment.info()
            offset = self.random.randint(0, info.length)
            pieces = await segment.read(offset, self.random.choice((1, 50, 1000)))
            check_contiguous(segment, offset, pieces)
            if self.random.random() < 0.1:
                await self._read_past_the_end(segment)
        finally:
            await segment.close()

    async def _read_past_the_end(self, segment: OpenSegment) -> None:
        beyond = sum(len(append.data) for append in segment.life.appends) + 1_000_000
        try:
            await segment.read(beyond, 10)
        except BadOffsetError:
            return
        raise ModelBreachError(f"{segment.life}: a read at {beyond} found something")


class TailReader(Actor):
    """Follows the end of a segment and never misses a byte, over every break."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self._open: OpenSegment | None = None
        self._offset = 0
        self._ends_seen = 0

    async def step(self) -> None:
        if self._ends_seen > _ENDS_IN_A_ROW:
            await asyncio.sleep(_REST_AT_THE_END_SECONDS)
        if self._open is None or not self._open.alive:
            await self.close()
            before = self._open
            self._open = await self.open(self.name)
            if before is None or before.life is not self._open.life:
                self._offset = max(self._offset, self._open.life.start)
            if self.name in self.stage.volatile:
                self._offset = self._open.life.start
        segment = self._open
        try:
            pieces = await self._follow(segment)
        except BadOffsetError as error:
            await self.close()
            raise ModelBreachError(f"{segment.life}: seen up to {self._offset}, {error}") from error
        except BaseException:
            await self.close()
            raise
        if pieces is None:
            return
        check_contiguous(segment, self._offset, pieces)
        at_end = pieces and pieces[-1].kind is ReadResultEntryKind.END_OF_SEGMENT
        self._ends_seen = self._ends_seen + 1 if at_end else 0
        for piece in pieces:
            self._offset += len(piece.data)
            if piece.kind is ReadResultEntryKind.TRUNCATED:
                self._offset = (await segment.info()).start_offset
            elif not piece.data:
                await self.close()

    def owes(self) -> bool:
        """It stays as long as things break, so that somebody waits when the last append comes."""
        return not self.stage.calm

    async def _follow(self, segment: OpenSegment) -> list[Piece] | None:
        """What comes next; None if nothing came in the time this reader has. A disconnect ends the wait (H58)."""
        read = asyncio.ensure_future(segment.read(self._offset, 300, wait=True))
        try:
            if await _done_within(read, self.random.expovariate(1.0)):
                return read.result()
            pauses = segment.pause_count
            if not segment.awake or segment.life.length <= self._offset:
                return None
            if not await _done_within(read, _WAKE_SECONDS_MAX):
                if segment.owned and segment.pause_count == pauses:
                    raise ModelBreachError(
                        f"{segment.life}: nobody woke a reader at {self._offset}"
                    )
                return None
            return read.result()
        finally:
            read.cancel()
            with suppress(asyncio.CancelledError, *REQUEST_ERRORS):
                await read

    async def close(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            await segment.close()


async def _done_within(read: "asyncio.Future[list[Piece]]", seconds: float) -> bool:
    with suppress(TimeoutError, *REQUEST_ERRORS):
        await asyncio.wait_for(asyncio.shield(read), seconds)
    return read.done()


def check_contiguous(segment: OpenSegment, offset: int, pieces: list[Piece]) -> None:
    """Entries follow one another, and only the last may come without bytes."""
    for place, piece in enumerate(pieces):
        if piece.offset != offset:
            raise ModelBreachError(f"{segment.life}: an entry at {piece.offset}, due at {offset}")
        if not piece.data and place < len(pieces) - 1:
            raise ModelBreachError(f"{segment.life}: an empty entry in the middle {piece}")
        if not piece.data and piece.kind in (
            ReadResultEntryKind.CACHE,
            ReadResultEntryKind.STORAGE,
        ):
            raise ModelBreachError(f"{segment.life}: an entry without bytes {piece}")
        offset += len(piece.data)
