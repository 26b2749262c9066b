"""Which log this is: the file `identity` of its directory.

    version 1   "SLID", version u32, log id (16 bytes), CRC32C of those: little endian, 28 bytes
    version 2   as 1, and the id of the log that it follows (16 bytes) before the CRC32C: 44 bytes

Invariant: an identity is written once and never changes.
"""

import struct
from dataclasses import dataclass

import crc32c

_HEADER = struct.Struct("<4sI16s")
_FOLLOWS = struct.Struct("<16s")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"SLID"
_VERSION = 1
_VERSION_THAT_FOLLOWS = 2

IDENTITY_BYTES_MAX = _HEADER.size + _FOLLOWS.size + _CHECKSUM.size


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Ids of 16 bytes."""

    log_id: bytes
    follows: bytes = b""
    """The log whose root in Tier 2 this one takes over, because that log is lost; empty: none (H7)."""


def encode_identity(identity: LogIdentity) -> bytes:
    """The content of the identity file. One that follows none is readable for versions that know no other."""
    version = _VERSION_THAT_FOLLOWS if identity.follows else _VERSION
    fields = _HEADER.pack(_MAGIC, version, identity.log_id)
    if identity.follows:
        fields += _FOLLOWS.pack(identity.follows)
    return fields + _CHECKSUM.pack(crc32c.crc32c(fields))


def decode_identity(content: bytes) -> LogIdentity | None:
    """None when the content is no identity."""
    fields, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
    if len(fields) < _HEADER.size or checksum != _CHECKSUM.pack(crc32c.crc32c(fields)):
        return None
    magic, version, log_id = _HEADER.unpack_from(fields)
    if (magic, version, len(fields)) == (_MAGIC, _VERSION, _HEADER.size):
        return LogIdentity(log_id)
    whole = (_MAGIC, _VERSION_THAT_FOLLOWS, _HEADER.size + _FOLLOWS.size)
    if (magic, version, len(fields)) == whole:
        return LogIdentity(log_id, *_FOLLOWS.unpack_from(fields, _HEADER.size))
    return None
