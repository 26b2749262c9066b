"""A block of a sorted run: neighbouring entries, stored by column so that it is built and searched without a loop.

    u32            number of entries n, at least 1
    n * u32        end of each key in the key bytes
    n * u32        end of each value in the value bytes
    n * u8         kind: 0 the key was removed, 1 it has the value
    key bytes      all keys, one behind the other, in strictly growing order
    value bytes    all values

All numbers are big-endian. A removal hides the key in every older run and has an empty value.

On its way to the object a block is *sealed*: u32 CRC32 of all that follows, u8 compression (0 none, 1 LZ4 block), three
reserved bytes (zero), u32 uncompressed length, then the stored bytes. Whoever opens it checks all of that, and that
the columns fit; the order of keys is proved by check().
"""

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

import lz4.block

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError

Entry: TypeAlias = tuple[bytes, bytes | None]
"""A key and its value; None: the key was removed."""

SEAL_BYTES = 12
BLOCK_BYTES_MAX = 1 << 30
_SEAL = struct.Struct(">IBBHI")
_NONE, _LZ4 = 0, 1
_COUNT = struct.Struct(">I")
_REMOVED, _PRESENT = b"\0", b"\1"


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


def encode_block(entries: Sequence[Entry]) -> bytes:
    """Entries must be in strictly growing key order."""
    keys = [key for key, _ in entries]
    values = [value or b"" for _, value in entries]
    return b"".join(
        (
            _COUNT.pack(len(entries)),
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
        stored, compression = content, _NONE
    head = _SEAL.pack(0, compression, 0, 0, len(content))[4:]
    return crc32_of(stored, crc32_of(head)).to_bytes(4, "big") + head + stored


def unseal(content: bytes | memoryview) -> bytes:
    """The block inside; raises CorruptedDataError."""
    view = memoryview(content)
    if len(view) < SEAL_BYTES:
        raise CorruptedDataError(f"run block is cut off bytes={len(view)}")
    checksum, compression, reserved, reserved_too, length = _SEAL.unpack_from(view)
    if checksum != crc32_of(view[4:]):
        raise CorruptedDataError(f"run block fails its checksum bytes={len(view)}")
    if reserved or reserved_too or length > BLOCK_BYTES_MAX:
        raise CorruptedDataError(f"run block has a damaged head length={length}")
    if compression == _NONE:
        block = bytes(view[SEAL_BYTES:])
    elif compression == _LZ4:
        try:
            block = lz4.block.decompress(view[SEAL_BYTES:], uncompressed_size=length)
        except lz4.block.LZ4BlockError as error:
            raise CorruptedDataError(f"run block does not decompress length={length}") from error
    else:
        raise CorruptedDataError(f"run block has an unknown compression {compression=}")
    if len(block) != length:
        raise CorruptedDataError(f"run block has a wrong length length={length} real={len(block)}")
    return block


class RunBlock:
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
            self.count: int = _COUNT.unpack_from(content)[0]
            self._kinds_at = _COUNT.size + 8 * self.count
            self._keys_at = self._kinds_at + self.count
            self._key_ends = _parse_column(content[4 : 4 + 4 * self.count])
            self._value_ends = _parse_column(content[4 + 4 * self.count : self._kinds_at])
            self._values_at = self._keys_at + self._key_ends[-1]
            size = self._values_at + self._value_ends[-1]
        except (struct.error, IndexError, ValueError) as error:
            raise CorruptedDataError(f"run block is damaged bytes={len(content)}") from error
        if size != len(content) or len(self._value_ends) != self.count:
            raise CorruptedDataError(f"run block is damaged size={size} bytes={len(content)}")
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
        """Proves that keys grow strictly and that removals have no value. O(n)."""
        entries = self.slice(0, self.count)
        for (left, _), (right, _) in pairwise(entries):
            assert left < right, f"run block is out of order left={left!r} right={right!r}"
        for index in range(self.count):
            kind = self._content[self._kinds_at + index]
            assert kind in (0, 1), f"run block has an unknown kind index={index} kind={kind}"
