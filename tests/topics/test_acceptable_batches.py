"""Goal: what a topic that is compacted by key takes is judged on the event loop, within bounds of time and memory."""

import gzip
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
from crc32c import crc32c

from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    BatchProblem,
    Compression,
    Record,
    encode_batch,
    placed_copy,
)
from segmentstore.topics import acceptable_batches
from segmentstore.topics.acceptable_batches import DECOMPRESSED_BYTES_MAX, acceptable_header
from segmentstore.topics.errors import InvalidRecordError, RecordBatchTooLargeError
from segmentstore.topics.topic_config import TopicConfig, make_config
from tests.reference.counted_lines import counted_lines
from tests.topics.batches import NOW

MIB = 1 << 20


def compacted(message_bytes_max: int = MIB) -> TopicConfig:
    given = {"cleanup.policy": "compact", "max.message.bytes": str(message_bytes_max)}
    return make_config(given, bytes_max=10_000)


def batch_of(*keys: bytes | None, compression: Compression, value: bytes = b"") -> bytes:
    return encode_batch([Record(0, NOW, key, value) for key in keys], compression=compression)


@pytest.mark.parametrize("compression", Compression)
def test_keys_are_looked_for_without_a_column_of_anything(
    compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    # zstd's library asks for as much memory as it may give, and returns what it does not touch.
    monkeypatch.setattr(acceptable_batches, "DECOMPRESSED_BYTES_MAX", 200_000)
    records = 10_000
    batch = batch_of(*[b"k"] * records, compression=compression)
    acceptable_header(batch, compacted(), now_ms=NOW)
    tracemalloc.start()
    try:
        acceptable_header(batch, compacted(), now_ms=NOW)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * records, "a row of columns has 64 bytes"


def block_of_xerial(content: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(content))
    return struct.pack(">i", len(block)) + block


@pytest.mark.parametrize("content", [b"", b"k"], ids=["no byte each", "one byte each"])
@pytest.mark.parametrize(
    ("compression", "begin", "part_of"),
    [
        (Compression.GZIP, b"", gzip.compress),
        (Compression.SNAPPY, bytes.fromhex("82534e4150505900 00000001 00000001"), block_of_xerial),
        (Compression.LZ4, b"", lz4.frame.compress),
    ],
    ids=["gzip", "snappy", "lz4"],
)
def test_records_in_tens_of_thousands_of_parts_do_not_hold_up_the_loop(
    compression: Compression, begin: bytes, part_of: Callable[[bytes], bytes], content: bytes
) -> None:
    part = part_of(content)
    body = begin + part * ((MIB - 1000) // len(part))
    one = batch_of(b"k", compression=compression)
    batch = rejoined(one, one[:BATCH_HEADER_BYTES] + body)
    with counted_lines() as lines, pytest.raises(InvalidRecordError, match="parts"):
        acceptable_header(batch, compacted(), now_ms=NOW)
    assert lines.count < 60_000, "of a thousand parts; all of them take half a million and more"


@pytest.mark.parametrize("compression", Compression)
def test_one_record_without_a_key_refuses_its_batch(compression: Compression) -> None:
    for keys in ((None,), (None, b"k"), (b"k", None), (b"k", b"", None, b"k")):
        with pytest.raises(InvalidRecordError, match="has none"):
            acceptable_header(batch_of(*keys, compression=compression), compacted(), now_ms=NOW)
    taken = batch_of(b"k", b"", compression=compression)
    for base_offset in (0, 7, -1):
        placed = placed_copy(taken, base_offset)
        assert acceptable_header(placed, compacted(), now_ms=NOW).record_count == 2


@pytest.mark.parametrize("compression", [each for each in Compression if each])
def test_a_batch_whose_records_are_long_behind_decompression_is_to_be_split(
    compression: Compression,
) -> None:
    """Producers split what is told to be too large; what is told to be invalid they give up."""
    value = bytes(MIB)
    most = DECOMPRESSED_BYTES_MAX // MIB
    whole = batch_of(*[b"k"] * (most - 1), compression=compression, value=value)
    config = compacted(8 * MIB)
    assert acceptable_header(whole, config, now_ms=NOW).record_count == most - 1
    longer = batch_of(*[b"k"] * most, compression=compression, value=value)
    with pytest.raises(RecordBatchTooLargeError):
        acceptable_header(longer, config, now_ms=NOW)


def test_a_batch_that_is_not_compressed_may_be_as_long_as_its_topic_says() -> None:
    value = bytes(DECOMPRESSED_BYTES_MAX // 2)
    batch = batch_of(b"k", b"k", compression=Compression.NONE, value=value)
    header = acceptable_header(batch, compacted(2 * DECOMPRESSED_BYTES_MAX), now_ms=NOW)
    assert header.record_count == 2


@pytest.mark.parametrize("compression", Compression)
def test_records_that_contradict_their_header_are_refused(compression: Compression) -> None:
    one = encode_batch([Record(0, NOW, b"k", b"v")], compression=compression)
    two = encode_batch([Record(0, NOW, b"k", b"v")] * 2, compression=compression)
    for header, body in ((one, two), (two, one)):
        with pytest.raises(InvalidRecordError) as refused:
            acceptable_header(rejoined(header, body), compacted(), now_ms=NOW)
        assert refused.value.problem is BatchProblem.INVALID


def rejoined(header: bytes, body: bytes) -> bytes:
    """The header of one batch and the records of another."""
    whole = bytearray(header[:BATCH_HEADER_BYTES] + body[BATCH_HEADER_BYTES:])
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[17:21] = crc32c(bytes(whole[21:])).to_bytes(4, "big")
    return bytes(whole)
