"""Batches of records: bytes laid out by hand, round trips of every codec, and damage of every kind."""

import contextlib
import gzip
import struct
import time
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    BatchProblem,
    Compression,
    Record,
    TimestampType,
    add_to_sequence,
    check_batch,
    decode_batch,
    decode_batches,
    decompress,
    encode_batch,
    parse_header,
    place_batch,
    placed_copy,
    stamp_append_time,
    stamp_producer,
)

TIME = 1_700_000_000_000

RECORD_BYTES_BY_HAND = [
    # 15 bytes: attributes, time +0, offset +0, key "k", value "hello", one header "h": null
    bytes.fromhex("1e 00 00 00 02 6b 0a 68656c6c6f 02 02 68 01"),
    # 6 bytes: attributes, time -3, offset +1, no key, a value of no bytes, no headers
    bytes.fromhex("0c 00 05 02 01 00 00"),
    # 9 bytes: attributes, time +300, offset +2, key "ab", no value, no headers
    bytes.fromhex("12 00 d804 04 04 6162 01 00"),
]
RECORDS_BY_HAND = b"".join(RECORD_BYTES_BY_HAND)
"""Three records, written by hand from the table."""

THREE = [
    Record(7, TIME, b"k", b"hello", (("h", None),)),
    Record(8, TIME - 3, None, b""),
    Record(9, TIME + 300, b"ab", None),
]


