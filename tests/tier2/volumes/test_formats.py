"""The bytes of everything that lies on a disk: golden samples, round trips, and refusals."""

import contextlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import SystemFileSystem
from tests.tier2.volumes.one_record import encode_record
from tier2.volumes.index import (
    BlobRow,
    ObjectRow,
    VolumeRow,
    decode_blob_row,
    decode_object_row,
    decode_staged_row,
    decode_volume_row,
    encode_blob_row,
    encode_object_row,
    encode_staged_row,
    encode_volume_row,
    version_id_key,
    version_key,
)
from tier2.volumes.objects import IndexRecord, RetentionMode
from tier2.volumes.volume_files import DamagedStretch, ScannedRecord, VolumeScan
from tier2.volumes.volume_format import (
    ALIGNMENT,
    RECORD_HEADER_BYTES,
    VOLUME_HEADER_BYTES,
    BatchRecord,
    RecordKind,
    VolumeHeader,
    decode_index_record,
    decode_record_header,
    decode_volume_header,
    encode_index_record,
    encode_records,
    encode_volume_header,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "volumes_v1.hex"
SECRET = 0x1122334455667788

RECORD = IndexRecord(
    size=600,
    sequence=7,
    oldest=5,
    content_hash=bytes(range(32)),
    etag="0123456789abcdef",
    created_ms=1_700_000_000_123,
    piece_bytes=256,
    pieces=(1, 2, 3),
    content_type="text/plain",
    metadata={"farbe": "grün", "empty": ""},
    version_id="v-1",
    retention_mode=RetentionMode.COMPLIANCE,
    retain_until_ms=1_800_000_000_000,
    legal_hold=True,
    versioned=True,
)
HEADER = VolumeHeader(
    number=42,
    secret=SECRET,
    created_ms=1_700_000_000_000,
    engine_id=b"engine-id-16-byt",
    sequence_first=6,
)


def record_bytes(kind: RecordKind, blob: bytes, left: int = 0) -> bytes:
    return b"".join(
        encode_record(
            secret=SECRET,
            kind=kind,
            timestamp_ms=1_700_000_000_123,
            sequence=9,
            key=b"bucket/key",
            index_record=encode_index_record(RECORD),
            blob=[blob[:100], blob[100:]] if blob else (),
            batch_left=left,
        )
    )


def samples() -> dict[str, bytes]:
    return {
        "volume header": encode_volume_header(HEADER),
        "index record": encode_index_record(RECORD),
        "put": record_bytes(RecordKind.PUT, b"b" * 600, 3),
        "tombstone": record_bytes(RecordKind.TOMBSTONE, b""),
        "object row": encode_object_row(ObjectRow(3, 64, 200, RECORD)),
        "blob row": encode_blob_row(BlobRow(3, 64, 300, 600, 2)),
        "volume row": encode_volume_row(VolumeRow(9000, 800, 5, 9, 150, 5)),
        "staged row": encode_staged_row(9, ObjectRow(3, 64, 200, RECORD)),
        "version key": version_key(b"bucket/key", 7),
        "version id key": version_id_key(b"bucket/key", "v-1"),
    }


def test_the_bytes_on_disk_are_those_of_the_golden_samples() -> None:
    found = "".join(f"{name}: {content.hex()}\n" for name, content in samples().items())
    assert found == GOLDEN.read_text()


def test_golden_samples_read_back() -> None:
    found = samples()
    assert decode_volume_header(found["volume header"]) == HEADER
    assert decode_index_record(found["index record"]) == RECORD
    assert decode_record_header(found["put"], SECRET).batch_left == 3
    assert decode_record_header(found["tombstone"], SECRET).is_deleted
    assert decode_object_row(found["object row"]).record == RECORD
    assert decode_blob_row(found["blob row"]) == BlobRow(3, 64, 300, 600, 2)
    assert decode_volume_row(found["volume row"]) == VolumeRow(9000, 800, 5, 9, 150, 5)
    assert decode_staged_row(found["staged row"]) == (9, ObjectRow(3, 64, 200, RECORD))


numbers = st.integers(0, (1 << 64) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def index_records(draw: st.DrawFn) -> IndexRecord:
    size = draw(st.integers(0, 5000))
    piece = draw(st.integers(1, 2000))
    count = -(-size // piece)
    return IndexRecord(
        size=size,
        sequence=draw(numbers),
        oldest=draw(numbers),
        content_hash=draw(st.binary(min_size=32, max_size=32)),
        etag=draw(texts),
        created_ms=draw(numbers),
        piece_bytes=piece,
        pieces=tuple(draw(st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count))),
        content_type=draw(texts),
        metadata=draw(st.dictionaries(texts, texts, max_size=4)),
        version_id=draw(texts),
        retention_mode=draw(st.sampled_from([None, *RetentionMode])),
        retain_until_ms=draw(numbers),
        legal_hold=draw(st.booleans()),
        versioned=draw(st.booleans()),
        inline=draw(st.booleans()),
    )


@settings(max_examples=100, deadline=None)
@given(index_records())
def test_any_index_record_reads_back(record: IndexRecord) -> None:
    record.check()
    assert decode_index_record(encode_index_record(record)) == record


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(RecordKind),
            numbers,
            st.binary(max_size=30),
            st.binary(max_size=30),
            st.lists(st.binary(max_size=9) | st.just(bytes(20_000)), max_size=3),
        ),
        max_size=6,
    )
)
def test_the_records_of_a_group_are_those_of_one_after_the_other(
    given_records: list[tuple[RecordKind, int, bytes, bytes, list[bytes]]],
) -> None:
    expected: list[BufferView] = []
    records: list[BatchRecord] = []
    for number, (kind, sequence, key, indexed, blob) in enumerate(given_records):
        records.append((kind, sequence, key, indexed, blob))
        expected += encode_record(
            secret=SECRET,
            kind=kind,
            timestamp_ms=5,
            sequence=sequence,
            key=key,
            index_record=indexed,
            blob=blob,
            batch_left=len(given_records) - number - 1,
        )
    found = encode_records(records, secret=SECRET, timestamp_ms=5)
    assert b"".join(found) == b"".join(expected)


