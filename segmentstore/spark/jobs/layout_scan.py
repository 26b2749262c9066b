"""Every segment of a container with its layout, read once from its root: what the jobs plan from.

- Segments come in the order of their ids, entries in that of their offsets: the order in which they lie in the runs.
- O(segments + layout entries), a page at a time; no chunk is touched.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from segmentstore.contracts.storage import SegmentRecord
from tier2.storage import run_keys
from tier2.storage.reader import ContainerReader
from tier2.storage.run_values import LayoutEntry, decode_record

_PAGE = 2_048


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """A segment and where its bytes lie."""

    container_id: int
    record: SegmentRecord
    entries: list[LayoutEntry] = field(default_factory=list)
    """Neighbours, from the one that holds the start offset to the one that ends at the published length."""


async def scan_layouts(reader: ContainerReader) -> AsyncGenerator[SegmentLayout, None]:
    """All segments under the reader's present root. Hold it in `aclosing`.

    Raises ObjectNotFoundError if the root moved on meanwhile (refresh the reader and begin again), CorruptedDataError.
    """
    view = reader.view
    start, end = run_keys.range_of(run_keys.SEGMENT)
    following: bytes | None = start
    layout: SegmentLayout | None = None
    while following is not None:
        page, following = await view.scan(following, end, limit=_PAGE)
        for key, value in page:
            if value is None:
                continue
            if run_keys.is_record_key(key):
                if layout is not None:
                    yield layout
                record = decode_record(run_keys.segment_of(key), value)
                layout = SegmentLayout(reader.container_id, record)
            elif layout is None or run_keys.segment_of(key) != layout.record.segment_id:
                # It waits for a merge to take it along with its removed record.
                continue
            elif run_keys.is_layout_key(key):
                layout.entries.append(LayoutEntry.decode(run_keys.end_offset_of(key), value))
    if layout is not None:
        yield layout
