"""Goal: records come through from batches to files and back as they are, natively and in Python to the same byte, and
no damage makes either of them read or write what is not theirs.

Method: the loops of both kinds make images of the same batches, of every client's codec; what they read as is compared
with the plain decoder of batches. Then bytes are damaged one by one, under checksums that are made right again.
"""

import struct
from collections.abc import Callable, Sequence
from random import Random

import pytest
from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchError,
    BatchProblem,
    Compression,
    batch_size,
    decode_batches,
    encode_batch,
    parse_header,
    place_batch,
    stamp_append_time,
)
from segmentstore.codec.record_fields import Record
from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.format.record_images import make_record_file
from tier2.format import chunk_format
from tier2.format.block import decode_block
from tier2.format.chunk_format import ChunkFlag
from tier2.format.image_memory import ImageMemory
from tier2.format.record_file import (
    RecordFileBuilder,
    RecordFileImage,
    open_record_file,
)
from tier2.format.record_transcoding import (
    PYTHON_LOOPS,
    BlockSums,
    RecordLoops,
    RecordsPlace,
    Stop,
    batches_of_block,
    facts_of_block,
    native_loops,
)
from tier2.format.records import RecordForm, decode_records, encode_records

NATIVE = native_loops()
needs_native = pytest.mark.skipif(NATIVE is None, reason="it was not built, or is switched off")
LOOPS = [
    pytest.param(NATIVE, marks=needs_native, id="native"),
    pytest.param(PYTHON_LOOPS, id="python"),
]
TIME = 1_795_000_000_000
BYTES_MAX = 256 << 10

contents = st.none() | st.binary(max_size=40) | st.just(b"x" * 200)
times = (
    st.integers(TIME - 5, TIME + 5)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([-(2**63), 2**63 - 1])
)
rows = st.tuples(
    st.sampled_from([1, 1, 1, 2, 1000]),
    times,
    contents,
    contents,
    st.lists(st.tuples(st.text(max_size=5), contents), max_size=3),
)
batches_of_rows = st.lists(
    st.tuples(
        st.lists(rows, min_size=1, max_size=8),
        st.sampled_from(Compression),
        st.none() | times,
    ),
    min_size=1,
    max_size=8,
)


def encoded(
    start: int,
    parts: Sequence[
        tuple[
            list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
            Compression,
            int | None,
        ]
    ],
) -> bytes:
    """Batches with gaps inside and between them."""
    whole = b""
    offset = start
    for part, compression, append_time in parts:
        records = []
        for step, time_ms, key, value, headers in part:
            offset += step
            records.append(Record(offset, time_ms, key, value, tuple(headers)))
        batch = bytearray(encode_batch(records, compression=compression, keeps_offsets=True))
        if append_time is not None:
            stamp_append_time(batch, append_time)
        whole += batch
    return whole


def made(
    batches: bytes,
    loops: RecordLoops,
    *,
    target: int = 1 << 20,
    log_append_time: bool = False,
) -> RecordFileImage:
    return make_record_file(
        batches,
        compression=chunk_format.Compression.LZ4,
        created_ms=7,
        log_append_time=log_append_time,
        block_bytes_target=target,
        loops=loops,
    )


USED_MEMORY = ImageMemory(1)
USED_MEMORY.write(0, b"of an image before" * 100)


def made_in_pieces(
    batches: bytes,
    loops: RecordLoops,
    piece_batches: int,
    *,
    target: int,
    log_append_time: bool,
) -> RecordFileImage:
    """So many batches at a time, each time in the same buffer, into memory that was used before."""
    builder = RecordFileBuilder(
        USED_MEMORY,
        compression=chunk_format.Compression.LZ4,
        block_bytes_target=target,
        loops=loops,
    )
    buffer = bytearray(len(batches))
    at = begin = count = 0
    while at < len(batches):
        at += batch_size(memoryview(batches), at)
        count += 1
        if count % piece_batches == 0 or at == len(batches):
            buffer[: at - begin] = batches[begin:at]
            builder.add(memoryview(buffer)[: at - begin])
            buffer[:] = b"\xff" * len(buffer)
            begin = at
    return builder.finish(created_ms=7, log_append_time=log_append_time)