@settings(max_examples=100, deadline=None)
@given(index_records(), st.binary(max_size=40), numbers, numbers)
def test_any_row_reads_back(record: IndexRecord, inline: bytes, one: int, other: int) -> None:
    row = ObjectRow(7, one, other, record, inline if record.inline else None)
    assert decode_object_row(encode_object_row(row)) == row
    assert decode_staged_row(encode_staged_row(one, row)) == (one, row)
    assert decode_staged_row(encode_staged_row(one, None)) == (one, None)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_refused_in_words(content: bytes) -> None:
    for decode in (decode_index_record, decode_object_row, decode_blob_row, decode_volume_row):
        with contextlib.suppress(CorruptedDataError):
            decode(content)
    with pytest.raises(CorruptedDataError):
        decode_record_header(content.ljust(RECORD_HEADER_BYTES, b"\0"), SECRET)
    with pytest.raises(CorruptedDataError):
        decode_volume_header(content.ljust(VOLUME_HEADER_BYTES, b"\0"))


def test_any_flipped_bit_of_a_record_is_noticed(tmp_path: Path) -> None:
    whole = record_bytes(RecordKind.PUT, b"b" * 70)
    padding = -(RECORD_HEADER_BYTES + decode_record_header(whole, SECRET).body_length) % ALIGNMENT
    file = SystemFileSystem().open(str(tmp_path / "volume"), create=True)
    header = encode_volume_header(HEADER)
    for place in range((len(whole) - padding) * 8):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_at(0, [header, bytes(flipped)])
        size = len(header) + len(whole)
        items = list(VolumeScan(file, secret=SECRET, size=size, offset=0))
        assert all(isinstance(one, DamagedStretch) for one in items), place
    file.close()


def test_texts_that_are_too_long_are_refused() -> None:
    with pytest.raises(InvalidRequestError):
        encode_index_record(replace(RECORD, etag="e" * 70_000))


@pytest.mark.parametrize("seed", range(20))
def test_h71_a_scan_goes_on_behind_damage_and_takes_no_stored_bytes_for_records(
    tmp_path: Path, seed: int
) -> None:
    """Blobs hold records of another secret, and of this one's past; some records are damaged."""
    random = Random(seed)
    foreign = b"".join(
        encode_record(
            secret=SECRET + 1,
            kind=RecordKind.PUT,
            timestamp_ms=1,
            sequence=99,
            key=b"impostor",
            index_record=encode_index_record(RECORD),
        )
    )
    content = bytearray(encode_volume_header(HEADER))
    offsets: list[tuple[int, int]] = []
    for _ in range(12):
        blob = foreign * random.randrange(4) + b"S4rc" * random.randrange(3)
        record = record_bytes(RecordKind.PUT, blob)
        offsets.append((len(content), len(record)))
        content += record
    damaged = set(random.sample(range(12), 3))
    for number in damaged:
        offset, length = offsets[number]
        place = random.choice((random.randrange(48), random.randrange(length - 8)))
        content[offset + place] ^= 0x10
    file = SystemFileSystem().open(str(tmp_path / "volume"), create=True)
    file.write_at(0, [bytes(content)])
    items = list(VolumeScan(file, secret=SECRET, size=len(content), offset=0))
    file.close()
    good = [one.offset for one in items if isinstance(one, ScannedRecord)]
    assert good == [offset for n, (offset, _) in enumerate(offsets) if n not in damaged]
    lost = sum(one.length for one in items if isinstance(one, DamagedStretch))
    assert lost == sum(length for n, (_, length) in enumerate(offsets) if n in damaged)


def _outcome(decode: Callable[[bytes], IndexRecord], content: bytes) -> IndexRecord | None:
    try:
        return decode(content)
    except (CorruptedDataError, struct.error, UnicodeDecodeError):
        return None


@pytest.mark.parametrize("type_length", [0, 1, 24, 100, 101])
@pytest.mark.parametrize("etag_length", [0, 31, 32, 33])
def test_a_damaged_index_record_is_another_one_or_none(type_length: int, etag_length: int) -> None:
    record = replace(
        RECORD,
        size=200,
        pieces=(7,),
        etag="e" * etag_length,
        content_type="t" * type_length,
        metadata={},
        version_id="",
    )
    encoded = encode_index_record(record)
    assert decode_index_record(encoded) == record
    for position in range(len(encoded)):
        for flip in (1, 2, 128, 255):
            damaged = bytearray(encoded)
            damaged[position] ^= flip
            assert _outcome(decode_index_record, bytes(damaged)) != record, (position, flip)
    for cut in (encoded[:-1], encoded + b"\0"):
        assert _outcome(decode_index_record, cut) is None
