"""Goal: a file of a topic's records gives back every record, by offset and by time, needs nothing beside it, and no
change of a bit stays unseen; what was written once is read for ever, and by a program that has only its page.
"""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import RecordFileName
from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.format.record_images import image_of
from tier2.format.chunk_format import BLOCK_BYTES_MAX, ChunkFlag, Compression, parse_header
from tier2.format.record_file import (
    RecordFile,
    damages_of_record_file,
    open_record_file,
)
from tier2.format.records import RecordForm, decode_records, encode_records

GOLDEN = Path(__file__).parents[2] / "golden" / "record_file_v2.hex"
READER = Path(__file__).parents[3] / "examples" / "read_segment_file.py"

RECORDS = (
    Record(1000, 1_795_000_000_000, b"user-1", b'{"clicks":1}', (("trace", b"abc"), ("n", None))),
    Record(1001, 1_795_000_000_005, None, b'{"clicks":2}'),
    Record(1002, 1_795_000_000_003, b"user-1", None),
    Record(1005, 1_795_000_000_003, b"", b""),
    Record(1006, 1_795_000_001_000, b"\xff", b"last"),
)


def all_of(file: RecordFile) -> list[Record]:
    return list(file.records_from(0))


def golden_image() -> bytes:
    return image_of([list(RECORDS[:2]), list(RECORDS[2:])], block_bytes_target=40, end_offset=1010)


def test_a_file_of_long_ago_is_read_and_written() -> None:
    kept = bytes.fromhex(GOLDEN.read_text())
    assert golden_image() == kept
    opened = open_record_file(kept)
    assert tuple(all_of(opened)) == RECORDS
    assert len(opened.index.entries) == 2
    assert (opened.header.start_offset, opened.header.end_offset) == (1000, 1010)
    assert damages_of_record_file(kept) == []


def test_the_tail_of_a_record_is_that_of_kafka() -> None:
    # Kafka's documentation, "Record": keyLength varint, key, valueLen varint, value, headers count varint, and for each
    # header keyLength varint, key, valueLength varint, value; varints are zigzag, -1 is null.
    record = Record(0, 0, b"key", None, (("h", None), ("i", b"1")))
    assert encode_records([record], RecordForm.NULLABLE) == bytes.fromhex(
        "00 00" "06 6b6579" "01" "04" "02 68 01" "02 69 02 31"
    )  # fmt: skip


def test_a_plain_record_has_no_word_for_null() -> None:
    for record in (
        Record(0, 0, None, b""),
        Record(0, 0, b"", None),
        Record(0, 0, b"", b"", (("h", None),)),
    ):
        with pytest.raises(ValueError, match="no null"):
            encode_records([record])


def test_a_header_without_a_name_and_a_negative_length_are_damage() -> None:
    for content in ("0000 01 01 02 01 01", "0000 03 01 00", "0000 01 01 01"):
        with pytest.raises(CorruptedDataError):
            list(decode_records(bytes.fromhex(content), RecordForm.NULLABLE))


optional_bytes = st.none() | st.binary(max_size=30)
batches_of_records = st.lists(
    st.lists(
        st.tuples(
            st.integers(1, 1000),
            st.integers(-(2**63), 2**63 - 1),
            optional_bytes,
            optional_bytes,
            st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3),
        ),
        max_size=6,
    ),
    max_size=8,
).filter(any)


@settings(max_examples=150, deadline=None)
@given(
    start=st.integers(0, 2**62),
    parts=batches_of_records,
    target=st.integers(1, 200),
    compression=st.sampled_from(Compression),
)
def test_every_record_comes_back_by_offset_and_by_time(
    start: int,
    parts: list[list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]],
    target: int,
    compression: Compression,
) -> None:
    offset, batches = start, []
    for part in parts:
        batch = []
        for step, timestamp_ms, key, value, headers in part:
            offset += step
            batch.append(Record(offset, timestamp_ms, key, value, tuple(headers)))
        batches.append(batch)
    records = [record for batch in batches for record in batch]
    opened = open_record_file(image_of(batches, compression=compression, block_bytes_target=target))
    assert all_of(opened) == records
    ends = {batch[-1].offset for batch in batches if batch}
    borders = [entry.first_offset for entry in opened.index.entries[1:]]
    assert all(
        max(each.offset for each in records if each.offset < border) in ends for border in borders
    ), "a block ends inside a batch"
    for record in records[:5]:
        assert next(opened.records_from(record.offset)) == record
        found = opened.first_at_time(record.timestamp_ms)
        assert found == next(r for r in records if r.timestamp_ms >= record.timestamp_ms)
    assert opened.first_at_time(2**63) is None


@settings(max_examples=150, deadline=None)
@given(noise=st.binary(max_size=60))
def test_noise_is_refused_or_is_the_one_encoding_of_what_it_reads_as(noise: bytes) -> None:
    try:
        records = list(decode_records(noise, RecordForm.NULLABLE))
    except CorruptedDataError:
        return
    if all("\ufffd" not in name for each in records for name, _ in each.headers):
        assert encode_records(records, RecordForm.NULLABLE) == noise


