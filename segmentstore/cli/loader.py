"""Brings segments up to what their files say, however often it is interrupted.

Invariants:

- An append is conditional on the length that the loader believes in, so a piece is never stored twice: if an answer
  was lost, the next attempt finds the piece there or not there, never half.
- Before it adds to a segment that has bytes already, the loader compares them with the files; a segment that differs is
  left alone and reported.
- Memory is bounded by (segments at once) x (piece size).
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.load_plan import SegmentPlan
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

_RETRY_SECONDS_FIRST = 0.1
_RETRY_SECONDS_MAX = 5.0

_Result = TypeVar("_Result")


class LoadConflictError(SegmentStoreError):
    """The segment holds other bytes than the files."""

    kind = ErrorKind.CONFLICT


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """One segment that is now as long as its files."""

    name: str
    length: int
    found_bytes: int
    """Bytes that were there already."""
    sha256: str


class Loader:
    """Loads plans through one client, several segments at once."""

    def __init__(
        self,
        *,
        client: HttpClient,
        piece_bytes: int,
        segments_at_once: int,
        seal: bool,
        give_up_seconds: float,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._piece_bytes = piece_bytes
        self._segments_at_once = segments_at_once
        self._seal = seal
        self._give_up_seconds = give_up_seconds
        self._progress = progress

    async def load(self, plans: Sequence[SegmentPlan]) -> list[LoadedSegment]:
        """Results in the order of the plans. The first failure ends the load; what was stored stays."""
        waiting = list(enumerate(plans))[::-1]
        results: list[LoadedSegment | None] = [None] * len(plans)

        async def work() -> None:
            while waiting:
                position, plan = waiting.pop()
                results[position] = await self._load_segment(plan)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._segments_at_once, len(plans))):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [result for result in results if result is not None]

    async def _load_segment(self, plan: SegmentPlan) -> LoadedSegment:
        info = await self._patiently(lambda: self._client.ensure(plan.name))
        if info.length > plan.length:
            raise LoadConflictError(
                f"the segment is longer than its files; was something else appended? name={plan.name!r} "
                f"length={info.length} files={plan.length}"
            )
        digest = hashlib.sha256()
        await self._compare(plan, info.start_offset, info.length, digest)
        position = info.length
        while position < plan.length:
            content = await _in_thread(
                plan.read, position, min(self._piece_bytes, plan.length - position)
            )
            await self._append(plan, position, content)
            digest.update(content)
            position += len(content)
            self._progress(len(content))
        if self._seal:
            await self._patiently(lambda: self._client.seal(plan.name))
        return LoadedSegment(plan.name, plan.length, info.length, digest.hexdigest())

    async def _compare(
        self, plan: SegmentPlan, start_offset: int, length: int, digest: "hashlib._Hash"
    ) -> None:
        """What is there must be what the files begin with; truncated bytes are taken from the files."""
        position = 0
        while position < length:
            wanted = min(self._piece_bytes, length - position)
            content = await _in_thread(plan.read, position, wanted)
            if position >= start_offset:
                content = await self._compare_piece(plan, position, content)
            digest.update(content)
            position += len(content)
            self._progress(len(content))

    async def _compare_piece(self, plan: SegmentPlan, position: int, content: bytes) -> bytes:
        """As much of `content` as the server gave back at once, which is at least one byte and equal."""
        piece = await self._patiently(lambda: self._client.read(plan.name, position, len(content)))
        if not piece.content or piece.content != content[: len(piece.content)]:
            raise LoadConflictError(
                f"the segment holds other bytes than its files name={plan.name!r} offset={position}"
            )
        return piece.content

    async def _append(self, plan: SegmentPlan, position: int, content: bytes) -> None:
        async def attempt() -> None:
            try:
                await self._client.append(plan.name, content, offset=position)
            except ServerError as error:
                if error.kind is not ErrorKind.CONFLICT:
                    raise
                await self._recognise(plan, position, content)

        await self._patiently(attempt)

    async def _recognise(self, plan: SegmentPlan, position: int, content: bytes) -> None:
        """A refused append is fine if it is our own earlier attempt whose answer was lost."""
        info = await self._client.info(plan.name)
        if info.length == position and info.sealed:
            raise LoadConflictError(
                f"the segment is sealed but shorter than its files name={plan.name!r} length={info.length} "
                f"files={plan.length}"
            )
        if info.length != position + len(content):
            raise LoadConflictError(
                f"something else is appending to the segment name={plan.name!r} length={info.length} "
                f"expected={position + len(content)}"
            )
        done = 0
        while done < len(content):
            done += len(await self._compare_piece(plan, position + done, content[done:]))

    async def _patiently(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Again after UNAVAILABLE, with growing pauses, until time is up. Only for what may be sent twice."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._give_up_seconds
        pause = _RETRY_SECONDS_FIRST
        while True:
            try:
                return await attempt()
            except ServerError as error:
                if error.kind is not ErrorKind.UNAVAILABLE or loop.time() + pause > give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_SECONDS_MAX)


async def _in_thread(call: Callable[[int, int], bytes], first: int, second: int) -> bytes:
    return await asyncio.get_running_loop().run_in_executor(None, call, first, second)
