"""Goes over the layouts of a manifest, and says whether the one of a segment has neither a hole nor an overlap.

- A record comes before the layout entries of its segment. Keys behind no record belong to a removed segment and wait
  for a merge to take them along: a walk passes over them.
- A table's index is passed over as well, and but for its first page not read.
- A walk remembers how far it came and no view: each page may be read through a newer one than the page before.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import SegmentRecord
from tier2.layout_entry import LayoutEntry
from tier2.manifest.view import ManifestView
from tier2.sst.keyspace import (
    SEGMENT,
    end_offset_of,
    is_layout_key,
    is_record_key,
    past_attributes,
    range_of,
    segment_of,
)
from tier2.sst.sst_format import Entry

WalkedEntry: TypeAlias = tuple[SegmentId, bytes | LayoutEntry]
"""The encoded record with which a segment begins, or one of its layout entries."""


class LayoutWalk:
    """All segments in the order of their ids, and of each the layout entries in the order of their offsets."""

    def __init__(self) -> None:
        self._following: bytes | None
        self._following, self._end = range_of(SEGMENT)
        self._segment_id: SegmentId | None = None
        """Whose record came last."""

    def has_next_page(self) -> bool:
        """Whether it is not at its end."""
        return self._following is not None

    async def next_page(self, view: ManifestView, *, limit: int) -> Iterator[WalkedEntry]:
        """What comes next: take all of it before the next page. Entries are decoded one by one, as they are taken.

        Looks at about `limit` entries of each SST. Raises ObjectNotFoundError and CorruptedDataError for SSTs, and
        CorruptedDataError where an entry is taken.
        """
        assert self._following is not None, "the walk is at its end"
        page, following = await view.scan(self._following, self._end, limit=limit)
        self._following = past_attributes(following)
        return self._walk(page)

    def _walk(self, page: Sequence[Entry]) -> Iterator[WalkedEntry]:
        for key, value in page:
            assert value is not None, f"a scan gives live entries only key={key!r}"
            segment_id = segment_of(key)
            if is_record_key(key):
                self._segment_id = segment_id
                yield segment_id, value
            elif segment_id == self._segment_id and is_layout_key(key):
                yield segment_id, LayoutEntry.decode(end_offset_of(key), value)


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