def blocks_of(image: RecordFileImage) -> list[tuple[bytes, chunk_format.BlockEntry]]:
    """The bytes of each block, and its entry."""
    whole = memoryview(b"".join(image.buffers))
    return [
        (bytes(decode_block(entry, whole[entry.position : entry.end_position])), entry)
        for entry in open_record_file(whole).index.entries
    ]


def everything_of(image: RecordFileImage) -> tuple[bytes, list[object]]:
    return b"".join(image.buffers), [
        image.size,
        image.first_offset,
        image.end_offset,
        image.record_count,
        image.lowest_time_ms,
        image.highest_time_ms,
        image.unreadable,
    ]


@settings(max_examples=150, deadline=None)
@given(
    start=st.integers(0, 2**62),
    parts=batches_of_rows,
    target=st.integers(1, 400),
    log_append_time=st.booleans(),
    batch_bytes_max=st.integers(0, 500),
    piece_batches=st.integers(1, 4),
)
def test_records_come_through_both_turns_and_both_kinds_of_loops_are_one(
    start: int,
    parts: list[
        tuple[
            list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
            Compression,
            int | None,
        ]
    ],
    target: int,
    log_append_time: bool,
    batch_bytes_max: int,
    piece_batches: int,
) -> None:
    batches = encoded(start, parts)
    records, end = decode_batches(batches)
    image = made(batches, PYTHON_LOOPS, target=target, log_append_time=log_append_time)
    assert (image.first_offset, image.end_offset) == (records[0].offset, end)
    assert image.record_count == len(records)
    assert image.lowest_time_ms == min(each.timestamp_ms for each in records)
    assert image.highest_time_ms == max(each.timestamp_ms for each in records)
    opened = open_record_file(b"".join(image.buffers))
    assert list(opened.records_from(0)) == records
    if NATIVE is not None:
        same = made(batches, NATIVE, target=target, log_append_time=log_append_time)
        assert everything_of(same) == everything_of(image)
    for loops in (PYTHON_LOOPS, NATIVE or PYTHON_LOOPS):
        in_pieces = made_in_pieces(
            batches, loops, piece_batches, target=target, log_append_time=log_append_time
        )
        assert everything_of(in_pieces) == everything_of(image)
    again: list[Record] = []
    for content, entry in blocks_of(image):
        assert content == encode_records(
            decode_records(content, RecordForm.NULLABLE), RecordForm.NULLABLE
        )
        turned = batches_of_block(
            content,
            entry,
            opened.header.flags,
            batch_bytes_max=batch_bytes_max,
            loops=PYTHON_LOOPS,
        )
        if NATIVE is not None:
            assert turned == batches_of_block(
                content,
                entry,
                opened.header.flags,
                batch_bytes_max=batch_bytes_max,
                loops=NATIVE,
            )
        found, _ = decode_batches(turned)
        again += found
        at = 0
        while at < len(turned):
            header = parse_header(turned, at)
            assert not header.has_producer
            assert (header.producer_epoch, header.base_sequence) == (-1, -1)
            assert (header.append_time is not None) == log_append_time
            assert header.size <= batch_bytes_max or header.record_count == 1
            at += header.size
    assert again == records


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("compression", Compression)
def test_a_block_is_turned_into_the_batch_that_a_producer_would_have_sent(
    loops: RecordLoops, compression: Compression
) -> None:
    records = [
        Record(7 + n, TIME + (n * 37) % 11, b"k%d" % n, b"v" * n, (("h", None),)) for n in range(99)
    ]
    sent = encode_batch(records, compression=compression, base_offset=7)
    ((content, entry),) = blocks_of(made(sent, loops))
    turned = batches_of_block(content, entry, ChunkFlag(0), batch_bytes_max=1 << 20, loops=loops)
    assert turned == encode_batch(records, base_offset=7)


