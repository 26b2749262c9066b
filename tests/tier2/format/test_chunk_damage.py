"""Goal: no damaged byte is ever served. Method: damage every kind of image everywhere, then verify and read it."""

import struct
import zlib
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.format.chunk_reading import identity_of, image_of, read_index, read_range
from tier2.format.block import decode_block
from tier2.format.chunk_decoder import (
    ChunkIdentity,
    decode_blocks,
    parse_tail,
    plan_read,
    verify_chunk,
)
from tier2.format.chunk_encoder import EncodedChunk, encode_chunk
from tier2.format.chunk_format import (
    ChunkIndex,
    Compression,
    EventInformation,
    encode_header,
    encode_index,
    parse_header,
    parse_index,
)

CONTENT = b"".join(b"line %d of the segment\n" % (number % 7) for number in range(40))


def three_blocks(compression: Compression, created_ms: int = 5) -> EncodedChunk:
    noise = Random(1).randbytes(300)
    return encode_chunk(
        start_offset=1 << 40,
        runs=[CONTENT, noise, CONTENT],
        compression=compression,
        events=[EventInformation(0, 3, 10, 20), None, EventInformation(40, 9, 15, 30)],
        created_ms=created_ms,
        block_bytes_target=600,
    )


WHOLE = CONTENT + Random(1).randbytes(300) + CONTENT


def flip(image: bytes, bit: int) -> bytes:
    damaged = bytearray(image)
    damaged[bit >> 3] ^= 1 << (bit & 7)
    return bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("compression", list(Compression))
def test_h10_every_flipped_bit_is_found_and_never_served(compression: Compression) -> None:
    chunk = three_blocks(compression)
    image, identity = image_of(chunk), identity_of(chunk)
    assert len(chunk.index.entries) == 3
    for bit in range(len(image) * 8):
        damaged = flip(image, bit)
        assert not verify_chunk(damaged).sound, f"{bit=}"
        try:
            content = read_range(damaged, identity, chunk.start_offset, chunk.end_offset)
        except CorruptedDataError:
            continue
        assert content == WHOLE, f"{bit=}"
        assert bit < 64 * 8, f"only the header is not needed for reading {bit=}"


def test_h10_a_shorter_or_longer_image_is_found() -> None:
    chunk = three_blocks(Compression.LZ4)
    image, identity = image_of(chunk), identity_of(chunk)
    for length in range(len(image)):
        report = verify_chunk(image[:length], identity=identity)
        assert report.damages, f"{length=}"
        with pytest.raises(CorruptedDataError):
            read_index(image[:length], identity)
    assert not verify_chunk(image + b"\0").sound
    assert not verify_chunk(b"\0" + image).sound


def test_h10_another_chunk_with_good_checksums_is_not_mistaken_for_the_recorded_one() -> None:
    recorded = three_blocks(Compression.LZ4)
    other = three_blocks(Compression.LZ4, created_ms=6)
    assert other.size == recorded.size
    identity = identity_of(recorded)
    assert verify_chunk(image_of(other)).sound
    with pytest.raises(CorruptedDataError, match="another chunk"):
        read_index(image_of(other), identity)
    assert not verify_chunk(image_of(other), identity=identity).sound


def test_h10_the_recorded_first_offset_is_compared() -> None:
    chunk = three_blocks(Compression.NONE)
    moved = replace(identity_of(chunk), start_offset=chunk.start_offset + 1)
    with pytest.raises(CorruptedDataError, match="start_offset"):
        read_index(image_of(chunk), moved)
    assert not verify_chunk(image_of(chunk), identity=moved).sound


def resealed(image: bytes) -> bytes:
    """The image with a file CRC32 that fits: what a buggy writer, not a broken disk, would leave."""
    crc32 = zlib.crc32(image[:-8])
    return image[:-8] + struct.pack(">I", crc32) + image[-4:]


@pytest.mark.parametrize("place", range(41, 64))
def test_h10_reserved_header_bytes_must_be_zero(place: int) -> None:
    image = bytearray(image_of(three_blocks(Compression.LZ4)))
    image[place] = 1
    report = verify_chunk(resealed(bytes(image)))
    assert [damage for damage in report.damages if "reserved" in damage]


@pytest.mark.parametrize(
    ("start", "value", "word"),
    [
        (0, b"XX", "not a chunk header"),
        (2, b"\0\3", "unknown chunk version"),
        (2, b"\0\2", "another version than that of its kind"),
        (4, b"\0\0\0\1", "another version than that of its kind"),
        (4, b"\0\0\0\4", "whose their times are"),
        (4, b"\0\0\0\x09", "flags"),
        (8, b"\3", "compression"),
        (17, b"\0\0\0\0\0\0\0\1", "contradicts itself"),
        (33, b"\0\0\0\0\0\0\0\0", "contradicts itself"),
    ],
)
def test_a_header_of_another_kind_is_refused(start: int, value: bytes, word: str) -> None:
    image = bytearray(image_of(three_blocks(Compression.LZ4)))
    image[start : start + len(value)] = value
    with pytest.raises(CorruptedDataError, match=word):
        parse_header(bytes(image))
    assert not verify_chunk(resealed(bytes(image))).sound


def test_h10_a_header_with_other_offsets_than_the_index_is_found_though_the_checksum_fits() -> None:
    image = image_of(three_blocks(Compression.LZ4))
    header = parse_header(image)
    moved = replace(header, start_offset=header.start_offset + 5, end_offset=header.end_offset + 5)
    report = verify_chunk(resealed(encode_header(moved) + image[64:]))
    assert [damage for damage in report.damages if "other offsets" in damage]
    assert len(report.damages) == 1


