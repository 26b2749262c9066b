"""Chunks written once and kept for ever: tests/golden/chunk_*.hex.

A change that breaks one of these breaks every object that anybody stored. Bytes without compression must also be
written the same today; what a compressor makes of a block may change with its version, so those are only read.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from segmentstore.codec.record_fields import Record
from tests.tier2.format.chunk_reading import identity_of, image_of, read_index, read_range
from tier2.format.chunk_decoder import ChunkIdentity, verify_chunk
from tier2.format.chunk_encoder import EncodedChunk, encode_chunk
from tier2.format.chunk_format import ChunkFlag, Compression, EventInformation, parse_header
from tier2.format.records import decode_records, encode_records

GOLDEN = Path(__file__).parents[2] / "golden"

RUNS = (b"first append ", b"second append " * 40, b"third append, the last")
EVENTS = (
    EventInformation(None, 0, 1_795_000_000_000, 1_795_000_000_500),
    EventInformation(5, 42, 1_795_000_000_100, 1_795_000_000_100),
    EventInformation(0, 43, 1_794_999_999_000, 1_795_000_000_900),
)
RECORDS = (
    Record(1000, 1_795_000_000_000, b"user-1", b'{"clicks":1}', (("trace", b"abc"),)),
    Record(1001, 1_795_000_000_005, b"user-2", b'{"clicks":2}'),
    Record(1005, 1_795_000_000_003, b"", b""),
)


@dataclass(frozen=True)
class GoldenChunk:
    name: str
    compression: Compression
    with_events: bool = False

    def encode(self) -> EncodedChunk:
        return encode_chunk(
            start_offset=4096,
            runs=RUNS,
            events=EVENTS if self.with_events else None,
            compression=self.compression,
            created_ms=1_795_000_001_000,
            block_bytes_target=500,
        )


CHUNKS = (
    GoldenChunk("chunk_none", Compression.NONE),
    GoldenChunk("chunk_lz4", Compression.LZ4),
    GoldenChunk("chunk_zstd", Compression.ZSTD),
    GoldenChunk("chunk_events", Compression.NONE, with_events=True),
)


def golden_bytes(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def test_every_golden_chunk_has_its_test() -> None:
    names = sorted(path.stem for path in GOLDEN.glob("chunk*"))
    assert names == sorted([*(chunk.name for chunk in CHUNKS), "chunk_records"])


@pytest.mark.parametrize("golden", CHUNKS, ids=lambda golden: golden.name)
def test_a_chunk_of_long_ago_is_read(golden: GoldenChunk) -> None:
    image = golden_bytes(golden.name)
    crc32 = int.from_bytes(image[-8:-4], "big")
    identity = ChunkIdentity(size=len(image), file_crc32=crc32, start_offset=4096)
    assert verify_chunk(image, identity=identity).damages == ()
    whole = b"".join(RUNS)
    assert read_range(image, identity, 4096, 4096 + len(whole)) == whole
    header = parse_header(image)
    assert header.compression is golden.compression
    assert header.created_ms == 1_795_000_001_000
    assert (ChunkFlag.NO_EVENTS in header.flags) is not golden.with_events
    events = [entry.events for entry in read_index(image, identity).entries]
    assert events == [entry.events for entry in golden.encode().index.entries]


@pytest.mark.parametrize(
    "golden",
    [chunk for chunk in CHUNKS if chunk.compression is Compression.NONE],
    ids=lambda golden: golden.name,
)
def test_an_uncompressed_chunk_is_written_as_long_ago(golden: GoldenChunk) -> None:
    chunk = golden.encode()
    assert image_of(chunk) == golden_bytes(golden.name)
    assert identity_of(chunk).size == len(golden_bytes(golden.name))


def test_records_of_long_ago_are_read_and_written() -> None:
    assert tuple(decode_records(golden_bytes("chunk_records"))) == RECORDS
    assert encode_records(RECORDS) == golden_bytes("chunk_records")
