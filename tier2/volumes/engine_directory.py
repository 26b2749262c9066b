"""The directory of an engine, and the id that its volumes carry.

    DIR/identity    b"S4ENGINE", u8 version 1, 7 zero bytes, 16 bytes engine id, u32 CRC32; written once

Invariants:

- The identity is durable before the first volume; a directory with volumes and without an identity is refused, never
  given a new one.
"""

from random import Random

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.files import FileSystem

_MAGIC = b"S4ENGINE\x01" + bytes(7)
_IDENTITY_BYTES = 36


def is_engine_directory(directory: str, files: FileSystem) -> bool:
    """Whether volumes were opened here before."""
    return files.exists(f"{directory}/identity") and files.is_directory(f"{directory}/volumes")


def engine_identity(directory: str, files: FileSystem, random: Random) -> bytes:
    """The engine's id; made and made durable if there is none yet. Raises CorruptedDataError."""
    path = f"{directory}/identity"
    if not files.exists(path):
        if files.list(f"{directory}/volumes"):
            raise CorruptedDataError(f"volumes without an identity directory={directory}")
        _write_identity(directory, path, files, random)
    file = files.open(path)
    try:
        content = file.read_at(0, _IDENTITY_BYTES + 1)
    finally:
        file.close()
    body = content[:-4]
    if (
        len(content) != _IDENTITY_BYTES
        or not body.startswith(_MAGIC)
        or crc32_of(body) != int.from_bytes(content[-4:], "big")
    ):
        raise CorruptedDataError(f"the identity of the volumes is damaged path={path}")
    return body[len(_MAGIC) :]


def _write_identity(directory: str, path: str, files: FileSystem, random: Random) -> None:
    temporary = f"{directory}/identity.new"
    body = _MAGIC + random.randbytes(16)
    file = files.open(temporary, create=True)
    try:
        file.write_at(0, [body + crc32_of(body).to_bytes(4, "big")])
        file.sync_data()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(directory)
