"""The first 64 bytes of a volume.

     0  8  magic b"S4VOLUME"
     8  2  format version, 1
    10  2  reserved, zero
    12  4  number of the volume, the one in its name
    16  8  secret: seeds every checksum of the volume's records (H71)
    24  8  created, Unix milliseconds; only shown
    32  16 id of the engine that made it: a volume of another store is refused
    48  8  sequence number at which every record in it was new, or still counted: tombstones that are older are not
           there for anything in it (H70), and a rebuild continues above it
    56  4  reserved, zero
    60  4  CRC32 of the 60 bytes before

Big-endian. Invariant: written and synced, with its directory, before the first record.
"""

import struct
from dataclasses import dataclass

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

VOLUME_HEADER_BYTES = 64
_LAYOUT = struct.Struct(">8sHHIQQ16sQ4s")
_MAGIC = b"S4VOLUME"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class VolumeHeader:
    """The named fields."""

    number: int
    secret: int
    created_ms: int
    engine_id: bytes
    sequence_first: int


def encode_volume_header(header: VolumeHeader) -> bytes:
    """The 64 bytes."""
    body = _LAYOUT.pack(
        _MAGIC,
        _VERSION,
        0,
        header.number,
        header.secret,
        header.created_ms,
        header.engine_id,
        header.sequence_first,
        bytes(4),
    )
    return body + crc32_of(body).to_bytes(4, "big")


def decode_volume_header(content: BufferView) -> VolumeHeader:
    """Raises CorruptedDataError."""
    if len(content) < VOLUME_HEADER_BYTES:
        raise CorruptedDataError(f"volume header is cut off bytes={len(content)}")
    body = memoryview(content)[:60]
    if crc32_of(body) != int.from_bytes(content[60:64], "big"):
        raise CorruptedDataError("volume header fails its checksum")
    magic, version, reserved, number, secret, created_ms, engine_id, first, rest = _LAYOUT.unpack(
        body
    )
    if magic != _MAGIC or version != _VERSION or reserved or rest != bytes(4):
        raise CorruptedDataError(f"not a volume {magic=} {version=}")
    return VolumeHeader(number, secret, created_ms, engine_id, first)
