"""The object form of a sorted run, and what is kept in memory to search it. A long run goes on in further objects.

    header   4s magic "SSRN", u16 version 1, u16 reserved (zero)
    blocks   sealed blocks (tier2/storage/run_block.py), one behind the other
    index    a sealed block with one entry per block: its last key -> u64 position and u32 size of the sealed block
    filter   u32 n, then n * u32: the CRC32 of every group of keys (tier2/storage/run_keys.py), growing; then the
             CRC32 of all that
    footer   u64 position of the index, u64 position of the filter, u64 number of entries, u32 file CRC32 (of every
             byte before it), 4s magic "NRSS"

All numbers are big-endian; positions count from the first byte of the object.

- The part is immutable, and the root records its size and file CRC32: a tail with another one is another object (H10).
- The filter never denies a group that is there. A false "perhaps" has odds of n / 2^32. Sorted fingerprints take four
  bytes for each group instead of a Bloom filter's 1.25, and are built and asked at the speed of sorted() and bisect.
"""

import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from tier2.storage.object_names import ObjectIdentity
from tier2.storage.root import RunPart
from tier2.storage.run_block import Entry, RunBlock, encode_block, seal, unseal
from tier2.storage.run_keys import group_of

_HEADER = struct.pack(">4sHH", b"SSRN", 1, 0)
_INDEX_ENTRY = struct.Struct(">QI")
_FOOTER = struct.Struct(">QQQI4s")
FOOTER_BYTES = _FOOTER.size
_FOOTER_MAGIC = b"NRSS"
_CRC_POSITION_FROM_END = 8
_ENTRY_BYTES = 9


@dataclass(frozen=True, slots=True)
class PartImage:
    """A finished part, not yet uploaded and without a name."""

    buffers: Sequence[bytes]
    size: int
    file_crc32: int
    entry_count: int
    index_position: int
    first_key: bytes
    last_key: bytes

    def named(self, identity: ObjectIdentity) -> RunPart:
        return RunPart(
            identity,
            self.size,
            self.file_crc32,
            self.entry_count,
            self.index_position,
            self.first_key,
            self.last_key,
        )


def fingerprint(group: bytes) -> int:
    """What a filter keeps of a group."""
    return crc32_of(group)


