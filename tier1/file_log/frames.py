"""The bytes of a journal file: frames, each one group commit.

A journal file is a row of frames from offset 0. What follows the last frame is zeros, or, in a recycled file, frames
of an earlier generation. Little endian throughout.

    frame   := header table payload padding         length: a multiple of 4096, starts on a multiple of 4096
    table   := entry_count * (address: u64, length: u32)
    payload := the entries' bytes, one behind the other
    padding := zeros

    header, 116 bytes
      0   4  magic "SJF1"
      4   1  format version, 1
      5   1  kind: 1 epoch, 2 entries, 3 mark
      6   2  reserved, zero
      8  16  log id
     24   8  epoch of the writer
     32   8  generation: which use of a file this is; the first file an epoch uses is 1, the next 2 ...
     40   8  frame number; +1 each within an epoch, above every number ever seen at the start of an epoch
     48   8  epoch of the frame before this one
     56   8  number of the frame before this one; an epoch frame says here where earlier epochs end
     64   8  highest frame number known to be synced when this frame was written
     72   8  number of the oldest frame that is still needed; whole files before it may be gone
     80   8  truncation point: entries at or below this address are gone
     88   8  highest address given to an entry so far, this frame's included
     96   4  page: this frame's offset in its file / 4096
    100   4  entry count
    104   4  body bytes: table and payload, without padding
    108   4  CRC32C of table, payload and padding
    112   4  CRC32C of bytes 0..111

Invariants:
- A frame never shares a 4096-byte page with another, so that no later write touches acknowledged bytes in place.
- Frame n + 1 of an epoch is written only when every entry up to frame n is synced. Mark frames alone are not synced
  by themselves; hence a frame may be valid while the mark before it is not, and that is no corruption.
- An epoch frame is the first of its epoch. It holds copies of the entries that its recovery could not prove durable;
 frame and copies are valid together or not at all.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import crc32c

from segmentstore.codec.vectored import LARGE_BUFFER_BYTES, join_small
from segmentstore.contracts.identifiers import BufferView

PAGE_BYTES = 4096
FORMAT_VERSION = 1
MAGIC = b"SJF1"

_BEGINNING = MAGIC + bytes([FORMAT_VERSION])
_HEADER = struct.Struct("<4sBBH16s9Q4I")
_CHECKSUM = struct.Struct("<I")
_TABLE_ROW = struct.Struct("<QI")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
assert HEADER_BYTES == 116, f"the frame header is {HEADER_BYTES} bytes, the format says 116"

SINGLE_PAGE_ENTRY_BYTES_MAX = PAGE_BYTES - HEADER_BYTES - _TABLE_ROW.size
"""An entry of this length still fits into a frame of one page."""

_ZEROS = bytes(PAGE_BYTES)


class FrameKind(IntEnum):
    """Stored in files: never renumber."""

    EPOCH = 1
    ENTRIES = 2
    MARK = 3


_ENTRIES = int(FrameKind.ENTRIES)
_KINDS = frozenset(int(kind) for kind in FrameKind)


class FrameHeader(NamedTuple):
    """One frame's header, field by field as in the module's format table. A tuple: each frame makes one."""

    kind: FrameKind
    log_id: bytes
    epoch: int
    generation: int
    number: int
    previous_epoch: int
    previous_number: int
    synced_number: int
    oldest_number: int
    truncated_up_to: int
    last_address: int
    page: int
    entry_count: int
    body_bytes: int
    body_checksum: int = 0

    @property
    def offset(self) -> int:
        """Where the frame starts in its file, in bytes."""
        return self.page * PAGE_BYTES

    @property
    def length(self) -> int:
        """Bytes the frame occupies, padding included."""
        return _round_up(HEADER_BYTES + self.body_bytes)

    @property
    def end_page(self) -> int:
        return self.page + self.length // PAGE_BYTES

    def encode(self, body_checksum: int) -> bytes:
        """The 116 header bytes."""
        fields = _HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            self.kind,
            0,
            self.log_id,
            self.epoch,
            self.generation,
            self.number,
            self.previous_epoch,
            self.previous_number,
            self.synced_number,
            self.oldest_number,
            self.truncated_up_to,
            self.last_address,
            self.page,
            self.entry_count,
            self.body_bytes,
            body_checksum,
        )
        return fields + _CHECKSUM.pack(crc32c.crc32c(fields))


@dataclass(slots=True)
class FrameEntry:
    """One entry on its way into a frame; not frozen, because one is made for every append."""

    address: int
    pieces: Sequence[BufferView]
    length: int


def _round_up(length: int) -> int:
    return (length + PAGE_BYTES - 1) & -PAGE_BYTES


def body_bytes(entry_count: int, payload_bytes: int) -> int:
    """Length of table and payload."""
    return entry_count * _TABLE_ROW.size + payload_bytes


def frame_bytes(entry_count: int, payload_bytes: int) -> int:
    """What a frame with these entries occupies in its file."""
    return _round_up(HEADER_BYTES + body_bytes(entry_count, payload_bytes))


def encode_frame(header: FrameHeader, entries: Sequence[FrameEntry]) -> list[BufferView]:
    """The buffers to write at the header's offset; large pieces are not copied. O(bytes): for an executor."""
    table = [_TABLE_ROW.pack(entry.address, entry.length) for entry in entries]
    whole = header.length - HEADER_BYTES
    padding = _ZEROS[: whole - header.body_bytes]
    pieces = (piece for entry in entries for piece in entry.pieces)
    if whole < LARGE_BUFFER_BYTES:
        # One buffer: a lone small frame is in a hurry, and costs less than a list of its parts.
        flat = b"".join([*table, *pieces, padding])
        _require_length(len(flat), whole)
        return [header.encode(crc32c.crc32c(flat)) + flat]
    body: list[BufferView] = join_small(pieces)
    body.insert(0, b"".join(table))
    if padding:
        body.append(padding)
    checksum = 0
    for buffer in body:
        checksum = crc32c.crc32c(buffer, checksum)
    _require_length(sum(map(len, body)), whole)
    body[0] = header.encode(checksum) + body[0]
    return body


