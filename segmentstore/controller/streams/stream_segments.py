"""What an operation on a stream does to the segments in the store, each step safe to repeat; and how long segments are.

Lengths and event counts are asked for without waking the segments that sleep in Tier 2.

Invariants:

- Doing a step twice is the same as doing it once: names are never used again, so "exists" and "is sealed" and "is
  gone" can only be the work of an earlier attempt.
- A segment that has to be there and is not is an error; nothing is created in its place.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from segmentstore.contracts.errors import SegmentExistsError, SegmentNotFoundError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.segments import SegmentApi, SegmentProperties
from segmentstore.controller.errors import RetryLaterError
from segmentstore.runtime.waiting import gather_all

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """As of a moment ago; both only grow."""

    length: int
    events: int
    """Of those that were appended as events; 0 if the segment has no count."""


class StreamSegments:
    """Steps on many segments, at most `at_once_max` of them under way."""

    def __init__(self, *, segments: SegmentApi, at_once_max: int) -> None:
        self._segments = segments
        self._at_once_max = at_once_max

    async def create(self, names: Sequence[str]) -> None:
        """All of them exist afterwards."""
        await self._each(names, self._create)

    async def seal(self, names: Sequence[str]) -> list[int]:
        """Final lengths, in order. Raises RetryLaterError if one is missing."""
        return await self._each(names, self._seal)

    async def truncate(self, name: str, offset: int) -> None:
        """Raises BadOffsetError (past the end), RetryLaterError if it is missing."""
        try:
            await self._segments.truncate(name, offset)
        except SegmentNotFoundError as error:
            raise _segment_is_missing(name) from error

    async def delete(self, names: Sequence[str]) -> None:
        """None of them exists afterwards."""
        await self._each(names, self._delete)

    async def info(self, names: Sequence[str]) -> list[SegmentProperties | None]:
        """Committed state, in order; None for a missing one."""
        return await self._each(names, self._info)

    async def sizes(self, names: Sequence[str]) -> list[SegmentSize | None]:
        """In order; None for a missing one. From listings: they answer for a sleeping segment from Tier 2."""
        return await self._each(names, self._size)

    async def _each(
        self, names: Sequence[str], step: Callable[[str], Awaitable[Outcome]]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(names), self._at_once_max):
            some = names[start : start + self._at_once_max]
            if len(some) == 1:
                outcomes.append(await step(some[0]))
                continue
            # Every step ends: a failed one must not leave others half waited for.
            outcomes += await gather_all(step(name) for name in some)
        return outcomes

    async def _create(self, name: str) -> None:
        try:
            await self._segments.create(name)
        except SegmentExistsError:
            return

    async def _seal(self, name: str) -> int:
        try:
            return await self._segments.seal(name)
        except SegmentNotFoundError as error:
            raise _segment_is_missing(name) from error

    async def _delete(self, name: str) -> None:
        try:
            await self._segments.delete(name)
        except SegmentNotFoundError:
            return

    async def _info(self, name: str) -> SegmentProperties | None:
        try:
            return await self._segments.info(name)
        except SegmentNotFoundError:
            return None

    async def _size(self, name: str) -> SegmentSize | None:
        # A name sorts before everything that it is the beginning of.
        found = await self._segments.list_segments(prefix=name, limit=1)
        if not found or found[0].name != name:
            return None
        return SegmentSize(found[0].length, event_count(found[0]))


def _segment_is_missing(name: str) -> RetryLaterError:
    # "Not found" would tell the client that there is no such stream. Repair brings the segment back, empty.
    return RetryLaterError(f"a segment that its stream lists is missing name={name!r}")


def event_count(properties: SegmentProperties) -> int:
    """Of those that were appended as events; 0 if the segment has no count."""
    events = properties.core_attributes.get(EVENT_COUNT, 0)
    return events if isinstance(events, int) else 0
