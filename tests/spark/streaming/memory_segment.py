"""A segment of events in memory, cut into blocks at random places, as Tier 2 would hold it."""

import struct
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from segmentstore.contracts.storage import StoredBlock


def frame(content: bytes) -> bytes:
    return struct.pack(">ii", 0, len(content)) + content


def block(
    *, offset: int, length: int, first: int | None, number: int, known: bool = True
) -> StoredBlock:
    return StoredBlock(
        offset=offset,
        length=length,
        first_event_offset=first,
        event_number=number if first is not None else 0,
        events_known=known,
        lowest_time_ms=0,
        highest_time_ms=0,
        object_key="containers/0000/chunks/1",
        image_position=0,
        position=0,
        stored_length=length,
        compression=0,
    )


@dataclass
class MemorySegment:
    """Events one behind the other; `published_end` of them in blocks that end at `block_ends`."""

    name: str
    events: Sequence[bytes]
    block_ends: Sequence[int] = ()
    events_known: bool = True
    start_offset: int = 0
    reads: int = 0
    blocks_listed: int = 0
    content: bytes = b""
    starts: list[int] = field(default_factory=list)
    """Of every event, and the end of the last one."""

    def __post_init__(self) -> None:
        offset = 0
        for event in self.events:
            self.starts.append(offset)
            offset += 8 + len(event)
        self.starts.append(offset)
        self.content = b"".join(frame(event) for event in self.events)

    @property
    def published_end(self) -> int:
        return max(self.block_ends, default=0)

    async def blocks(self, start: int, end: int) -> AsyncGenerator[StoredBlock, None]:
        assert self.start_offset <= start < end <= self.published_end
        for low, high in pairwise((0, *sorted(set(self.block_ends)))):
            if low < end and high > start:
                self.blocks_listed += 1
                yield self._block(low, high)

    async def read(self, offset: int, length: int) -> bytes:
        assert length >= 1
        assert self.start_offset <= offset < len(self.content)
        self.reads += 1
        return self.content[offset : offset + min(length, 11)]

    def _block(self, low: int, high: int) -> StoredBlock:
        if not self.events_known:
            return block(offset=low, length=high - low, first=None, number=0, known=False)
        inside = [
            (number, start) for number, start in enumerate(self.starts[:-1]) if low <= start < high
        ]
        number, first = inside[0] if inside else (0, None)
        return block(offset=low, length=high - low, first=first, number=number)
