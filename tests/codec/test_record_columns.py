"""Goal: the columns of batches say what the decoder of batches reads, natively and in Python; both refuse the same."""

import gzip
import struct
from typing import NoReturn

import cramjam
import lz4.frame
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec import record_columns
from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    BatchProblem,
    Compression,
    decode_batches,
    encode_batch,
    place_batch,
    stamp_append_time,
)
from segmentstore.codec.record_columns import (
    PYTHON_LOOPS,
    ColumnLoops,
    Stop,
    all_have_keys,
    columns_of_batches,
    native_loops,
    require_readable,
)
from segmentstore.codec.record_fields import Record

NATIVE = native_loops()
needs_native = pytest.mark.skipif(NATIVE is None, reason="it was not built, or is switched off")
LOOPS = [
    pytest.param(NATIVE, marks=needs_native, id="native"),
    pytest.param(PYTHON_LOOPS, id="python"),
]
TIME = 1_795_000_000_000

contents = st.none() | st.binary(max_size=40) | st.just(b"x" * 200)
records_of_a_batch = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=st.integers(-(2**63), 2**63 - 1),
        key=contents,
        value=contents,
        headers=st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=9,
)


def read_by(loops: ColumnLoops, content: bytes, offset: int) -> tuple[list[Record], int] | str:
    try:
        columns, following = columns_of_batches(content, offset, loops=loops)
    except BatchError as error:
        return str(error)
    return [columns.record(row) for row in range(len(columns))], following


def decoded(content: bytes, offset: int) -> tuple[list[Record], int] | str:
    try:
        return decode_batches(content, offset)
    except BatchError as error:
        return str(error)


@pytest.mark.parametrize("loops", LOOPS)
@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(
        st.tuples(
            records_of_a_batch,
            st.sampled_from(Compression),
            st.none() | st.integers(0, 2**62),
            st.booleans(),
        ),
        max_size=6,
    ),
    offset=st.integers(0, 40),
)
def test_columns_say_what_the_decoder_reads(
    loops: ColumnLoops,
    parts: list[tuple[list[Record], Compression, int | None, bool]],
    offset: int,
) -> None:
    content = b""
    following = 0
    for records, compression, append_time, is_control in parts:
        batch = bytearray(encode_batch(records, compression=compression, is_control=is_control))
        place_batch(batch, following)
        if append_time is not None:
            stamp_append_time(batch, append_time)
        following += len(records)
        content += batch
    assert read_by(loops, content, offset) == decoded(content, offset)


@pytest.mark.parametrize("loops", LOOPS)
def test_more_rows_than_were_expected_find_room(loops: ColumnLoops) -> None:
    records = [Record(n, TIME, None, None) for n in range(5000)]
    content = encode_batch(records[:2500]) + encode_batch(
        records[2500:], base_offset=2500, compression=Compression.ZSTD
    )
    columns, following = columns_of_batches(content, loops=loops)
    assert list(columns.offsets) == list(range(5000))
    assert set(columns.timestamps_ms) == {TIME}
    assert (columns.key(4999), columns.value(0), columns.headers(7), following) == (
        None,
        None,
        (),
        5000,
    )


@pytest.mark.parametrize("loops", LOOPS)
def test_what_is_not_compressed_is_not_copied(loops: ColumnLoops) -> None:
    content = encode_batch([Record(0, TIME, b"key", b"value")])
    assert columns_of_batches(content, loops=loops)[0].content is content
    assert len(columns_of_batches(b"", 9, loops=loops)[0]) == 0
    assert columns_of_batches(b"", 9, loops=loops)[1] == 9


BODY = encode_batch(
    [
        Record(0, TIME, b"key", b"value", (("h", b"1"), ("i", None))),
        Record(1, TIME - 300, None, None),
        Record(2, TIME, b"k" * 70, b"v" * 130),
    ]
)[BATCH_HEADER_BYTES:]


