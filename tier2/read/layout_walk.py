"""That the layout of one segment has neither a hole nor an overlap, from its start offset to its length."""

from segmentstore.contracts.storage import SegmentRecord
from tier2.sst.keyspace import LayoutEntry


class LayoutContinuity:
    """Sees the entries of one segment in order. Each verb answers with what is wrong, in words, or None."""

    def __init__(self, record: SegmentRecord) -> None:
        self.record = record
        self._end_offset: int | None = None

    def see(self, entry: LayoutEntry) -> str | None:
        """The next entry. The first one holds the start offset: a truncation leaves chunks whole."""
        record, expected = self.record, self._end_offset
        self._end_offset = entry.end_offset
        follows = (
            entry.start_offset <= record.start_offset < entry.end_offset
            if expected is None
            else entry.start_offset == expected
        )
        if follows:
            return None
        return (
            f"layout has a hole or an overlap name={record.name!r} id={record.segment_id}"
            f" at={entry.start_offset} expected={expected}"
        )

    def finish(self) -> str | None:
        """There are no more."""
        record = self.record
        end = record.start_offset if self._end_offset is None else self._end_offset
        if end == record.length:
            return None
        return (
            f"layout ends at {end} name={record.name!r} id={record.segment_id}"
            f" start_offset={record.start_offset} length={record.length}"
        )
