"""Lengths and event counts of segments, asked for without waking those that sleep in Tier 2."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.segments import SegmentApi, SegmentProperties


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """As of a moment ago; both only grow."""

    length: int
    events: int
    """Of those that were appended as events; 0 if nobody counted."""


class SegmentSizes:
    """Looks segments up in listings: a listing answers for a sleeping segment from its record in Tier 2."""

    def __init__(self, *, segments: SegmentApi, at_once_max: int) -> None:
        self._segments = segments
        self._at_once_max = at_once_max

    async def of(self, names: Sequence[str]) -> list[SegmentSize | None]:
        """In the order of the names; None for a segment that does not exist."""
        sizes: list[SegmentSize | None] = []
        for start in range(0, len(names), self._at_once_max):
            some = names[start : start + self._at_once_max]
            found = await asyncio.gather(
                *(self._find(name) for name in some), return_exceptions=True
            )
            for properties in found:
                if isinstance(properties, BaseException):
                    raise properties
                sizes.append(None if properties is None else _size_of(properties))
        return sizes

    async def _find(self, name: str) -> SegmentProperties | None:
        # A name sorts before everything that it is the beginning of.
        found = await self._segments.list_segments(prefix=name, limit=1)
        return found[0] if found and found[0].name == name else None


def _size_of(properties: SegmentProperties) -> SegmentSize:
    events = properties.core_attributes.get(EVENT_COUNT, 0)
    return SegmentSize(properties.length, events if isinstance(events, int) else 0)