@pytest.mark.parametrize("compression", list(Compression))
def test_every_flipped_bit_is_found(compression: Compression) -> None:
    batches = [[Record(n, n, b"key", b"the same words " * 4)] for n in range(3)]
    image = bytearray(image_of(batches, compression=compression, block_bytes_target=70))
    assert len(open_record_file(bytes(image)).index.entries) == 3
    for place in range(len(image)):
        for bit in range(8):
            image[place] ^= 1 << bit
            assert damages_of_record_file(bytes(image)), f"{place=} {bit=}"
            image[place] ^= 1 << bit
    assert damages_of_record_file(bytes(image)) == []


def test_a_damaged_block_is_refused_and_its_neighbours_are_read() -> None:
    batches = [[Record(n, n, None, b"%d" % n * 50)] for n in range(3)]
    image = bytearray(image_of(batches, block_bytes_target=50))
    opened = open_record_file(memoryview(image))
    image[opened.index.entries[1].position] ^= 1
    assert opened.block(0) == batches[0]
    with pytest.raises(CorruptedDataError, match="block=1"):
        opened.block(1)
    assert list(opened.records_from(2)) == batches[2]


def test_what_compaction_removes_leaves_the_range_as_it_was() -> None:
    opened = open_record_file(image_of([[RECORDS[1]]], start_offset=900, end_offset=2000))
    assert (opened.header.start_offset, opened.header.end_offset) == (900, 2000)
    assert opened.header.record_count == 1
    for offset in (0, 900, 1001):
        assert list(opened.records_from(offset)) == [RECORDS[1]]
    assert list(opened.records_from(1002)) == list(opened.records_from(5000)) == []


def test_a_batch_larger_than_a_block_is_cut_between_records() -> None:
    value = bytes(BLOCK_BYTES_MAX // 3)
    batch = [Record(number, 0, None, value) for number in range(5)]
    opened = open_record_file(image_of([batch]))
    assert all_of(opened) == batch
    assert all(entry.uncompressed_length <= BLOCK_BYTES_MAX for entry in opened.index.entries)
    one = [Record(0, 0, None, bytes(BLOCK_BYTES_MAX)), Record(1, 0, None, b"behind it")]
    opened = open_record_file(image_of([one]))
    assert all_of(opened) == one
    assert len(opened.index.entries) == 2


@pytest.mark.parametrize(
    ("batches", "start", "end"),
    [
        ([], None, None),
        ([[RECORDS[1]], [RECORDS[0]]], None, None),
        ([[RECORDS[0]]], 1001, None),
        ([[RECORDS[0]]], None, 1000),
    ],
)
def test_what_cannot_be_a_file_is_the_callers_mistake(
    batches: list[list[Record]], start: int | None, end: int | None
) -> None:
    with pytest.raises(ValueError, match=r"record|offset"):
        image_of(batches, start_offset=start, end_offset=end)


def test_the_header_says_whose_the_times_are() -> None:
    flags = parse_header(image_of([[RECORDS[0]]], log_append_time=True)).flags
    assert flags == ChunkFlag.RECORD_TOPIC | ChunkFlag.LOG_APPEND_TIME


def test_names_of_one_partition_sort_as_their_offsets_do() -> None:
    keys = [RecordFileName("t", 0, first, first + 9).key for first in range(0, 5000, 10)]
    assert all(before < behind for before, behind in pairwise(keys))


def read_by_the_example(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(READER), str(path), *options],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("compression", list(Compression))
def test_a_reader_written_from_the_page_alone_reads_the_same(
    tmp_path: Path, compression: Compression
) -> None:
    records = [
        Record(
            5 * n,
            1000 - n,
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 7 == 0 else b"value " * n,
            (("h", None),),
        )
        for n in range(100)
    ]
    image = image_of([[each] for each in records], compression=compression, block_bytes_target=900)
    path = tmp_path / "00000000-00000495.seg"
    path.write_bytes(image)
    rows = [json.loads(line) for line in read_by_the_example(path).stdout.splitlines()]
    assert [
        Record(
            row["offset"],
            row["timestamp"],
            None if row["key"] is None else row["key"].encode(),
            None if row["value"] is None else row["value"].encode(),
            tuple((name, value) for name, value in row["headers"]),
        )
        for row in rows
    ] == records
    later = read_by_the_example(path, "--from", "333").stdout.splitlines()
    assert [json.loads(line)["offset"] for line in later] == list(range(335, 500, 5))
    assert "100 records" in read_by_the_example(path, "--check").stdout
    damaged = bytearray(image)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    checked = read_by_the_example(path, "--check")
    assert checked.returncode == 1
    assert "block 0" in checked.stderr
    assert "the file fails its checksum" in checked.stderr


def test_the_example_takes_a_package_that_is_not_there_for_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.seg"
    records = [Record(0, 0, None, b"value " * 100)]
    path.write_bytes(image_of([records], compression=Compression.ZSTD))
    (tmp_path / "zstandard.py").write_text("raise ModuleNotFoundError('No module named zstandard')")
    done = subprocess.run(
        [sys.executable, str(READER), str(path), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{path}: No module named zstandard\n"


def test_the_example_is_short_enough_to_be_read() -> None:
    assert len(READER.read_text().splitlines()) <= 300