class RunBuilder:
    """Makes parts from entries that arrive in strictly growing key order. Holds one part at most; does no I/O."""

    def __init__(self, *, block_bytes: int, part_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._part_bytes = part_bytes
        self._pending: list[Entry] = []
        self._pending_bytes = 0
        self._last_key = b""
        self._finished: list[PartImage] = []
        self._begin_part()

    def _begin_part(self) -> None:
        self._buffers: list[bytes] = [_HEADER]
        self._position = len(_HEADER)
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
                len(key) + (len(value) if value else 0) + _ENTRY_BYTES for key, value in pending
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
        footer = _FOOTER.pack(
            index_position, index_position + len(index), self._entry_count, 0, _FOOTER_MAGIC
        )[:-_CRC_POSITION_FROM_END]
        self._buffers += (index, fingerprints, footer)
        checksum = 0
        for buffer in self._buffers:
            checksum = crc32_of(buffer, checksum)
        self._buffers.append(checksum.to_bytes(4, "big") + _FOOTER_MAGIC)
        image = PartImage(
            buffers=self._buffers,
            size=index_position + len(index) + len(fingerprints) + _FOOTER.size,
            file_crc32=checksum,
            entry_count=self._entry_count,
            index_position=index_position,
            first_key=self._first_key,
            last_key=self._index[-1][0],
        )
        self._finished.append(image)
        self._begin_part()

    def take_finished(self) -> list[PartImage]:
        """Parts finished since the last call, in key order."""
        finished, self._finished = self._finished, []
        return finished

    def finish(self) -> list[PartImage]:
        """The rest; the builder is done. An empty run has no part."""
        self._cut_blocks(all_of_it=True)
        if self._entry_count:
            self._finish_part()
        return self.take_finished()


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
        raise CorruptedDataError(f"run filter has a wrong size count={count} bytes={len(content)}")
    if int.from_bytes(content[-4:], "big") != crc32_of(content[:-4]):
        raise CorruptedDataError(f"run filter fails its checksum count={count}")
    numbers = array("I")
    numbers.frombytes(content[4:-4])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


class PartIndex:
    """Index and filter of one part, in memory."""

    __slots__ = ("_blocks", "_fingerprints", "_part")

    def __init__(self, part: RunPart, tail: bytes) -> None:
        """From the bytes [index position, size) of the object. Raises CorruptedDataError."""
        self._part = part
        view = memoryview(tail)
        if len(tail) != part.size - part.index_position or len(tail) <= _FOOTER.size:
            raise CorruptedDataError(f"run tail is cut off part={part.identity} bytes={len(tail)}")
        index_position, filter_position, entry_count, checksum, magic = _FOOTER.unpack_from(
            tail, len(tail) - _FOOTER.size
        )
        if magic != _FOOTER_MAGIC or checksum != part.file_crc32:
            raise CorruptedDataError(
                f"another object than the recorded run part={part.identity} file_crc32={checksum:#010x}"
                f" recorded={part.file_crc32:#010x}"
            )
        index_end = filter_position - index_position
        filter_end = len(tail) - _FOOTER.size
        if (
            index_position != part.index_position
            or entry_count != part.entry_count
            or not 0 < index_end < filter_end
        ):
            raise CorruptedDataError(f"run footer contradicts the root part={part.identity}")
        self._blocks = RunBlock(unseal(view[:index_end]))
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
            raise CorruptedDataError(f"run index is damaged part={self._part.identity}")
        position, size = _INDEX_ENTRY.unpack(value)
        if position + size > self._part.index_position:
            raise CorruptedDataError(f"run index points outside part={self._part.identity}")
        return position, size

    def blocks_within(self, first: int, bytes_max: int) -> int:
        """How many blocks from `first` on lie in about `bytes_max` stored bytes; at least one."""
        start = self.block_place(first)[0]
        positions = range(first + 1, self.block_count)
        return 1 + bisect_right(
            positions, start + bytes_max, key=lambda block: sum(self.block_place(block))
        )


def describe_part(identity: ObjectIdentity, size: int, footer: bytes) -> RunPart:
    """A part as its own last bytes describe it, for who has no root; its first and last key are not known.

    Raises CorruptedDataError.
    """
    if len(footer) != _FOOTER.size:
        raise CorruptedDataError(f"run is too short part={identity} bytes={size}")
    index_position, filter_position, entry_count, checksum, magic = _FOOTER.unpack(footer)
    if magic != _FOOTER_MAGIC or not index_position < filter_position < size - _FOOTER.size:
        raise CorruptedDataError(f"run has a damaged footer part={identity} bytes={size}")
    return RunPart(identity, size, checksum, entry_count, index_position, b"", b"")


def verify_part(content: bytes, part: RunPart) -> None:
    """Prove every byte of a part against what the root says. Raises CorruptedDataError. O(size)."""
    checksum = crc32_of(memoryview(content)[:-_CRC_POSITION_FROM_END])
    if len(content) != part.size or checksum != part.file_crc32:
        raise CorruptedDataError(
            f"run part fails its checksum part={part.identity} bytes={len(content)} size={part.size}"
        )
    if not content.startswith(_HEADER):
        raise CorruptedDataError(f"run part has a damaged header part={part.identity}")
    index = PartIndex(part, content[part.index_position :])
    count, previous = 0, b""
    for number in range(index.block_count):
        position, size = index.block_place(number)
        block = RunBlock(unseal(memoryview(content)[position : position + size]))
        block.check()
        if block.key(0) <= previous or (count == 0 and block.key(0) != part.first_key):
            raise CorruptedDataError(
                f"run part is out of order part={part.identity} block={number}"
            )
        for entry in block.slice(0, block.count):
            if not index.may_hold(group_of(entry[0])):
                raise CorruptedDataError(f"run filter misses a key part={part.identity}")
        previous = block.key(block.count - 1)
        count += block.count
    if count != part.entry_count or previous != part.last_key:
        raise CorruptedDataError(f"run part has other entries than recorded part={part.identity}")
