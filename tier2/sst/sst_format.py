"""The bytes of an SST, and what is kept in memory to build, search and prove it.

An SST (a "run" in keys of objects) is sorted by key and immutable. It lies in one object or several, its
*parts*, one behind the other in the order of their keys; a part is a row of blocks with an index and a filter.

- The manifest records a part's size and file CRC32: a tail with another one is another object.
- The filter never denies a group that is there. A false "perhaps" has odds of n / 2^32. Sorted fingerprints take four
  bytes for each group instead of a Bloom filter's 1.25, and are built and asked at the speed of sorted() and bisect.
- A block is stored by column, so that it is built and searched without a loop.
- A removed key hides the key in every older SST.
- Opening a sealed block checks its checksum, its head and that the columns fit; the order of keys is proved by
  check().

All numbers are big-endian.

A part; positions count from the first byte of the object:

    header   4s magic "SSRN", u16 version 1, u16 reserved (zero)
    blocks   sealed blocks, one behind the other
    index    a sealed block with one entry per block: its last key -> u64 position and u32 size of the sealed block
    filter   u32 n, then n * u32: the CRC32 of every group of keys (tier2/sst/keyspace.py), growing; then the
             CRC32 of all that
    footer   u64 position of the index, u64 position of the filter, u64 number of entries, u32 file CRC32 (of every
             byte before it), 4s magic "NRSS"

A block, which holds neighbouring entries:

    u32            number of entries n, at least 1
    n * u32        end of each key in the key bytes
    n * u32        end of each value in the value bytes
    n * u8         kind: 0 the key was removed and its value is empty, 1 it has the value
    key bytes      all keys, one behind the other, in strictly growing order
    value bytes    all values

A sealed block, as it goes into the object:

    u32            CRC32 of all that follows
    u8             compression: 0 none, 1 LZ4 block
    3 bytes        reserved (zero)
    u32            uncompressed length
    stored bytes   the block, compressed if that made it shorter
"""

import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import lz4.block

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from tier2.container_objects import ObjectIdentity
from tier2.sst.keyspace import group_of

_PART_HEADER = struct.pack(">4sHH", b"SSRN", 1, 0)
_INDEX_ENTRY = struct.Struct(">QI")
_PART_FOOTER = struct.Struct(">QQQI4s")
FOOTER_BYTES = _PART_FOOTER.size
_PART_FOOTER_MAGIC = b"NRSS"
_CRC_POSITION_FROM_END = 8
_ENTRY_COLUMN_BYTES = 9

SEAL_BYTES = 12
BLOCK_BYTES_MAX = 1 << 30
_SEAL_LAYOUT = struct.Struct(">IBBHI")
_UNCOMPRESSED, _LZ4 = 0, 1
_ENTRY_COUNT = struct.Struct(">I")
_REMOVED, _PRESENT = b"\0", b"\1"

Entry: TypeAlias = tuple[bytes, bytes | None]
"""A key and its value; None: the key was removed."""


@dataclass(frozen=True, slots=True)
class SstPart:
    """One object of an SST, and what is needed to use it without a look at its header."""

    identity: ObjectIdentity
    size: int
    file_crc32: int
    entry_count: int
    index_position: int
    first_key: bytes
    last_key: bytes


Sst = tuple[SstPart, ...]


def stored_bytes(sst: Sst) -> int:
    """Size of an SST in the store. O(parts)."""
    return sum(part.size for part in sst)


@dataclass(frozen=True, slots=True)
class SstPartImage:
    """A finished part, not yet uploaded and without a name."""

    buffers: Sequence[bytes]
    size: int
    file_crc32: int
    entry_count: int
    index_position: int
    first_key: bytes
    last_key: bytes

    def named(self, identity: ObjectIdentity) -> SstPart:
        return SstPart(
            identity,
            self.size,
            self.file_crc32,
            self.entry_count,
            self.index_position,
            self.first_key,
            self.last_key,
        )


