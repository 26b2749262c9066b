"""What every append reads and writes of its segment lies together in memory (containers/DESIGN.md)."""

import pytest

from containers.cache.cache_entry import CacheEntry
from containers.metadata.append_run import AppendRun
from containers.metadata.segment_metadata import SegmentMetadata
from containers.segments.segment_handle import SegmentHandle

CACHE_LINE_BYTES = 64
COLLECTOR_BYTES = 16
"""In front of each object; the line of an object of a whole number of lines begins behind them."""


@pytest.mark.parametrize(
    ("kind", "lines", "fields"),
    [
        (SegmentMetadata, 2, {"pending_length", "length", "open_entry", "open_run", "segment_id"}),
        (CacheEntry, 1, {"end", "limit", "shift", "slab"}),
        (AppendRun, 1, {"end", "checksum", "last_sequence_number"}),
    ],
)
def test_the_fields_that_appends_meet_come_first_and_are_few(
    kind: type, lines: int, fields: set[str]
) -> None:
    first = kind.__mro__[1]
    assert fields <= set(vars(first)["__slots__"])
    assert first.__basicsize__ <= lines * CACHE_LINE_BYTES


def test_a_segments_metadata_and_its_handle_are_whole_lines_with_the_collectors_part() -> None:
    assert (SegmentMetadata.__basicsize__ + COLLECTOR_BYTES) % CACHE_LINE_BYTES == 0
    assert SegmentHandle.__basicsize__ + COLLECTOR_BYTES == CACHE_LINE_BYTES
