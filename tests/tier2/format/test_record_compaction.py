"""Goal: passes of compaction keep the newest value of every key, whatever their memory and wherever they break off.

Method: files of random records are compacted in passes of few keys, as an owner would: note, filter, replace. What is
left is compared with a model that knows all records. Passes are broken off after any file.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.record_batch import decode_batches
from segmentstore.codec.record_fields import Record
from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.format.record_images import image_of, make_record_file
from tier2.format.block import decode_block
from tier2.format.chunk_format import BlockEntry, ChunkFlag
from tier2.format.record_compaction import NewestOffsets, last_batch, surviving_batches
from tier2.format.record_file import open_record_file
from tier2.format.record_transcoding import facts_of_block

SECRET = b"a secret of this run"
KEYS_MAX = 6
BLOCK_BYTES = 30


class Files:
    """Images in order of offsets; one without a record keeps its place, and has no image."""

    def __init__(self, records: Sequence[Record], records_per_file: int) -> None:
        self.images = [
            image_of(
                [[each] for each in records[at : at + records_per_file]],
                block_bytes_target=BLOCK_BYTES,
            )
            for at in range(0, len(records), records_per_file)
        ]
        self.noted_end = 0
        """Behind what passes have noted."""

    def records(self) -> list[Record]:
        return [
            record
            for image in self.images
            if image
            for record in open_record_file(image).records_from(0)
        ]

    def blocks(self, image: bytes) -> list[tuple[memoryview, BlockEntry]]:
        if not image:
            return []
        view = memoryview(image)
        return [
            (memoryview(decode_block(entry, view[entry.position : entry.end_position])), entry)
            for entry in open_record_file(image).index.entries
        ]

    def compact(self, *, tombstones_end: int = 0, files_max: int = 1000) -> bool:
        """One pass, broken off behind `files_max` files. False when there was nothing to note."""
        newest = NewestOffsets(keys_max=KEYS_MAX, secret=SECRET, start_offset=self.noted_end)
        for content, _ in (block for image in self.images for block in self.blocks(image)):
            # A block that was written anew may hold records of both sides.
            is_new = facts_of_block(content).last_offset >= self.noted_end
            if is_new and not newest.note_block(content):
                break
        before = self.noted_end
        for number, image in enumerate(self.images[:files_max]):
            if not image:
                continue
            header = open_record_file(image).header
            batches = b"".join(
                surviving_batches(
                    content,
                    entry,
                    header.flags,
                    newest,
                    tombstones_end=tombstones_end,
                    batch_bytes_max=1 << 20,
                )
                for content, entry in self.blocks(image)
            )
            made = b""
            if batches:
                file = make_record_file(
                    batches,
                    created_ms=1,
                    start_offset=header.start_offset,
                    end_offset=header.end_offset,
                    block_bytes_target=BLOCK_BYTES,
                )
                made = b"".join(file.buffers)
            self.images[number] = made
        if files_max >= len(self.images):
            self.noted_end = max(self.noted_end, newest.end_offset)
        return self.noted_end > before


def newest_of(records: Sequence[Record]) -> list[Record]:
    """The model."""
    newest = {record.key: record for record in records if record.key is not None}
    return sorted(newest.values(), key=lambda each: each.offset)


rows = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.none() | st.sampled_from([b"%d" % n for n in range(9)]),
        st.none() | st.binary(max_size=4),
    ),
    min_size=1,
    max_size=40,
)


def records_of(given_rows: list[tuple[int, bytes | None, bytes | None]]) -> list[Record]:
    records, offset = [], 0
    for step, key, value in given_rows:
        offset += step
        records.append(Record(offset, 1000 - offset, key, value))
    return records


@settings(max_examples=200, deadline=None)
@given(
    given_rows=rows,
    records_per_file=st.integers(1, 15),
    broken=st.lists(st.integers(0, 5), max_size=3),
)
def test_passes_leave_the_newest_record_of_every_key(
    given_rows: list[tuple[int, bytes | None, bytes | None]],
    records_per_file: int,
    broken: list[int],
) -> None:
    records = records_of(given_rows)
    files = Files(records, records_per_file)
    for files_max in broken:
        files.compact(files_max=files_max)
        left = files.records()
        assert newest_of(left) == newest_of(records), "a newest record went"
        assert set(left) <= set(records)
    while files.compact():
        assert newest_of(files.records()) == newest_of(records)
    assert files.records() == newest_of(records)
    files.compact(tombstones_end=files.noted_end)
    assert files.records() == [each for each in newest_of(records) if each.value is not None]


def test_tombstones_stay_until_their_time_and_older_values_do_not_come_back() -> None:
    records = [
        Record(0, 1, b"a", b"old"),
        Record(1, 1, b"b", b"old"),
        Record(2, 1, b"a", None),
        Record(3, 1, b"b", b"new"),
    ]
    files = Files(records, 1)
    assert files.compact()
    assert files.records() == records[2:]
    files.compact(tombstones_end=2)
    assert files.records() == records[2:], "its offset is not below the end"
    files.compact(tombstones_end=3)
    assert files.records() == records[3:]


def test_neighbours_become_one_file_and_the_range_stays() -> None:
    images = Files([Record(n, n, b"%d" % (n % 2), b"x") for n in range(6)], 2)
    newest = NewestOffsets(keys_max=KEYS_MAX, secret=SECRET)
    blocks = [block for image in images.images for block in images.blocks(image)]
    assert all(newest.note_block(content) for content, _ in blocks)
    joined = make_record_file(
        b"".join(
            surviving_batches(
                content, entry, ChunkFlag(0), newest, tombstones_end=0, batch_bytes_max=1 << 20
            )
            for content, entry in blocks
        ),
        created_ms=1,
        start_offset=0,
        end_offset=6,
    )
    opened = open_record_file(b"".join(joined.buffers))
    assert [each.offset for each in opened.records_from(0)] == [4, 5]
    assert (opened.header.start_offset, opened.header.end_offset) == (0, 6)


def test_memory_is_bounded_by_keys_or_one_block() -> None:
    first, second = (
        Files([], 1).blocks(
            image_of([[Record(n, 0, b"%d" % n, b"") for n in range(start, start + KEYS_MAX)]])
        )[0][0]
        for start in (0, 100)
    )
    newest = NewestOffsets(keys_max=KEYS_MAX - 1, secret=SECRET)
    assert newest.note_block(first), "one block always finds room"
    assert (len(newest), newest.end_offset) == (KEYS_MAX, KEYS_MAX)
    assert not newest.note_block(second)
    assert newest.end_offset == KEYS_MAX
    later = NewestOffsets(keys_max=100, secret=SECRET, start_offset=KEYS_MAX - 2)
    assert later.note_block(first)
    assert len(later) == 2, "older passes have noted the others"


def test_the_last_record_of_a_block_alone() -> None:
    records = [Record(n, n, b"%d" % n, b"") for n in range(4)]
    ((content, _),) = Files([], 1).blocks(image_of([records]))
    assert decode_batches(last_batch(content, ChunkFlag(0))) == ([records[-1]], 4)


def test_damage_is_refused() -> None:
    image = image_of([[Record(0, 0, b"k", b"v"), Record(1, 0, b"k", b"w")]])
    ((content, entry),) = Files([], 1).blocks(image)
    newest = NewestOffsets(keys_max=9, secret=SECRET)
    for damaged in (content[:-1], b"\x01" + bytes(content[1:])):
        with pytest.raises(CorruptedDataError):
            surviving_batches(
                damaged, entry, ChunkFlag(0), newest, tombstones_end=0, batch_bytes_max=99
            )
