"""Reads every chunk that a root names, and tells whose bytes are damaged: the proof of a copy.

- What nothing refers to (garbage, stretches of an object that no layout names) is not looked at.
- An object that is not there is passed over: lost_chunks.py tells of those.
- Memory: one chunk, and RANGES_SHOWN sentences; further ranges are only counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.storage import SegmentRecord
from tier2.storage.image_reading import verify_image
from tier2.storage.object_names import ObjectKind
from tier2.storage.reader import ContainerReader
from tier2.storage.run_keys import (
    SEGMENT,
    end_offset_of,
    is_layout_key,
    is_record_key,
    range_of,
    segment_of,
)
from tier2.storage.run_values import LayoutEntry, decode_record

RANGES_SHOWN = 20
_PAGE = 1_024


@dataclass(slots=True)
class DamagedChunks:
    """Of one container."""

    container_id: int
    ranges: list[str] = field(default_factory=list)
    range_count: int = 0
    byte_count: int = 0

    def add(self, record: SegmentRecord, entry: LayoutEntry, key: str, why: object) -> None:
        """One chunk of a segment."""
        first = max(entry.start_offset, record.start_offset)
        self.range_count += 1
        self.byte_count += max(0, entry.end_offset - first)
        if len(self.ranges) < RANGES_SHOWN:
            self.ranges.append(f"{record.name} [{first}, {entry.end_offset}) in {key}: {why}")

    def sentences(self) -> list[str]:
        """None if nothing is damaged."""
        if not self.range_count:
            return []
        more = self.range_count - len(self.ranges)
        return [
            (
                f"damaged: container {self.container_id}: {self.range_count} ranges with"
                f" {self.byte_count} bytes have damaged bytes in them; reading those is an error:"
            ),
            *(f"  {each}" for each in self.ranges),
            *(
                [f"  and {more} more: `segmentstore tier2 verify --deep` names them"]
                if more
                else []
            ),
        ]


async def find_damaged_chunks(
    reader: ContainerReader, *, progress: Callable[[int], object] = lambda _: None
) -> DamagedChunks:
    """`progress` is called with the bytes of each chunk. O(bytes). Raises CorruptedDataError of a run, StorageError."""
    found = DamagedChunks(int(reader.container_id))
    following: bytes | None
    following, end = range_of(SEGMENT)
    record: SegmentRecord | None = None
    while following is not None:
        page, following = await reader.view.scan(following, end, limit=_PAGE)
        for key, value in page:
            assert value is not None, f"a scan gives live entries only key={key!r}"
            if is_record_key(key):
                record = decode_record(segment_of(key), value)
            elif record is None or not is_layout_key(key) or segment_of(key) != record.segment_id:
                # Entries without a record wait for a merge to take them along with their segment.
                continue
            else:
                entry = LayoutEntry.decode(end_offset_of(key), value)
                await _look_at(found, reader, record, entry)
                progress(entry.size)
    return found


async def _look_at(
    found: DamagedChunks, reader: ContainerReader, record: SegmentRecord, entry: LayoutEntry
) -> None:
    components = reader.components
    try:
        image = await components.objects.get_range(
            ObjectKind.CHUNKS, entry.identity, entry.position, entry.size
        )
        await components.offload(verify_image, entry, image)
    except ObjectNotFoundError:
        return
    except CorruptedDataError as damage:
        key = components.names.key(ObjectKind.CHUNKS, entry.identity)
        found.add(record, entry, key, damage)