def crc32c_by_bits(data: bytes) -> int:
    """The definition of Castagnoli's checksum, bit by bit: another program than the one under test."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def batch_by_hand(
    body: bytes,
    *,
    attributes: int = 0,
    count: int = 3,
    last_delta: int = 2,
    producer: tuple[int, int, int] = (-1, -1, -1),
    max_timestamp: int = TIME + 300,
) -> bytes:
    checked = (
        struct.pack(">hiqq", attributes, last_delta, TIME, max_timestamp)
        + struct.pack(">qhi", *producer)
        + struct.pack(">i", count)
        + body
    )
    return struct.pack(">qiibI", 7, len(checked) + 9, -1, 2, crc32c_by_bits(checked)) + checked


contents = st.none() | st.binary(max_size=40)
records = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_ms=st.integers(-(1 << 40), 1 << 45),
        key=contents,
        value=contents,
        headers=st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def numbered(given_records: list[Record], base_offset: int) -> list[Record]:
    return [
        Record(base_offset + i, r.timestamp_ms, r.key, r.value, r.headers)
        for i, r in enumerate(given_records)
    ]


def test_a_batch_is_what_the_table_says() -> None:
    expected = batch_by_hand(RECORDS_BY_HAND)
    assert encode_batch(THREE, base_offset=7).hex() == expected.hex()
    assert decode_batch(expected) == THREE
    header = check_batch(expected)
    assert (header.base_offset, header.next_offset, header.record_count) == (7, 10, 3)
    assert (header.size, header.leader_epoch) == (len(expected), -1)
    assert (header.base_timestamp, header.max_timestamp) == (TIME, TIME + 300)
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not any((header.is_control, header.is_transactional, header.has_producer))


@given(
    given_records=records,
    compression=st.sampled_from(Compression),
    base_offset=st.integers(0, 1 << 62),
    producer=st.tuples(
        st.integers(0, 1 << 62), st.integers(0, 32767), st.integers(0, (1 << 31) - 1)
    ),
)
def test_records_come_back_from_every_codec(
    given_records: list[Record],
    compression: Compression,
    base_offset: int,
    producer: tuple[int, int, int],
) -> None:
    batch = encode_batch(
        given_records,
        compression=compression,
        base_offset=base_offset,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    assert decode_batch(batch) == numbered(given_records, base_offset)
    header = check_batch(memoryview(batch))
    assert header.compression is compression
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert header.last_sequence == add_to_sequence(producer[2], len(given_records) - 1)
    assert header.max_timestamp == max(r.timestamp_ms for r in given_records)


@pytest.mark.parametrize("compression", Compression)
def test_records_of_megabytes_come_back_from_every_codec(compression: Compression) -> None:
    """Blocks of xerial and frames of LZ4 are many then."""
    large = [Record(0, TIME, b"k", bytes(range(256)) * 4000), Record(1, TIME, None, b"x" * 300_000)]
    batch = encode_batch(large, compression=compression)
    assert decode_batch(batch) == large
    assert (len(batch) < 800_000) == (compression is not Compression.NONE)


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        (1, gzip.compress(RECORDS_BY_HAND, mtime=0)),
        (
            1,
            gzip.compress(RECORDS_BY_HAND[:5], mtime=0)
            + gzip.compress(RECORDS_BY_HAND[5:], mtime=0),
        ),
        (2, bytes(cramjam.snappy.compress_raw(RECORDS_BY_HAND))),
        (3, lz4.frame.compress(RECORDS_BY_HAND, store_size=False)),
        (3, lz4.frame.compress(RECORDS_BY_HAND, content_checksum=True, store_size=True)),
        (3, lz4.frame.compress(RECORDS_BY_HAND[:5]) + lz4.frame.compress(RECORDS_BY_HAND[5:])),
        (4, zstandard.ZstdCompressor(write_content_size=False).compress(RECORDS_BY_HAND)),
        (4, zstandard.compress(RECORDS_BY_HAND[:5]) + zstandard.compress(RECORDS_BY_HAND[5:])),
    ],
)
def test_each_framing_that_clients_send_is_read(codec: int, body: bytes) -> None:
    assert decode_batch(batch_by_hand(body, attributes=codec)) == THREE


def test_snappy_of_xerial_is_read_block_by_block() -> None:
    body = bytes.fromhex("82534e4150505900 00000001 00000001")
    for piece in (RECORDS_BY_HAND[:9], RECORDS_BY_HAND[9:]):
        block = bytes(cramjam.snappy.compress_raw(piece))
        body += struct.pack(">i", len(block)) + block
    assert decode_batch(batch_by_hand(body, attributes=2)) == THREE
    ours = encode_batch(THREE, compression=Compression.SNAPPY)
    assert ours[BATCH_HEADER_BYTES:].hex().startswith("82534e41505059000000000100000001")


@pytest.mark.parametrize("compression", Compression)
def test_every_flipped_bit_is_found(compression: Compression) -> None:
    batch = encode_batch(THREE, compression=compression, base_offset=7, producer_id=1,
                         producer_epoch=0, base_sequence=5)  # fmt: skip
    servers_own = {*range(8), *range(12, 16)}
    for at in range(len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[at] ^= 1 << bit
            if at in servers_own:
                check_batch(damaged)
                continue
            with pytest.raises(BatchError):
                check_batch(damaged)
            with pytest.raises(BatchError):
                decode_batch(damaged)


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_is_cut_or_longer_is_found(compression: Compression) -> None:
    batch = encode_batch(THREE, compression=compression)
    for length in range(len(batch)):
        with pytest.raises(BatchError) as refused:
            check_batch(batch[:length])
        assert refused.value.problem is BatchProblem.INVALID
    with pytest.raises(BatchError):
        check_batch(batch + b"\0")
    with pytest.raises(BatchError):
        check_batch(batch + batch)


@settings(max_examples=150)
@given(body=st.binary(max_size=80), codec=st.integers(0, 4), count=st.integers(1, 5))
def test_bytes_that_are_no_records_never_raise_another_error(
    body: bytes, codec: int, count: int
) -> None:
    batch = bytearray(batch_by_hand(body, attributes=codec, count=count, last_delta=count - 1))
    check_batch(batch)
    with contextlib.suppress(BatchError):
        assert len(decode_batch(batch)) == count


@settings(max_examples=150)
@given(data=st.binary(max_size=120))
def test_bytes_that_are_no_batch_never_raise_another_error(data: bytes) -> None:
    with pytest.raises(BatchError):
        check_batch(data)


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
def test_compressed_records_that_are_cut_are_found(compression: Compression) -> None:
    whole = encode_batch(THREE, compression=compression)[BATCH_HEADER_BYTES:]
    for length in range(len(whole) - 8):
        with pytest.raises(BatchError):
            decode_batch(batch_by_hand(whole[:length], attributes=compression))


@pytest.mark.parametrize("compression", Compression)
def test_what_is_decompressed_is_bounded(compression: Compression) -> None:
    batch = encode_batch([Record(0, TIME, None, bytes(1_000_000))], compression=compression)
    with pytest.raises(BatchError, match="too long"):
        decode_batch(batch, bytes_max=100_000)
    assert decode_batch(batch, bytes_max=1_000_100)[0].value == bytes(1_000_000)


@pytest.mark.parametrize("compress", [gzip.compress, lz4.frame.compress], ids=["gzip", "lz4"])
def test_many_members_and_frames_are_read_in_time_that_grows_with_their_bytes(
    compress: Callable[[bytes], bytes],
) -> None:
    """What is behind one of them is not copied for it: that took 10 s and more for these."""
    piece = RECORDS_BY_HAND[:15] + bytes(1009)
    count = 80_000
    codec = Compression.GZIP if compress is gzip.compress else Compression.LZ4
    began = time.thread_time()
    content = decompress(memoryview(compress(piece) * count), codec)
    assert time.thread_time() - began < 6
    assert content == piece * count


@pytest.mark.parametrize("compression", Compression)
def test_what_is_told_of_batches_at_once_is_bounded_and_the_next_call_goes_on(
    compression: Compression,
) -> None:
    every = [Record(3 * n, TIME, b"%d" % n, b"v" * 500) for n in range(100)]
    every.append(Record(300, TIME, None, bytes(100_000)))
    content = b"".join(
        encode_batch(every[start : start + 40], compression=compression, keeps_offsets=True)
        for start in range(0, len(every), 40)
    )
    assert decode_batches(content) == (every, 301)
    told: list[Record] = []
    offset, calls = 0, 0
    while offset < 301:
        some, offset = decode_batches(content, offset, told_bytes_max=20_000)
        assert some, "a call tells one record at least"
        assert sum(len(each.value or b"") for each in some[:-1]) < 20_000
        told += some
        calls += 1
    assert told == every
    assert calls >= 3


@pytest.mark.parametrize("compression", Compression)
def test_of_a_batch_that_is_damaged_behind_what_would_be_told_nothing_is(
    compression: Compression,
) -> None:
    whole = encode_batch(THREE, compression=Compression.NONE)[BATCH_HEADER_BYTES:]
    body = compressed_by(whole[:-1] + b"\x02", compression)
    with pytest.raises(BatchError):
        decode_batches(batch_by_hand(body, attributes=compression), told_bytes_max=1)


def compressed_by(records_bytes: bytes, compression: Compression) -> bytes:
    """Some bytes as the records of a batch have them behind its header."""
    match compression:
        case Compression.NONE:
            return records_bytes
        case Compression.GZIP:
            return gzip.compress(records_bytes)
        case Compression.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(records_bytes))
        case Compression.LZ4:
            compressed: bytes = lz4.frame.compress(records_bytes)
            return compressed
        case Compression.ZSTD:
            return zstandard.compress(records_bytes)


def test_a_snappy_block_that_promises_much_gets_no_memory() -> None:
    promise = bytes.fromhex("ffffffff0f") + b"\x00a"
    with pytest.raises(BatchError, match="too long"):
        decode_batch(batch_by_hand(promise, attributes=2))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"count": 0, "last_delta": -1}, BatchProblem.INVALID),
        ({"count": -1, "last_delta": -2}, BatchProblem.INVALID),
        ({"last_delta": 3}, BatchProblem.INVALID),
        ({"count": 2}, BatchProblem.INVALID),
        ({"attributes": 5}, BatchProblem.UNKNOWN_COMPRESSION),
        ({"attributes": 7}, BatchProblem.UNKNOWN_COMPRESSION),
        ({"producer": (4, -1, 0)}, BatchProblem.INVALID),
        ({"producer": (4, 0, -1)}, BatchProblem.INVALID),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    change: dict[str, int], problem: BatchProblem
) -> None:
    batch = batch_by_hand(RECORDS_BY_HAND, **change)  # type: ignore[arg-type] # by name
    with pytest.raises(BatchError) as refused:
        check_batch(batch)
    assert refused.value.problem is problem


def test_a_sequence_without_a_producer_means_nothing() -> None:
    """aiokafka sends 0 there."""
    assert not check_batch(batch_by_hand(RECORDS_BY_HAND, producer=(-1, -1, 0))).has_producer


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_known(magic: int) -> None:
    old = struct.pack(">qiIbb", 0, 14, zlib.crc32(b""), magic, 0) + struct.pack(">ii", -1, -1)
    with pytest.raises(BatchError) as refused:
        check_batch(old)
    assert refused.value.problem is BatchProblem.OLD_FORMAT
    with pytest.raises(BatchError) as refused:
        check_batch(bytes(16) + b"\x03" + bytes(60))
    assert refused.value.problem is BatchProblem.INVALID


@pytest.mark.parametrize(
    "body",
    [
        RECORDS_BY_HAND + b"\0",
        RECORDS_BY_HAND[:-1],
        b"\x0d" + RECORDS_BY_HAND[1:],
        bytes.fromhex("0c000002010000")
        + bytes.fromhex("0c000002010000")
        + bytes.fromhex("0c000004010000"),
        bytes.fromhex("0c000000010000")
        + bytes.fromhex("0c000002010000")
        + bytes.fromhex("0c000006010000"),
        bytes.fromhex("0c000000050000")
        + bytes.fromhex("0c000002010000")
        + bytes.fromhex("0c000004010000"),
    ],
    ids=["longer", "cut", "negative", "same offset", "behind the last", "length of -3"],
)
def test_records_that_contradict_the_header_are_refused(body: bytes) -> None:
    with pytest.raises(BatchError) as refused:
        decode_batch(batch_by_hand(body))
    assert refused.value.problem is BatchProblem.INVALID


def test_a_batch_out_of_which_records_were_removed_is_read() -> None:
    """Producers may not send one; a stored one may have become so."""
    body = RECORD_BYTES_BY_HAND[0] + RECORD_BYTES_BY_HAND[2]
    batch = batch_by_hand(body, count=2, last_delta=2)
    assert decode_batch(batch) == [THREE[0], THREE[2]]
    with pytest.raises(BatchError):
        check_batch(batch)


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_is_placed_without_a_look_at_its_records(compression: Compression) -> None:
    sent = encode_batch(THREE, compression=compression, base_offset=0, leader_epoch=3)
    placed = bytearray(sent)
    place_batch(placed, 1 << 40)
    assert placed_copy(memoryview(sent), 1 << 40) == placed
    assert [r.offset for r in decode_batch(placed)] == [(1 << 40) + i for i in range(3)]
    assert check_batch(placed).leader_epoch == -1
    assert placed[8:12] == sent[8:12]
    assert placed[16:] == sent[16:]


@pytest.mark.parametrize("compression", Compression)
def test_the_time_of_the_append_becomes_the_time_of_every_record(compression: Compression) -> None:
    batch = bytearray(encode_batch(THREE, compression=compression, base_offset=7))
    stamp_append_time(batch, TIME + 5)
    header = check_batch(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.max_timestamp, header.compression) == (TIME + 5, compression)
    assert [r.timestamp_ms for r in decode_batch(batch)] == [TIME + 5] * 3
    assert (
        batch[BATCH_HEADER_BYTES:]
        == encode_batch(THREE, compression=compression)[BATCH_HEADER_BYTES:]
    )


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_is_given_to_a_producer_as_if_it_had_made_it(compression: Compression) -> None:
    producer, epoch, sequence = 1 << 62, 32_767, (1 << 31) - 1
    batch = bytearray(encode_batch(THREE, compression=compression))
    stamp_producer(batch, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    assert batch == encode_batch(
        THREE,
        compression=compression,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    assert check_batch(batch).has_producer


def test_a_header_is_read_anywhere_and_without_its_records() -> None:
    batch = batch_by_hand(RECORDS_BY_HAND)
    assert parse_header(b"before" + batch[:BATCH_HEADER_BYTES], 6) == check_batch(batch)
    with pytest.raises(BatchError):
        parse_header(batch, len(batch) - 10)


def test_sequences_go_on_at_zero() -> None:
    assert add_to_sequence((1 << 31) - 1, 1) == 0
    assert add_to_sequence((1 << 31) - 2, 5) == 3


def test_what_does_not_fit_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])
    with pytest.raises(ValueError, match="does not fit"):
        encode_batch(THREE, producer_id=1 << 63)
    with pytest.raises(ValueError, match="64 bits"):
        encode_batch([Record(0, 0, None, None), Record(0, 1 << 63, None, None)])
