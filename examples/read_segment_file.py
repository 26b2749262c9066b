#!/usr/bin/env python3
"""Read a file of a topic's records without the store: `read_segment_file.py FILE.seg [--from OFFSET] [--check]`.

A second implementation of docs/segment-files.md, written from that page alone. It needs Python and lz4; files that are
compressed with zstd need the package zstandard as well. One JSON object is printed for each record. Damaged blocks are
told on standard error and passed over; the exit code is 1 then, and 2 where a package is missing.
"""

import argparse
import base64
import json
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER = struct.Struct(">HHIBqQQQ23s")
ENTRY = struct.Struct(">QQIIBBHIQqq")
INDEX_END = struct.Struct(">QI")
FOOTER = struct.Struct(">QIHH")
NONE, LZ4, ZSTD = range(3)
COMPRESSIONS = ("none", "lz4", "zstd")
RECORD_TOPIC, LOG_APPEND_TIME = 1, 4
BLOCK_BYTES_MAX = 257 << 20


class DamageError(Exception):
    """Bytes that no writer wrote."""


class Block(NamedTuple):
    """What the index says of one block."""

    first_offset: int
    position: int
    stored_length: int
    length: int
    compression: int
    lowest_time_ms: int
    highest_time_ms: int


class Record(NamedTuple):
    """One record; None is null."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


class SegmentFile(NamedTuple):
    """Header and index of a file, and all of its bytes."""

    content: memoryview
    compression: int
    flags: int
    created_ms: int
    record_count: int
    start_offset: int
    end_offset: int
    blocks: list[Block]


def open_file(content: bytes) -> SegmentFile:
    """Raises DamageError."""
    view = memoryview(content)
    if len(view) < HEADER.size + ENTRY.size + INDEX_END.size + FOOTER.size + 5:
        raise DamageError("the file is cut off")
    magic, version, flags, compression, created, count, start, end, rest = HEADER.unpack_from(view)
    if magic != 0x5348 or version != 2 or not flags & RECORD_TOPIC or any(rest):
        raise DamageError("this is not a file of records of version 2")
    index_position, _, magic, zero = FOOTER.unpack_from(view, len(view) - FOOTER.size)
    if magic != 0x454E or zero:
        raise DamageError("the footer is damaged")
    index_end = len(view) - FOOTER.size
    entries_end = index_end - INDEX_END.size
    if (
        not HEADER.size < index_position < entries_end
        or (entries_end - index_position) % ENTRY.size
    ):
        raise DamageError("the index is out of place")
    last, crc32 = INDEX_END.unpack_from(view, entries_end)
    if crc32 != zlib.crc32(view[index_position : entries_end + 8]) or last != end:
        raise DamageError("the index is damaged")
    blocks = [
        Block(fields[0], fields[1], fields[2], fields[3], fields[4], fields[9], fields[10])
        for fields in ENTRY.iter_unpack(view[index_position:entries_end])
    ]
    if blocks[0].first_offset != start:
        raise DamageError("header and index name other offsets")
    return SegmentFile(view, compression, flags, created, count, start, end, blocks)


def file_is_whole(content: bytes) -> bool:
    """Whether the checksum over the file is right. A reader of a part of a file cannot ask this."""
    _, crc32, _, _ = FOOTER.unpack_from(content, len(content) - FOOTER.size)
    return bool(crc32 == zlib.crc32(memoryview(content)[:-8]))


def block_content(file: SegmentFile, block: Block) -> bytes:
    """The bytes of a block's records. Raises DamageError."""
    end = block.position + block.stored_length
    stored = file.content[block.position : end]
    if zlib.crc32(stored).to_bytes(4, "big") != file.content[end : end + 4]:
        raise DamageError("the block fails its checksum")
    if block.length > BLOCK_BYTES_MAX:
        raise DamageError("the block is too long")
    if block.compression == NONE:
        return bytes(stored)
    if block.compression == LZ4:
        import lz4.block

        content: bytes = lz4.block.decompress(stored, uncompressed_size=block.length)
    elif block.compression == ZSTD:
        import zstandard

        content = zstandard.ZstdDecompressor().decompress(stored, max_output_size=block.length)
    else:
        raise DamageError("the block's compression is unknown")
    if len(content) != block.length:
        raise DamageError("the block has another length")
    return content


class Cursor:
    """A place in a block."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.position >= len(self.content) or shift > 63:
                raise DamageError("a number is cut off")
            byte = self.content[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def zigzag(self) -> int:
        value = self.varint()
        return value >> 1 if value & 1 == 0 else -((value + 1) >> 1)

    def counted(self) -> bytes | None:
        length = self.zigzag()
        if length == -1:
            return None
        start, self.position = self.position, self.position + length
        if length < 0 or self.position > len(self.content):
            raise DamageError("a record is cut off")
        return self.content[start : self.position]


def records_of(content: bytes) -> Iterator[Record]:
    """The records of a block. Raises DamageError."""
    cursor = Cursor(content)
    offset = timestamp_ms = 0
    while cursor.position < len(content):
        offset += cursor.varint()
        timestamp_ms = (timestamp_ms + cursor.zigzag() + (1 << 63)) % (1 << 64) - (1 << 63)
        key, value = cursor.counted(), cursor.counted()
        headers = []
        for _ in range(cursor.zigzag()):
            name = cursor.counted()
            if name is None:
                raise DamageError("a header has no name")
            headers.append((name, cursor.counted()))
        yield Record(offset, timestamp_ms, key, value, headers)


def text(content: bytes | None) -> object:
    """As JSON says it: text where it is UTF-8, else base64 in an object."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def as_json(record: Record) -> str:
    """One line."""
    return json.dumps(
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": text(record.key),
            "value": text(record.value),
            "headers": [[text(name), text(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first offset wanted")
    parser.add_argument("--check", action="store_true", help="prove the file, print no records")
    options = parser.parse_args()
    content = Path(options.file).read_bytes()
    damages = []
    try:
        opened = open_file(content)
    except DamageError as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    if options.check and not file_is_whole(content):
        damages.append("the file fails its checksum")
    count = 0
    ends = [block.first_offset for block in opened.blocks[1:]] + [opened.end_offset]
    for number, (block, end) in enumerate(zip(opened.blocks, ends, strict=True)):
        if end <= options.first:
            continue
        try:
            records = list(records_of(block_content(opened, block)))
        except ImportError as error:  # which says nothing of the file
            print(f"{options.file}: {error}", file=sys.stderr)
            return 2
        except Exception as error:  # a library's errors are damage, too
            damages.append(f"block {number}: {error}")
            continue
        count += len(records)
        if not options.check:
            for record in records:
                if record.offset >= options.first:
                    print(as_json(record))
    if options.check:
        if options.first == 0 and not damages and count != opened.record_count:
            damages.append(f"the header counts {opened.record_count} records, there are {count}")
        print(
            f"{options.file}: offsets {opened.start_offset} to {opened.end_offset - 1}, {count} records in"
            f" {len(opened.blocks)} blocks, compression {COMPRESSIONS[opened.compression]},"
            f" {'damaged' if damages else 'whole'}"
        )
    for damage in damages:
        print(f"{options.file}: {damage}", file=sys.stderr)
    return 1 if damages else 0


if __name__ == "__main__":
    sys.exit(main())
