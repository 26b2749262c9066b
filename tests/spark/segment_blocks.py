"""A segment of events cut into blocks anywhere, with what an index would say of them."""

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.spark.scan.block_reader import Block, BlockInfo
from segmentstore.spark.scan.partitions import BlockRange


def frame(event: bytes) -> bytes:
    return struct.pack(">ii", 0, len(event)) + event


@dataclass(frozen=True)
class CutSegment:
    """Events, where they begin, and the blocks."""

    events: Sequence[bytes]
    offsets: Sequence[int]
    blocks: Sequence[Block]

    @property
    def length(self) -> int:
        return self.blocks[-1].end_offset if self.blocks else 0


def cut_segment(
    events: Sequence[bytes], cuts: Sequence[int], *, unknown: Sequence[int] = (), first: int = 0
) -> CutSegment:
    """Blocks that end at `cuts` (positions, in any order); of the blocks in `unknown` nobody says anything."""
    content = b"".join(map(frame, events))
    offsets: list[int] = []
    at = 0
    for event in events:
        offsets.append(at)
        at += 8 + len(event)
    bounds = sorted({0, *(cut for cut in cuts if 0 < cut < len(content)), len(content)})
    blocks: list[Block] = []
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        begun = [(place, row) for row, place in enumerate(offsets) if start <= place < end]
        known = bool(begun) and number not in unknown
        facts = BlockInfo(
            offset=start,
            first_event_offset=begun[0][0] if known else None,
            event_number=first + begun[0][1] if known else None,
            lowest_time_ms=1000 + number if known else 0,
        )
        blocks.append(Block(facts, content[start:end]))
    return CutSegment(events, offsets, blocks)


def part_of(start: int, end: int, content: str = "raw") -> BlockRange:
    return BlockRange(
        scope="s",
        stream="t",
        segment_id=5,
        segment_name="s/t/5.#epoch.0",
        container_id=0,
        start=start,
        end=end,
        content=content,
    )
