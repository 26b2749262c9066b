"""Keeps the extended attributes that one container holds in memory within a bound.

Values that Tier 2 has leave, those that were not used for longest first, approximately: the hand goes from segment
to segment, and within a segment takes the generation that was not used since its last turn. What Tier 2 does not have
never leaves; when that alone is more than the bound, the storage writer is asked to flush (H14), and beyond
a multiple of the bound writers are slowed.
"""

import asyncio
from dataclasses import dataclass

from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.identifiers import NO_SEGMENT, SegmentId


@dataclass(frozen=True, slots=True)
class AttributeMemorySettings:
    """The bound of one container's extended attributes, and how it is kept."""

    bytes_max: int = 32 * 1024 * 1024
    """Keys, values and what the dictionaries cost."""
    throttle_factor: float = 4.0
    """Writers are stopped before attributes take this many times the bound: only un-published ones can."""
    look_seconds: float = 0.2
    slice_count: int = 1000
    """Values looked at between two turns of the loop: well under a millisecond."""


class AttributeMemory:
    """The hand of the clock, for all segments of one container."""

    def __init__(self, *, metadata: ContainerMetadata, settings: AttributeMemorySettings) -> None:
        self._metadata = metadata
        self._settings = settings
        self._hand: SegmentId = NO_SEGMENT
        self.wants_flush = False
        """Un-published values alone are more than the bound."""
        self.swept = 0

    @property
    def held_bytes(self) -> int:
        return self._metadata.attribute_ledger.held_bytes

    @property
    def throttle_fraction(self) -> float:
        """Share of what may be held at the very most."""
        return self.held_bytes / (self._settings.bytes_max * self._settings.throttle_factor)

    async def run(self) -> None:
        """Look at the bound now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.look_seconds)
            await self.shrink()

    async def shrink(self) -> None:
        """Bring the memory a little below its bound, if Tier 2 has enough of it. O(values) at worst, in slices."""
        bytes_max = self._settings.bytes_max
        if self.held_bytes <= bytes_max:
            self.wants_flush = False
            return
        target = bytes_max - bytes_max // 8
        for _ in range(
            2
        ):  # once round the generations that were not used, once round all that is left
            for segment in self._in_turn():
                await self._sweep(segment, target)
                if self.held_bytes <= target:
                    self._hand = segment.segment_id
                    self.wants_flush = False
                    return
        self.wants_flush = self.held_bytes > bytes_max

    def _in_turn(self) -> list[SegmentMetadata]:
        """Segments with values, the one behind the hand first."""
        holding = [s for s in self._metadata.by_id.values() if s.attributes.extended_count]
        holding.sort(key=lambda segment: (segment.segment_id < self._hand, segment.segment_id))
        return holding

    async def _sweep(self, segment: SegmentMetadata, target: int) -> None:
        table = segment.attributes
        left = table.extended_count
        while left > 0 and self.held_bytes > target:
            if self._metadata.by_id.get(segment.segment_id) is not segment:
                return
            left -= max(
                1, table.sweep(segment.published_sequence_number, self._settings.slice_count)
            )
            self.swept += 1
            await asyncio.sleep(0)
