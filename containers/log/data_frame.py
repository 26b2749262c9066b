"""One entry of the durable data log: parts of one or more records.

The records of a container form one stream of bytes; a frame is a slice of it. Little-endian:

    u16 magic = 0x4644 ("DF")
    u8  version = 2
    u8  zero
    u32 checksum               CRC32C of the header behind this field; in version 1 of the payload, too
    u32 payload_length
    u32 leading_bytes          bytes at the start of the payload that continue a record of earlier frames
    u64 frame_number           +1 from frame to frame within an epoch
    u64 epoch
    u64 last_started           sequence number of the last record begun in this frame or before (H30)

    payload

A record may begin in one frame, fill several and end in a later one; nothing is padded. Invariants:

- the first frame of an epoch has leading_bytes = 0: a record that was cut by the end of its epoch was never
  acknowledged and is dropped;
- within an epoch frame numbers have no gap from the first frame that is still there.

The payload has no checksum of its own: the log gives an entry back as it was, or says that it is damaged (L7).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import BufferView, Epoch, SequenceNumber

_BEFORE_CHECKSUM = struct.Struct("<HBBI")
_CHECKED = struct.Struct("<IIQQQ")
FRAME_HEADER_BYTES = _BEFORE_CHECKSUM.size + _CHECKED.size
_MAGIC = 0x4644
_CHECKED_PAYLOAD_VERSION, _VERSION = 1, 2


@dataclass(slots=True)
class DataFrame:
    """A frame as read back."""

    frame_number: int
    epoch: Epoch
    last_started: SequenceNumber
    leading_bytes: int
    payload: memoryview


def encode_frame(
    payload: Sequence[BufferView],
    *,
    payload_length: int,
    leading_bytes: int,
    frame_number: int,
    epoch: Epoch,
    last_started: SequenceNumber,
) -> list[BufferView]:
    """Header and payload as buffers; the payload's buffers are not copied."""
    checked = _CHECKED.pack(payload_length, leading_bytes, frame_number, epoch, last_started)
    return [_BEFORE_CHECKSUM.pack(_MAGIC, _VERSION, 0, crc32c(checked)) + checked, *payload]


def decode_frame(entry: memoryview) -> DataFrame:
    """Raises DataCorruptionError: Tier 1 gave an entry that is not what we wrote."""
    if len(entry) < FRAME_HEADER_BYTES:
        raise DataCorruptionError(f"data frame is too short length={len(entry)}")
    magic, version, zero, checksum = _BEFORE_CHECKSUM.unpack_from(entry)
    if magic != _MAGIC or version not in (_CHECKED_PAYLOAD_VERSION, _VERSION) or zero != 0:
        raise DataCorruptionError(f"not a data frame magic={magic:#x} version={version}")
    end = FRAME_HEADER_BYTES if version == _VERSION else len(entry)
    if crc32c(entry[_BEFORE_CHECKSUM.size : end]) != checksum:
        raise DataCorruptionError(f"data frame fails its checksum length={len(entry)}")
    length, leading, number, epoch, last_started = _CHECKED.unpack_from(
        entry, _BEFORE_CHECKSUM.size
    )
    if FRAME_HEADER_BYTES + length != len(entry) or leading > length:
        raise DataCorruptionError(
            f"data frame contradicts itself length={len(entry)} payload={length} leading={leading}"
        )
    return DataFrame(
        frame_number=number,
        epoch=Epoch(epoch),
        last_started=SequenceNumber(last_started),
        leading_bytes=leading,
        payload=entry[FRAME_HEADER_BYTES:],
    )