def encode_single_page(
    *,
    log_id: bytes,
    epoch: int,
    generation: int,
    number: int,
    synced_number: int,
    oldest_number: int,
    truncated_up_to: int,
    address: int,
    page: int,
    pieces: Sequence[BufferView],
    length: int,
) -> bytes:
    """A frame of one page that holds one entry and is not the first of its epoch: as encode_frame(), in a few calls."""
    flat = b"".join(
        (
            _TABLE_ROW.pack(address, length),
            *pieces,
            _ZEROS[: SINGLE_PAGE_ENTRY_BYTES_MAX - length],
        )
    )
    _require_length(len(flat), PAGE_BYTES - HEADER_BYTES)
    fields = _HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        _ENTRIES,
        0,
        log_id,
        epoch,
        generation,
        number,
        epoch,
        number - 1,
        synced_number,
        oldest_number,
        truncated_up_to,
        address,
        page,
        1,
        _TABLE_ROW.size + length,
        crc32c.crc32c(flat),
    )
    return b"".join((fields, _CHECKSUM.pack(crc32c.crc32c(fields)), flat))


def _require_length(written: int, whole: int) -> None:
    assert written == whole, f"frame body is {written} bytes, its header says {whole}"


def decode_header(raw: BufferView, *, log_id: bytes | None, page: int) -> FrameHeader | None:
    """The header that starts `raw`, or None when the bytes are no frame of this log at this page.

    log_id None takes any log's frames (inspection). The body is not looked at.
    """
    if len(raw) < HEADER_BYTES or bytes(raw[:4]) != MAGIC:
        return None
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    if checksum != crc32c.crc32c(raw[: _HEADER.size]):
        return None
    _, version, kind, reserved, frame_log_id, *numbers = _HEADER.unpack_from(raw)
    if version != FORMAT_VERSION or reserved != 0 or kind not in _KINDS:
        return None
    header = FrameHeader(FrameKind(kind), frame_log_id, *numbers)
    if header.page != page or (log_id is not None and header.log_id != log_id):
        return None
    return header


def looks_like_header(raw: BufferView, log_id: bytes) -> bool:
    """Whether bytes that are no valid header were probably one of this log before they were damaged."""
    return bytes(raw[8:24]) == log_id or (bytes(raw[:4]) == MAGIC and raw[4] == FORMAT_VERSION)


def is_of_another_release(raw: BufferView) -> bool:
    """Whether the first page of a file begins like a frame in a format that only later releases know.

    Of no other page: what a client stored may begin like that. One of ours whose bits were flipped there is damage, and
    one of which no more than its first bytes came to the disk is torn: zeros follow, or an older frame of ours.
    """
    begins = bytes(raw[: len(_BEGINNING)])
    if len(raw) < HEADER_BYTES or begins[:3] != MAGIC[:3] or begins <= _BEGINNING:
        return False
    mended = _BEGINNING + bytes(raw[len(_BEGINNING) : HEADER_BYTES])
    return decode_header(mended, log_id=None, page=0) is None


def decode_body(header: FrameHeader, raw: memoryview) -> list[tuple[int, memoryview]] | None:
    """(address, payload) of each entry of a whole frame `raw`, or None when its checksum does not hold."""
    if len(raw) != header.length:
        return None
    body = raw[HEADER_BYTES:]
    if crc32c.crc32c(body) != header.body_checksum:
        return None
    entries = []
    start = header.entry_count * _TABLE_ROW.size
    for address, length in _TABLE_ROW.iter_unpack(body[:start]):
        entries.append((address, body[start : start + length]))
        start += length
    return entries if start == header.body_bytes else None