class SstBuilder:
    """Makes parts from entries that arrive in strictly growing key order. Holds one part at most; does no I/O."""

    def __init__(self, *, block_bytes: int, part_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._part_bytes = part_bytes
        self._pending: list[Entry] = []
        self._pending_bytes = 0
        self._last_key = b""
        self._finished: list[SstPartImage] = []
        self._begin_part()

    def _begin_part(self) -> None:
        self._buffers: list[bytes] = [_PART_HEADER]
        self._position = len(_PART_HEADER)
        self._index: list[Entry] = []
        self._fingerprints: set[int] = set()
        self._entry_count = 0
        self._content_bytes = 0
        self._first_key = b""

    def add(self, entries: Sequence[Entry]) -> None:
        """Entries above everything added before. O(n)."""
        if not entries:
            return
        assert entries[0][0] > self._last_key, (
            f"entries out of order key={entries[0][0]!r} last={self._last_key!r}"
        )
        self._last_key = entries[-1][0]
        self._pending += entries
        self._cut_blocks()

    def _cut_blocks(self, *, all_of_it: bool = False) -> None:
        pending = self._pending
        ends = list(
            accumulate(
                len(key) + (len(value) if value else 0) + _ENTRY_COLUMN_BYTES
                for key, value in pending
            )
        )
        start = base = 0
        while start < len(pending):
            end = bisect_left(ends, base + self._block_bytes) + 1
            if end > len(pending):
                if not all_of_it:
                    break
                end = len(pending)
            self._add_block(pending[start:end], ends[end - 1] - base)
            start, base = end, ends[end - 1]
        del pending[:start]

    def _add_block(self, entries: Sequence[Entry], content_bytes: int) -> None:
        stored = seal(encode_block(entries))
        if not self._entry_count:
            self._first_key = entries[0][0]
        self._index.append((entries[-1][0], _INDEX_ENTRY.pack(self._position, len(stored))))
        self._fingerprints.update(map(zlib.crc32, map(group_of, (key for key, _ in entries))))
        self._buffers.append(stored)
        self._position += len(stored)
        self._entry_count += len(entries)
        self._content_bytes += content_bytes
        if self._content_bytes >= self._part_bytes:
            self._finish_part()

    def _finish_part(self) -> None:
        index_position = self._position
        index = seal(encode_block(self._index))
        fingerprints = _encode_filter(sorted(self._fingerprints))
        footer = _PART_FOOTER.pack(
            index_position, index_position + len(index), self._entry_count, 0, _PART_FOOTER_MAGIC
        )[:-_CRC_POSITION_FROM_END]
        self._buffers += (index, fingerprints, footer)
        checksum = 0
        for buffer in self._buffers:
            checksum = crc32_of(buffer, checksum)
        self._buffers.append(checksum.to_bytes(4, "big") + _PART_FOOTER_MAGIC)
        image = SstPartImage(
            buffers=self._buffers,
            size=index_position + len(index) + len(fingerprints) + _PART_FOOTER.size,
            file_crc32=checksum,
            entry_count=self._entry_count,
            index_position=index_position,
            first_key=self._first_key,
            last_key=self._index[-1][0],
        )
        self._finished.append(image)
        self._begin_part()

    def take_finished(self) -> list[SstPartImage]:
        """Parts finished since the last call, in key order."""
        finished, self._finished = self._finished, []
        return finished

    def finish(self) -> list[SstPartImage]:
        """The rest; the builder is done. An empty SST has no part."""
        self._cut_blocks(all_of_it=True)
        if self._entry_count:
            self._finish_part()
        return self.take_finished()


def fingerprint(group: bytes) -> int:
    """What a filter keeps of a group."""
    return crc32_of(group)


def _encode_filter(fingerprints: Iterable[int]) -> bytes:
    numbers = array("I", fingerprints)
    count = len(numbers)
    if sys.byteorder == "little":
        numbers.byteswap()
    content = count.to_bytes(4, "big") + numbers.tobytes()
    return content + crc32_of(content).to_bytes(4, "big")


def _decode_filter(content: memoryview) -> "array[int]":
    count = int.from_bytes(content[:4], "big")
    if len(content) != 8 + 4 * count:
        raise CorruptedDataError(f"SST filter has a wrong size count={count} bytes={len(content)}")
    if int.from_bytes(content[-4:], "big") != crc32_of(content[:-4]):
        raise CorruptedDataError(f"SST filter fails its checksum count={count}")
    numbers = array("I")
    numbers.frombytes(content[4:-4])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


class SstPartIndex:
    """Index and filter of one part, in memory."""

    __slots__ = ("_blocks", "_fingerprints", "_part")

    def __init__(self, part: SstPart, tail: bytes) -> None:
        """From the bytes [index position, size) of the object. Raises CorruptedDataError."""
        self._part = part
        view = memoryview(tail)
        if len(tail) != part.size - part.index_position or len(tail) <= _PART_FOOTER.size:
            raise CorruptedDataError(f"SST tail is cut off part={part.identity} bytes={len(tail)}")
        index_position, filter_position, entry_count, checksum, magic = _PART_FOOTER.unpack_from(
            tail, len(tail) - _PART_FOOTER.size
        )
        if magic != _PART_FOOTER_MAGIC or checksum != part.file_crc32:
            raise CorruptedDataError(
                f"another object than the recorded SST part={part.identity} file_crc32={checksum:#010x}"
                f" recorded={part.file_crc32:#010x}"
            )
        index_end = filter_position - index_position
        filter_end = len(tail) - _PART_FOOTER.size
        if (
            index_position != part.index_position
            or entry_count != part.entry_count
            or not 0 < index_end < filter_end
        ):
            raise CorruptedDataError(f"SST footer contradicts the manifest part={part.identity}")
        self._blocks = SstBlock(unseal(view[:index_end]))
        self._fingerprints = _decode_filter(view[index_end:filter_end])

    @property
    def memory_bytes(self) -> int:
        return self._blocks.memory_bytes + 4 * len(self._fingerprints) + 200

    @property
    def block_count(self) -> int:
        return self._blocks.count

    def may_hold(self, group: bytes) -> bool:
        """False only if no key of that group is in the part. O(log groups)."""
        wanted = fingerprint(group)
        at = bisect_left(self._fingerprints, wanted)
        return at < len(self._fingerprints) and self._fingerprints[at] == wanted

    def block_at(self, key: bytes) -> int:
        """The block that holds the first key at or above `key`; the block count if there is none."""
        return self._blocks.lower_bound(key)

    def last_key(self, block: int) -> bytes:
        """The last key of a block."""
        return self._blocks.key(block)

    def block_place(self, block: int) -> tuple[int, int]:
        """Position and size of a sealed block in the object."""
        value = self._blocks.value(block)
        if value is None or len(value) != _INDEX_ENTRY.size:
            raise CorruptedDataError(f"SST index is damaged part={self._part.identity}")
        position, size = _INDEX_ENTRY.unpack(value)
        if position + size > self._part.index_position:
            raise CorruptedDataError(f"SST index points outside part={self._part.identity}")
        return position, size

    def blocks_within(self, first: int, bytes_max: int) -> int:
        """How many blocks from `first` on lie in about `bytes_max` stored bytes; at least one."""
        start = self.block_place(first)[0]
        positions = range(first + 1, self.block_count)
        return 1 + bisect_right(
            positions, start + bytes_max, key=lambda block: sum(self.block_place(block))
        )


def describe_part(identity: ObjectIdentity, size: int, footer: bytes) -> SstPart:
    """A part as its own last bytes describe it, for a caller without a manifest; its first and last key are not known.

    Raises CorruptedDataError.
    """
    if len(footer) != _PART_FOOTER.size:
        raise CorruptedDataError(f"SST is too short part={identity} bytes={size}")
    index_position, filter_position, entry_count, checksum, magic = _PART_FOOTER.unpack(footer)
    if (
        magic != _PART_FOOTER_MAGIC
        or not index_position < filter_position < size - _PART_FOOTER.size
    ):
        raise CorruptedDataError(f"SST has a damaged footer part={identity} bytes={size}")
    return SstPart(identity, size, checksum, entry_count, index_position, b"", b"")


def verify_part(content: bytes, part: SstPart) -> None:
    """Prove every byte of a part against what the manifest says. Raises CorruptedDataError. O(size)."""
    checksum = crc32_of(memoryview(content)[:-_CRC_POSITION_FROM_END])
    if len(content) != part.size or checksum != part.file_crc32:
        raise CorruptedDataError(
            f"SST part fails its checksum part={part.identity} bytes={len(content)} size={part.size}"
        )
    if not content.startswith(_PART_HEADER):
        raise CorruptedDataError(f"SST part has a damaged header part={part.identity}")
    index = SstPartIndex(part, content[part.index_position :])
    count, previous = 0, b""
    for number in range(index.block_count):
        position, size = index.block_place(number)
        block = SstBlock(unseal(memoryview(content)[position : position + size]))
        block.check()
        if block.key(0) <= previous or (count == 0 and block.key(0) != part.first_key):
            raise CorruptedDataError(
                f"SST part is out of order part={part.identity} block={number}"
            )
        for entry in block.slice(0, block.count):
            if not index.may_hold(group_of(entry[0])):
                raise CorruptedDataError(f"SST filter misses a key part={part.identity}")
        previous = block.key(block.count - 1)
        count += block.count
    if count != part.entry_count or previous != part.last_key:
        raise CorruptedDataError(f"SST part has other entries than recorded part={part.identity}")


def encode_block(entries: Sequence[Entry]) -> bytes:
    """Entries must be in strictly growing key order."""
    keys = [key for key, _ in entries]
    values = [value or b"" for _, value in entries]
    return b"".join(
        (
            _ENTRY_COUNT.pack(len(entries)),
            _column(array("I", accumulate(map(len, keys)))),
            _column(array("I", accumulate(map(len, values)))),
            bytes([value is not None for _, value in entries]),
            *keys,
            *values,
        )
    )


def seal(content: bytes) -> bytes:
    """Compress and checksum, as it goes into an object."""
    assert len(content) <= BLOCK_BYTES_MAX, f"block is too long bytes={len(content)}"
    stored: bytes = lz4.block.compress(content, store_size=False)
    compression = _LZ4
    if len(stored) >= len(content):
        stored, compression = content, _UNCOMPRESSED
    head = _SEAL_LAYOUT.pack(0, compression, 0, 0, len(content))[4:]
    return crc32_of(stored, crc32_of(head)).to_bytes(4, "big") + head + stored


def unseal(content: bytes | memoryview) -> bytes:
    """The block inside; raises CorruptedDataError."""
    view = memoryview(content)
    if len(view) < SEAL_BYTES:
        raise CorruptedDataError(f"SST block is cut off bytes={len(view)}")
    checksum, compression, reserved, reserved_too, length = _SEAL_LAYOUT.unpack_from(view)
    if checksum != crc32_of(view[4:]):
        raise CorruptedDataError(f"SST block fails its checksum bytes={len(view)}")
    if reserved or reserved_too or length > BLOCK_BYTES_MAX:
        raise CorruptedDataError(f"SST block has a damaged head length={length}")
    if compression == _UNCOMPRESSED:
        block = bytes(view[SEAL_BYTES:])
    elif compression == _LZ4:
        try:
            block = lz4.block.decompress(view[SEAL_BYTES:], uncompressed_size=length)
        except lz4.block.LZ4BlockError as error:
            raise CorruptedDataError(f"SST block does not decompress length={length}") from error
    else:
        raise CorruptedDataError(f"SST block has an unknown compression {compression=}")
    if len(block) != length:
        raise CorruptedDataError(f"SST block has a wrong length length={length} real={len(block)}")
    return block


class SstBlock:
    """A block in memory; searching it is O(log n), a slice of it O(its entries)."""

    __slots__ = (
        "_content",
        "_key_ends",
        "_keys_at",
        "_kinds_at",
        "_value_ends",
        "_values_at",
        "count",
    )

    def __init__(self, content: bytes) -> None:
        try:
            self.count: int = _ENTRY_COUNT.unpack_from(content)[0]
            self._kinds_at = _ENTRY_COUNT.size + 8 * self.count
            self._keys_at = self._kinds_at + self.count
            self._key_ends = _parse_column(content[4 : 4 + 4 * self.count])
            self._value_ends = _parse_column(content[4 + 4 * self.count : self._kinds_at])
            self._values_at = self._keys_at + self._key_ends[-1]
            size = self._values_at + self._value_ends[-1]
        except (struct.error, IndexError, ValueError) as error:
            raise CorruptedDataError(f"SST block is damaged bytes={len(content)}") from error
        if size != len(content) or len(self._value_ends) != self.count:
            raise CorruptedDataError(f"SST block is damaged size={size} bytes={len(content)}")
        self._content = content

    @property
    def memory_bytes(self) -> int:
        return len(self._content) + 8 * self.count + 200

    def key(self, index: int) -> bytes:
        start = self._keys_at + (self._key_ends[index - 1] if index else 0)
        return self._content[start : self._keys_at + self._key_ends[index]]

    def value(self, index: int) -> bytes | None:
        if not self._content[self._kinds_at + index]:
            return None
        start = self._values_at + (self._value_ends[index - 1] if index else 0)
        return self._content[start : self._values_at + self._value_ends[index]]

    def lower_bound(self, key: bytes) -> int:
        """Index of the first key at or above `key`; the count if there is none."""
        return bisect_left(range(self.count), key, key=self.key)

    def find(self, key: bytes) -> int | None:
        index = self.lower_bound(key)
        return index if index < self.count and self.key(index) == key else None

    def slice(self, start: int, end: int) -> list[Entry]:
        """Entries [start, end) in key order."""
        if start >= end:
            return []
        content, keys_at, values_at = self._content, self._keys_at, self._values_at
        key_ends = self._key_ends[start:end]
        value_ends = self._value_ends[start:end]
        key_starts = [self._key_ends[start - 1] if start else 0, *key_ends]
        value_starts = [self._value_ends[start - 1] if start else 0, *value_ends]
        kinds = content[self._kinds_at + start : self._kinds_at + end]
        return [
            (
                content[keys_at + key_start : keys_at + key_end],
                content[values_at + value_start : values_at + value_end] if kind else None,
            )
            for key_start, key_end, value_start, value_end, kind in zip(
                key_starts, key_ends, value_starts, value_ends, kinds, strict=False
            )
        ]

    def check(self) -> None:
        """Proves that keys grow strictly and that removals have no value. Raises CorruptedDataError, because these are
        bytes of the store: a right checksum says that they are what was written, not that it made sense. O(n)."""
        entries = self.slice(0, self.count)
        for (left, _), (right, _) in pairwise(entries):
            if left >= right:
                raise CorruptedDataError(f"SST block is out of order left={left!r} right={right!r}")
        for index in range(self.count):
            kind = self._content[self._kinds_at + index]
            if kind not in (0, 1):
                raise CorruptedDataError(f"SST block has an unknown kind index={index} kind={kind}")
            value_start = self._value_ends[index - 1] if index else 0
            if not kind and self._value_ends[index] != value_start:
                raise CorruptedDataError(f"SST block: a removed key has a value index={index}")


def _column(numbers: "array[int]") -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _parse_column(content: bytes | memoryview) -> "array[int]":
    numbers = array("I")
    numbers.frombytes(content)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