@pytest.mark.parametrize("loops", LOOPS)
def test_a_thousand_headers_and_a_value_of_megabytes_come_through(loops: RecordLoops) -> None:
    records = [
        Record(0, TIME, b"k", b"v", tuple((f"name {n}", b"%d" % n) for n in range(1000))),
        Record(1, TIME, None, Random(1).randbytes(5 << 20)),
        Record(2, TIME, b"", b""),
    ]
    image = made(encode_batch(records), loops)
    assert list(open_record_file(b"".join(image.buffers)).records_from(0)) == records
    ((content, entry),) = blocks_of(image)
    turned = batches_of_block(content, entry, ChunkFlag(0), batch_bytes_max=BYTES_MAX, loops=loops)
    assert decode_batches(turned)[0] == records


@pytest.mark.parametrize("loops", LOOPS)
def test_a_batch_that_is_larger_than_any_block_is_cut_between_records(loops: RecordLoops) -> None:
    records = [Record(n, TIME - n, None, bytes(9 << 20)) for n in range(3)]
    before = encode_batch([Record(0, TIME, b"before", b"")])
    huge = bytearray(encode_batch(records, compression=Compression.LZ4))
    place_batch(huge, 1)
    image = made(before + huge, loops)
    assert [
        (each.records, each.first_offset) for each in map(facts_of_block, contents_of(image))
    ] == [
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
    ]
    assert image.end_offset == 4


def contents_of(image: RecordFileImage) -> list[bytes]:
    return [content for content, _ in blocks_of(image)]


@pytest.mark.parametrize("loops", LOOPS)
def test_times_of_the_append_are_kept_and_told_again(loops: RecordLoops) -> None:
    batches = bytearray()
    for number in range(4):
        batch = bytearray(encode_batch([Record(0, 5, b"k", b"v"), Record(0, 9, b"k", b"v")]))
        place_batch(batch, number * 2)
        stamp_append_time(batch, TIME + number // 2)
        batches += batch
    image = made(bytes(batches), loops, log_append_time=True)
    ((content, entry),) = blocks_of(image)
    turned = batches_of_block(
        content, entry, ChunkFlag.LOG_APPEND_TIME, batch_bytes_max=BYTES_MAX, loops=loops
    )
    assert decode_batches(turned) == decode_batches(batches)
    second = parse_header(turned).size
    assert parse_header(turned).record_count == 4, "the same time is one batch"
    assert parse_header(turned, second).append_time == TIME + 1


def batch_of(body: bytes, count: int, *, attributes: int = 0, base_offset: int = 0) -> bytes:
    """With a checksum that is right."""
    checked = struct.pack(">hiqqqhii", attributes, count - 1, TIME, TIME, -1, -1, -1, count) + body
    return struct.pack(">qiibI", base_offset, len(checked) + 9, -1, 2, crc32c(checked)) + checked


BODY = encode_batch(
    [
        Record(0, TIME, b"key", b"value", (("h", b"1"), ("i", None))),
        Record(1, TIME - 300, None, None),
        Record(2, TIME, b"k" * 70, b"v" * 130),
    ]
)[BATCH_HEADER_BYTES:]


@needs_native
def test_every_damaged_byte_of_records_is_judged_the_same() -> None:
    assert NATIVE is not None
    outcomes = set()
    good = batch_of(BODY, 3, base_offset=3)
    for at in range(len(BODY)):
        for byte in (*(BODY[at] ^ 1 << bit for bit in range(8)), 0x00, 0x01, 0x7F, 0xFF):
            body = bytearray(BODY)
            body[at] = byte
            whole = batch_of(bytes(body), 3) + good
            native = made(whole, NATIVE)
            assert everything_of(native) == everything_of(made(whole, PYTHON_LOOPS)), (at, byte)
            outcomes.add(bool(native.unreadable))
            expected: object
            try:
                expected = decode_batches(whole)[0]
            except BatchError:
                expected = decode_batches(good)[0]
            assert list(open_record_file(b"".join(native.buffers)).records_from(0)) == expected
    assert outcomes == {True, False}


@needs_native
@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=80), count=st.integers(1, 4), base=st.integers(0, 2**63 - 9))
def test_noise_under_a_right_checksum_is_judged_the_same(
    noise: bytes, count: int, base: int
) -> None:
    assert NATIVE is not None
    whole = batch_of(noise, count, base_offset=base)
    assert everything_of(made(whole, NATIVE)) == everything_of(made(whole, PYTHON_LOOPS))


