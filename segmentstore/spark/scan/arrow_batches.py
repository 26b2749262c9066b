"""Blocks of a segment become Arrow batches: a row for each event, or (offset, bytes) of a segment without events.

Invariants of events (`EventBatchBuilder`):

- An event belongs to the range in which it begins: those that begin in [start, end) come out, each once and in order,
  also if it began in one block and ends many blocks later.
- Walking begins only where an event is known to begin; where the bytes stop being events it raises, and never guesses.
- A block says the number of its first event, and the others are counted from there on, through blocks that say nothing
  as well. A time is that of the block in which the event begins, or of the last one before that has one.
- One buffer holds what is being parsed: what was added since the last incomplete event. It is parsed before anything
  that does not follow it is looked at.

Invariant of bytes (`ByteBatchBuilder`): a row is what a block has of [start, end), at its own offset, whatever blocks
were left out before it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.spark.options import Content
from segmentstore.spark.scan.block_reader import Block, BlockInfo
from segmentstore.spark.scan.event_parser import (
    RecordPositions,
    binary_column,
    find_events,
    find_records,
    headers_of,
)
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.schema import arrow_schema, arrow_type

ROWS_MAX: Final = 1 << 16
"""Of one batch: bounds what Spark holds of very small events."""
_MS_MAX: Final = ((1 << 63) - 1) // 1000
"""Of the times that Spark has."""

Places = npt.NDArray[np.int64]


class EventBatchBuilder:
    """The events of one range. Feed it blocks until `is_done`."""

    def __init__(self, part: SegmentRange, columns: Sequence[str]) -> None:
        self._part = part
        self._columns = tuple(columns)
        self._schema = arrow_schema(self._columns)
        self._is_record = part.content == Content.RECORD
        self._start = part.start
        self._pieces: list[Block] = []
        """From the first event that is not parsed yet on; empty before the first one is found."""
        self._piece_bytes = 0
        self._needed = 0
        """Bytes that must be there before it is worth looking again."""
        self._next_offset: int | None = None
        """Where the next event begins, or at least the next bytes; None: nowhere is known."""
        self._number: int | None = None
        """Of the next event; None if the events before it were not counted."""
        self._time_ms = 0
        """The last one that a block brought."""
        self._constants: dict[str, pa.Array] = {}
        """Columns that have one value in all rows, as long as the longest batch was."""
        self.is_done = False
        """Whether every event of the range came out."""

    @property
    def has_begun(self) -> bool:
        """Whether an event was found to walk on from."""
        return self._next_offset is not None

    @property
    def has_rest(self) -> bool:
        """Whether the beginning of an event is there without its end."""
        return bool(self._pieces)

    def skip_to(self, offset: int) -> None:
        """What lies before is gone: go on with the first event at or behind `offset`."""
        self._start = max(self._start, offset)
        self._forget()

    def add(self, blocks: Sequence[Block]) -> list[pa.RecordBatch]:
        """The events that became whole, usually as one batch. Raises CorruptedDataError."""
        batches: list[pa.RecordBatch] = []
        for block in blocks:
            expected = self._next_offset
            if expected is not None and block.facts.offset > expected:
                # Blocks were left out in between. What is here is forgotten next, so its events come out now.
                batches += self._parse_if_whole()
            if self.is_done:
                return batches
            self._add(block)
        return batches + self._parse_if_whole()

    def _parse_if_whole(self) -> list[pa.RecordBatch]:
        if self.is_done or self._piece_bytes < max(self._needed, EVENT_HEADER_BYTES):
            return []
        return self._parse()

    def _add(self, block: Block) -> None:
        if block.facts.lowest_time_ms:
            self._time_ms = block.facts.lowest_time_ms
        elif self._time_ms:
            block = replace(block, facts=replace(block.facts, lowest_time_ms=self._time_ms))
        expected = self._next_offset
        if expected is not None and block.facts.offset < expected:
            # Chunks were joined while they were read: blocks begin elsewhere now.
            if block.end_offset <= expected:
                return
            block = _block_from(block, expected)
        elif expected != block.facts.offset:
            # The first block, or one behind blocks that were left out: look where an event begins.
            self._forget()
            first = block.facts.first_event_offset
            if first is None:
                return
            if first >= self._part.end:
                self.is_done = True
                return
            block = _block_from(block, first)
        self._pieces.append(block)
        self._piece_bytes += len(block.content)
        self._next_offset = block.end_offset

    def _forget(self) -> None:
        self._pieces, self._piece_bytes, self._needed, self._next_offset = [], 0, 0, None
        self._number = None

    def _parse(self) -> list[pa.RecordBatch]:
        pieces = self._pieces
        base = pieces[0].facts.offset
        content = (
            pieces[0].content if len(pieces) == 1 else b"".join([piece.content for piece in pieces])
        )
        walked = find_events(content, segment=self._part.segment_name, offset=base)
        first = int(np.searchsorted(walked.starts, self._start - base))
        last = int(np.searchsorted(walked.starts, self._part.end - base))
        numbers, times = self._facts_of_rows(pieces, walked.starts, base)
        batches = [
            self._batch(
                content,
                base,
                walked.starts[row : min(row + ROWS_MAX, last)],
                walked.ends[row : min(row + ROWS_MAX, last)],
                numbers[row : min(row + ROWS_MAX, last)],
                times[row : min(row + ROWS_MAX, last)],
            )
            for row in range(first, last, ROWS_MAX)
        ]
        self._keep_rest(pieces, content, base, walked.rest)
        self._needed = walked.rest_bytes
        self.is_done = base + walked.rest >= self._part.end
        return batches

    def _keep_rest(
        self, pieces: Sequence[Block], content: BufferView, base: int, rest: int
    ) -> None:
        """Keep the incomplete event, as a block of its own with the time of the one in which it begins."""
        if rest == len(content):
            self._pieces, self._piece_bytes = [], 0
            return
        begun = next(piece for piece in pieces if base + rest < piece.end_offset)
        facts = BlockInfo(
            offset=base + rest,
            first_event_offset=base + rest,
            event_number=self._number,
            lowest_time_ms=begun.facts.lowest_time_ms,
        )
        kept = memoryview(content)[rest:]
        self._pieces, self._piece_bytes = [Block(facts, kept)], len(kept)

    def _facts_of_rows(
        self, pieces: Sequence[Block], starts: Places, base: int
    ) -> tuple[Places, Places]:
        """Number and time of each event; -1 for a number and 0 for a time that is not known."""
        numbers = np.full(len(starts), -1, dtype=np.int64)
        times = np.zeros(len(starts), dtype=np.int64)
        bounds = [piece.facts.offset - base for piece in pieces]
        rows = [*np.searchsorted(starts, bounds).tolist(), len(starts)]
        for piece, row, row_end in zip(pieces, rows[:-1], rows[1:], strict=True):
            facts = piece.facts
            if facts.first_event_offset is not None:
                if facts.event_number is not None:
                    self._number = facts.event_number
                if row < row_end and base + int(starts[row]) != facts.first_event_offset:
                    raise CorruptedDataError(
                        f"an event is expected elsewhere segment={self._part.segment_name!r}"
                        f" expected={facts.first_event_offset} found={base + int(starts[row])}"
                    )
            times[row:row_end] = facts.lowest_time_ms
            if self._number is not None:
                following = self._number + row_end - row
                numbers[row:row_end] = np.arange(self._number, following)
                self._number = following
        return numbers, times

    def _batch(
        self,
        content: BufferView,
        base: int,
        starts: Places,
        ends: Places,
        numbers: Places,
        times: Places,
    ) -> pa.RecordBatch:
        bodies = starts + EVENT_HEADER_BYTES
        records: RecordPositions | None = None
        if self._is_record and not {"key", "value", "timestamp", "headers"}.isdisjoint(
            self._columns
        ):
            records = find_records(
                content, bodies, ends, segment=self._part.segment_name, offset=base
            )
        arrays = []
        for name in self._columns:
            match name:
                case "offset":
                    array = pa.array(starts + base)
                case "event_number":
                    array = pa.array(numbers, mask=numbers < 0)
                case "timestamp":
                    array = _timestamp_column(
                        times, None if records is None else records.timestamps_ms
                    )
                case "key" if records is not None:
                    array = binary_column(content, records.key_starts, records.key_ends)
                case "value" if records is not None:
                    array = binary_column(content, records.value_starts, records.value_ends)
                case "value":
                    array = binary_column(content, bodies, ends)
                case "headers" if records is not None and records.header_counts.any():
                    rows = headers_of(
                        content,
                        bodies,
                        ends,
                        records.header_counts,
                        segment=self._part.segment_name,
                    )
                    array = pa.array(rows, arrow_type(name))
                case _:
                    array = self._constant(name, len(starts))
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, rows: int) -> pa.Array:
        made = self._constants.get(name)
        if made is None or len(made) < rows:
            value = {
                "scope": self._part.scope,
                "stream": self._part.stream,
                "segment_id": self._part.segment_id,
            }.get(name)
            if value is None:
                made = pa.nulls(rows, arrow_type(name))
            else:
                made = pa.repeat(pa.scalar(value, arrow_type(name)), rows)
            self._constants[name] = made
        return made.slice(0, rows)


def _block_from(block: Block, offset: int) -> Block:
    """The block from `offset` on; it knows an event there only if its first one begins there or behind."""
    facts = block.facts
    first = facts.first_event_offset
    if first is not None and first < offset:
        first = None
    return Block(
        replace(facts, offset=offset, first_event_offset=first),
        memoryview(block.content)[offset - facts.offset :],
    )


def spark_micros(times_ms: Places) -> Places:
    """Spark counts microseconds in 64 bits too: a time beyond those that it has is the first of them, or the last."""
    micros: Places = np.clip(times_ms, -_MS_MAX, _MS_MAX) * 1000
    return micros


def _timestamp_column(block_times_ms: Places, record_times_ms: Places | None) -> pa.Array:
    """A block without a time has 0."""
    if record_times_ms is not None:
        return pa.array(spark_micros(record_times_ms)).view(arrow_type("timestamp"))
    micros = pa.array(block_times_ms * 1000, mask=block_times_ms == 0)
    return micros.view(arrow_type("timestamp"))


class ByteBatchBuilder:
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
        """What the blocks have of the range that did not come out yet: a row for each block."""
        offsets: list[int] = []
        contents: list[bytes] = []
        times: list[int | None] = []
        for block in blocks:
            start = max(self._next_offset, block.facts.offset)
            end = min(self._part.end, block.end_offset)
            if start >= end:
                continue
            self._next_offset = end
            time_ms = block.facts.lowest_time_ms
            offsets.append(start)
            contents.append(
                bytes(block.content[start - block.facts.offset : end - block.facts.offset])
            )
            times.append(time_ms * 1000 if time_ms else None)
        self.is_done = self._next_offset >= self._part.end
        if not offsets:
            return []
        values = {
            "segment": [self._part.segment_name] * len(offsets),
            "offset": offsets,
            "bytes": contents,
            "timestamp": times,
        }
        arrays = [pa.array(values[name], arrow_type(name)) for name in self._columns]
        return [pa.RecordBatch.from_arrays(arrays, schema=self._schema)]