def batch_of(body: bytes, count: int, *, codec: Compression = Compression.NONE) -> bytes:
    """With a checksum that is right; the body is compressed already."""
    checked = struct.pack(">hiqqqhii", codec, count - 1, TIME, TIME, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


@pytest.mark.parametrize("loops", LOOPS)
def test_every_damaged_byte_is_judged_as_by_the_decoder(loops: ColumnLoops) -> None:
    for at in range(len(BODY)):
        for byte in (*(BODY[at] ^ 1 << bit for bit in range(8)), 0x00, 0x7F, 0xFF):
            body = bytearray(BODY)
            body[at] = byte
            whole = batch_of(bytes(body), 3)
            assert read_by(loops, whole, 0) == decoded(whole, 0), (at, byte)
    damaged = bytearray(batch_of(BODY, 3))
    for at in range(8, len(damaged)):
        damaged[at] ^= 1
        assert isinstance(read_by(loops, bytes(damaged), 0), str) or at in range(12, 16), at
        damaged[at] ^= 1


@needs_native
def test_what_is_refused_as_unreadable_is_what_the_decoder_cannot_read() -> None:
    for at in range(len(BODY)):
        for byte in (*(BODY[at] ^ 1 << bit for bit in range(8)), 0x00, 0x7F, 0xFF):
            body = bytearray(BODY)
            body[at] = byte
            whole = batch_of(bytes(body), 3)
            assert refusal_of(whole) == (
                found if isinstance(found := decoded(whole, 0), str) else None
            ), (at, byte)
    for count in (1, 2, 4):
        assert refusal_of(batch_of(BODY, count)) is not None
    for compression in Compression:
        assert (
            refusal_of(encode_batch([Record(0, TIME, b"k", b"v")], compression=compression)) is None
        )


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_offsets_that_no_column_holds_are_refused_as_by_the_decoder(
    loops: ColumnLoops, compression: Compression
) -> None:
    """A base offset is in no checksum: any byte of it may have been changed on the way."""
    batch = bytearray(encode_batch([Record(0, TIME, b"k", b"v")] * 3, compression=compression))
    for behind in range(1, 5):
        place_batch(batch, 2**63 - behind)
        found = read_by(loops, bytes(batch), 0)
        assert found == decoded(bytes(batch), 0)
        assert isinstance(found, str) == (behind < 3)
        require_readable(bytes(batch))  # a producer's, which the server is still to place


@pytest.mark.parametrize("loops", LOOPS)
def test_keys_are_found_by_the_loops_as_by_the_decoder(loops: ColumnLoops) -> None:
    bodies = {BODY, b""}
    for at in range(len(BODY)):
        bodies.add(BODY[:at])
        for byte in (*(BODY[at] ^ 1 << bit for bit in range(8)), 0x00, 0x01, 0x7F, 0x80, 0xFF):
            bodies.add(BODY[:at] + bytes([byte]) + BODY[at + 1 :])
    seen: set[bool | str] = set()
    for body in sorted(bodies):
        for count in (1, 2, 3, 4):
            batch = batch_of(body, count)
            expected: bool | str
            try:
                expected = all(each.key is not None for each in decode_batches(batch)[0])
            except BatchError as error:
                expected = str(error)
            found: bool | str
            try:
                found = all_have_keys(batch, bytes_max=0, loops=loops)
            except BatchError as error:
                found = str(error)
            assert found == expected, (body, count)
            seen.add(found if isinstance(found, bool) else "refused")
    assert seen == {True, False, "refused"}


@needs_native
@pytest.mark.parametrize("compression", Compression)
def test_no_record_of_many_is_looked_at_by_the_slow_loop(
    compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a second for a megabyte, and servers read batches on their loops."""
    whole = encode_batch([Record(0, TIME, b"k", b"v" * 20)] * 5_000)
    body = bytearray(whole[BATCH_HEADER_BYTES:])
    body[-1] = 0x7F  # so many headers
    content = {
        Compression.NONE: bytes,
        Compression.GZIP: gzip.compress,
        Compression.SNAPPY: cramjam.snappy.compress_raw,
        Compression.LZ4: lz4.frame.compress,
        Compression.ZSTD: zstandard.compress,
    }[compression](body)
    damaged = batch_of(bytes(content), 5_000, codec=compression)

    def looked(*_arguments: object, **_more: object) -> NoReturn:
        raise AssertionError("records are looked at one by one")

    monkeypatch.setattr(record_columns, "records_to_columns_in_python", looked)
    monkeypatch.setattr(record_columns, "decode_batch", looked)
    with pytest.raises(BatchError, match="contradict") as refused:
        columns_of_batches(damaged)
    assert refused.value.problem is BatchProblem.INVALID
    if compression is Compression.NONE:
        with pytest.raises(BatchError, match="contradict"):
            require_readable(damaged)
    require_readable(whole)


def refusal_of(batch: bytes) -> str | None:
    try:
        require_readable(batch)
    except BatchError as error:
        return str(error)
    return None


@pytest.mark.parametrize("loops", LOOPS)
@settings(max_examples=150, deadline=None)
@given(noise=st.binary(max_size=80), count=st.integers(1, 4))
def test_noise_is_judged_as_by_the_decoder(loops: ColumnLoops, noise: bytes, count: int) -> None:
    whole = batch_of(noise, count)
    assert read_by(loops, whole, 0) == decoded(whole, 0)
    assert isinstance(read_by(loops, noise, 0), tuple) == (not noise)


@needs_native
def test_the_native_loops_stay_in_their_columns() -> None:
    assert NATIVE is not None
    content = encode_batch([Record(n, TIME, b"k", b"v") for n in range(5)])
    for rows in range(9):
        numbers = bytearray(b"\xee" * 64 * rows)
        stop, at, told, _ = NATIVE.batches_to_columns(content, 0, 0, numbers, 0)
        assert (stop, at, told) == (
            (Stop.DONE, len(content), 5) if rows >= 5 else (Stop.FULL, 0, 0)
        )
    for position, row in ((-1, 0), (len(content) + 1, 0), (0, 1), (0, -1)):
        with pytest.raises(ValueError, match="outside"):
            NATIVE.batches_to_columns(content, position, 0, bytearray(), row)