@needs_native
@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=80), has_append_time=st.booleans(), most=st.integers(0, 300))
def test_noise_as_a_block_is_judged_the_same(
    noise: bytes, has_append_time: bool, most: int
) -> None:
    assert NATIVE is not None
    by_native = NATIVE.block_to_batches(noise, has_append_time, most)
    facts = NATIVE.facts_of_block(noise)
    try:
        expected = PYTHON_LOOPS.block_to_batches(noise, has_append_time, most)
    except CorruptedDataError:
        assert by_native is None
        assert facts is None
        return
    assert by_native == expected
    assert expected is not None
    assert facts == expected[1]


@needs_native
def test_every_damaged_byte_of_a_block_is_judged_the_same() -> None:
    assert NATIVE is not None
    ((content, _),) = blocks_of(made(batch_of(BODY, 3), NATIVE))
    for at in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            by_native = NATIVE.block_to_batches(bytes(damaged), False, BYTES_MAX)
            try:
                expected = PYTHON_LOOPS.block_to_batches(bytes(damaged), False, BYTES_MAX)
            except CorruptedDataError:
                expected = None
            assert by_native == expected, (at, bit)
        assert NATIVE.block_to_batches(content[:at], False, BYTES_MAX) == cut_in_python(
            content[:at]
        )


def cut_in_python(content: bytes) -> object:
    try:
        return PYTHON_LOOPS.block_to_batches(content, False, BYTES_MAX)
    except CorruptedDataError:
        return None


@pytest.mark.parametrize("loops", LOOPS)
def test_numbers_with_more_bytes_than_they_need_become_as_short_as_they_can_be(
    loops: RecordLoops,
) -> None:
    tail = bytes.fromhex("8600 6b6579 8100 8200 8200 68 8100")
    assert tail[2:5] == b"key"
    record = b"\x00\x80\x00\x80\x00" + tail
    batch = batch_of(bytes([2 * len(record)]) + record, 1)
    (expected,) = decode_batches(batch)[0]
    assert expected == Record(0, TIME, b"key", None, (("h", None),))
    image = made(batch, loops)
    assert contents_of(image) == [encode_records([expected], RecordForm.NULLABLE)]


@pytest.mark.parametrize("loops", LOOPS)
def test_a_name_that_is_no_utf_8_is_copied_as_it_is(loops: RecordLoops) -> None:
    record = bytes.fromhex("00 00 00 01 01 02 02 ff 01")
    batch = batch_of(bytes([2 * len(record)]) + record, 1)
    assert contents_of(made(batch, loops))[0].endswith(record[3:])
    assert decode_batches(batch)[0][0].headers == (("\ufffd", None),)


@pytest.mark.parametrize("loops", LOOPS)
def test_what_no_reader_can_read_is_named_and_left_out(loops: RecordLoops) -> None:
    good = [encode_batch([Record(0, TIME, None, b"%d" % n)]) for n in range(2)]
    torn = batch_of(b"\x28\xb5\x2f\xfd no frame", 3, attributes=Compression.ZSTD, base_offset=1)
    last = bytearray(good[1])
    place_batch(last, 4)
    image = made(good[0] + torn + last, loops)
    assert [(each.base_offset, each.next_offset) for each in image.unreadable] == [(1, 4)]
    assert "ZSTD" in image.unreadable[0].cause
    assert (image.record_count, image.first_offset, image.end_offset) == (2, 0, 5)
    alone = made(torn, loops)
    assert (alone.buffers, alone.size, alone.record_count) == ((), 0, 0)
    assert (alone.first_offset, alone.end_offset) == (1, 4)


