"""Blocks of a segment without events become Arrow batches of (offset, bytes).

Invariant: the rows of a range are its bytes [start, end), each once and in order; small blocks share a row.
"""

from collections.abc import Sequence

import pyarrow as pa

from segmentstore.spark.block_range import SegmentRange
from segmentstore.spark.columns import arrow_schema, arrow_type
from segmentstore.spark.event_batches import Block


class ByteBatches:
    """The bytes of one range. Feed it blocks until `is_done`."""

    def __init__(self, part: SegmentRange, columns: Sequence[str]) -> None:
        self._part = part
        self._columns = tuple(columns)
        self._schema = arrow_schema(self._columns)
        self._next_offset = part.start
        self.is_done = part.start >= part.end

    @property
    def has_begun(self) -> bool:
        """Bytes begin anywhere."""
        return True

    @property
    def has_rest(self) -> bool:
        """Bytes have no parts."""
        return False

    def skip_to(self, offset: int) -> None:
        """What lies before is gone."""
        self._next_offset = max(self._next_offset, offset)

    def add(self, blocks: Sequence[Block]) -> list[pa.RecordBatch]:
        """The part of the blocks that belongs to the range, as one row."""
        start = self._next_offset
        pieces = [
            memoryview(block.content)[
                max(0, start - block.facts.offset) : max(0, self._part.end - block.facts.offset)
            ]
            for block in blocks
        ]
        content = b"".join(pieces)
        if not content:
            return []
        self._next_offset = start + len(content)
        self.is_done = self._next_offset >= self._part.end
        time_ms = blocks[0].facts.lowest_time_ms
        values = {
            "segment": self._part.segment_name,
            "offset": start,
            "bytes": content,
            "timestamp": time_ms * 1000 if time_ms else None,
        }
        arrays = [pa.array([values[name]], arrow_type(name)) for name in self._columns]
        return [pa.RecordBatch.from_arrays(arrays, schema=self._schema)]