FIELDS = struct.Struct(">QQIIBBHIQqq")


@pytest.mark.parametrize(
    ("block", "field", "value", "word"),
    [
        (0, 0, (1 << 40) + 1, "offsets do not follow"),
        (1, 0, 1 << 41, "offsets do not follow"),
        (1, 0, 0, "offsets do not follow"),
        (0, 1, 63, "out of place"),
        (2, 1, 64, "out of place"),
        (2, 2, 1, "out of place"),
        (0, 2, 0, "bad block lengths"),
        (0, 2, 100_000, "bad block lengths"),
        (1, 3, 301, "bad block lengths"),
        (0, 3, (16 << 20) + 1, "bad block lengths"),
        (0, 3, 900, "offsets do not follow"),
        (0, 4, 3, "unknown block kind"),
        (0, 4, 0, "bad block lengths"),
        (0, 5, 8, "unknown block kind"),
        (0, 5, 3, "event fields"),
        (0, 6, 1, "unknown block kind"),
        (2, 5, 4, "event fields"),
        (2, 7, 10_000, "event fields"),
        (1, 8, 1, "event fields"),
        (0, 9, 21, "event fields"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused_though_its_checksum_fits(
    block: int, field: int, value: int, word: str
) -> None:
    chunk = three_blocks(Compression.LZ4)
    packed = encode_index(chunk.index)
    index_position = chunk.index.entries[-1].end_position
    parsed = parse_index(packed, index_position=index_position, record_topic=False)
    assert list(parsed.entries) == list(chunk.index.entries)
    fields = list(FIELDS.unpack_from(packed, block * FIELDS.size))
    fields[field] = value
    entry = FIELDS.pack(*fields)
    damaged = packed[: block * FIELDS.size] + entry + packed[(block + 1) * FIELDS.size : -4]
    damaged += struct.pack(">I", zlib.crc32(damaged))
    with pytest.raises(CorruptedDataError, match=word):
        parse_index(damaged, index_position=index_position, record_topic=False)


def test_an_index_of_an_impossible_size_is_refused() -> None:
    packed = encode_index(three_blocks(Compression.LZ4).index)
    for size in (0, 11, 12, 13, 56, len(packed) - 1):
        with pytest.raises(CorruptedDataError, match="bad size"):
            parse_index(packed[:size], index_position=64, record_topic=False)


def test_in_a_record_topic_offsets_need_not_follow_the_bytes() -> None:
    index = three_blocks(Compression.LZ4).index
    entries = [
        replace(entry, first_offset=1000 + 10 * block) for block, entry in enumerate(index.entries)
    ]
    packed = encode_index(ChunkIndex(entries=entries, end_offset=1030))
    position = entries[-1].end_position
    parsed = parse_index(packed, index_position=position, record_topic=True)
    assert [parsed.block_at(offset) for offset in (1000, 1009, 1010, 1029)] == [0, 0, 1, 2]
    with pytest.raises(CorruptedDataError, match="offsets do not follow"):
        parse_index(packed, index_position=position, record_topic=False)


def test_a_block_that_is_another_block_is_refused() -> None:
    chunk = three_blocks(Compression.LZ4)
    image = image_of(chunk)
    first, _, last = chunk.index.entries
    with pytest.raises(CorruptedDataError, match=rf"position={first.position}"):
        decode_block(first, image[last.position : last.end_position - 1])


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_block_with_a_good_checksum_and_bad_contents_is_refused(compression: Compression) -> None:
    entry = three_blocks(compression).index.entries[0]
    random = Random(8)
    for _ in range(200):
        body = random.randbytes(entry.stored_length)
        stored = body + struct.pack(">I", zlib.crc32(body))
        with pytest.raises(CorruptedDataError):
            decode_block(entry, stored)


@pytest.mark.parametrize(
    ("compression", "word"),
    [
        (Compression.LZ4, r"length|decompress"),
        (Compression.ZSTD, "names another length"),  # said before anything is allocated
    ],
)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_block_that_decompresses_to_another_length_is_refused(
    compression: Compression, word: str, change: int
) -> None:
    chunk = three_blocks(compression)
    entry = chunk.index.entries[0]
    stored = image_of(chunk)[entry.position : entry.end_position]
    wrong = replace(entry, uncompressed_length=entry.uncompressed_length + change)
    with pytest.raises(CorruptedDataError, match=word):
        decode_block(wrong, stored)


def test_blocks_that_are_cut_off_are_refused() -> None:
    chunk = three_blocks(Compression.LZ4)
    index = chunk.index
    blocks = plan_read(index, start_offset=chunk.start_offset, end_offset=chunk.end_offset)
    stored = image_of(chunk)[blocks.start : blocks.start + blocks.length - 1]
    with pytest.raises(CorruptedDataError, match="cut off"):
        decode_blocks(index, blocks, stored)


def test_offsets_outside_the_chunk_are_the_callers_mistake() -> None:
    chunk = three_blocks(Compression.LZ4)
    start, end = chunk.start_offset, chunk.end_offset
    for first, last in ((start - 1, end), (start, end + 1), (start, start)):
        with pytest.raises(ValueError, match="offset"):
            plan_read(chunk.index, start_offset=first, end_offset=last)


def test_noise_is_never_an_index() -> None:
    random = Random(9)
    for size in [0, 1, 15, 16, 17, 152, 153, 500]:
        noise = random.randbytes(size)
        with pytest.raises(CorruptedDataError):
            parse_tail(noise, identity=ChunkIdentity(size, 0, 0))
        assert not verify_chunk(noise).sound