@pytest.mark.parametrize("loops", LOOPS)
def test_damage_since_the_append_is_not_made_a_file_of(loops: RecordLoops) -> None:
    """It is read again: what is left out for good is only what its producer wrote so."""
    batches = bytearray(encode_batch([Record(0, TIME, b"k", b"v")]))
    batches[-2] ^= 1
    with pytest.raises(BatchError) as refused:
        made(bytes(batches), loops)
    assert refused.value.problem is BatchProblem.CORRUPT


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("count", [2, 400])
def test_batches_that_are_not_in_order_are_the_callers_mistake(
    loops: RecordLoops, count: int
) -> None:
    batch = encode_batch([Record(0, TIME, b"k", b"v" * 1000)])
    with pytest.raises(ValueError, match="do not grow"):
        made(batch * count, loops, target=100)
    with pytest.raises(ValueError, match="one record at least"):
        made(b"", loops)
    with pytest.raises(ValueError, match="cut off"):
        made(batch[:-1], loops)


@needs_native
def test_the_native_loops_do_not_write_behind_their_buffer() -> None:
    assert NATIVE is not None
    batch = encode_batch([Record(0, TIME, b"k" * 30, b"v" * 30), Record(1, TIME, b"k", b"v")])
    for room in range(120):
        out = bytearray(b"\xee" * 200)
        with memoryview(out)[:room] as part:
            stop, at, sums, _ = NATIVE.batches_to_block(batch, 0, part, 1 << 20, BlockSums())  # type: ignore[arg-type]
        assert out[room:] == b"\xee" * (200 - room)
        assert (stop == Stop.DONE) == (at == len(batch))
        assert BlockSums._make(sums).used <= room


@needs_native
@pytest.mark.parametrize(
    "call",
    [
        lambda loops: loops.batches_to_block(b"", 1, bytearray(9), 1, BlockSums()),
        lambda loops: loops.batches_to_block(b"", -1, bytearray(9), 1, BlockSums()),
        lambda loops: loops.batches_to_block(b"", 0, bytearray(9), 1, BlockSums(used=10)),
        lambda loops: loops.batches_to_block(b"", 0, bytearray(9), 1, BlockSums(used=-1)),
        lambda loops: loops.records_to_block(
            b"", RecordsPlace(1, 1, 0), 0, 0, 0, None, bytearray(9), 1, BlockSums()
        ),
    ],
)
def test_the_native_loops_refuse_places_outside_of_their_buffers(
    call: Callable[[RecordLoops], object],
) -> None:
    assert NATIVE is not None
    with pytest.raises(ValueError, match="outside"):
        call(NATIVE)


@pytest.mark.parametrize("loops", LOOPS)
def test_batches_of_a_block_are_read_by_a_client_of_kafka(loops: RecordLoops) -> None:
    records = [
        Record(5 * n, TIME - n, None if n % 3 else b"k%d" % n, None if n % 5 else b"v" * n)
        for n in range(1, 50)
    ] + [Record(1000, TIME, b"k", b"v", (("h", b"1"), ("null", None)))]
    image = made(encode_batch(records, keeps_offsets=True), loops)
    ((content, entry),) = blocks_of(image)
    turned = batches_of_block(content, entry, ChunkFlag(0), batch_bytes_max=300, loops=loops)
    reader = MemoryRecords(turned)
    found: list[Record] = []
    while (batch := reader.next_batch()) is not None:
        assert batch.validate_crc()
        found += [
            Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
            for each in batch
        ]
    assert found == records
