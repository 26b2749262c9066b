"""What has to be known of an object's bytes before they are written: hash, etag, checksums of the pieces."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView

_NAMED = b"named object"


@dataclass(slots=True)
class ContentDigest:
    """Of one object's bytes."""

    size: int
    content_hash: bytes
    """SHA-256 of the bytes, or what stands for it (`digest_by_name`)."""
    pieces: tuple[int, ...]
    """CRC32 of each piece of `piece_bytes`; the last one may be shorter."""


def digest(content: Iterable[BufferView], piece_bytes: int) -> ContentDigest:
    """One pass over the bytes; blocking: large ones belong in an executor (hashing lets other threads run)."""
    sha = hashlib.sha256()
    size, pieces = _read(content, piece_bytes, sha.update)
    return ContentDigest(size=size, content_hash=sha.digest(), pieces=pieces)


def digest_by_name(key: bytes, content: Iterable[BufferView], piece_bytes: int) -> ContentDigest:
    """As `digest`, of bytes that `key` alone tells from all others: they are summed, and not hashed.

    In the place of their hash stands that of key, size and checksums, by another function than `digest` has: so no
    content that anybody can make is ever taken for these bytes.
    """
    size, pieces = _read(content, piece_bytes, None)
    name = hashlib.blake2b(key, digest_size=32, person=_NAMED)
    name.update(struct.pack(f">Q{len(pieces)}I", size, *pieces))
    return ContentDigest(size=size, content_hash=name.digest(), pieces=pieces)


def _read(
    content: Iterable[BufferView], piece_bytes: int, look: Callable[[memoryview], None] | None
) -> tuple[int, tuple[int, ...]]:
    """Size and the checksums of the pieces; `look` sees every byte once, in order."""
    pieces: list[int] = []
    crc, room, size = 0, piece_bytes, 0
    for buffer in content:
        view = (
            memoryview(buffer).cast("B") if isinstance(buffer, memoryview) else memoryview(buffer)
        )
        if look is not None:
            look(view)
        size += len(view)
        while len(view) >= room:
            pieces.append(crc32_of(view[:room], crc))
            view, crc, room = view[room:], 0, piece_bytes
        if view:
            crc = crc32_of(view, crc)
            room -= len(view)
    if room < piece_bytes:
        pieces.append(crc)
    return size, tuple(pieces)


def digest_piece(content: bytes) -> ContentDigest:
    """As `digest`, of bytes that are one piece."""
    pieces = (crc32_of(content),) if content else ()
    return ContentDigest(len(content), hashlib.sha256(content).digest(), pieces)


def check_pieces(
    content: BufferView, first_piece: int, pieces: Sequence[int], piece_bytes: int
) -> None:
    """Bytes that begin with piece `first_piece` and end with a piece's end. Raises CorruptedDataError."""
    if len(content) <= piece_bytes and content:
        _check_piece(content, first_piece, pieces)
        return
    view = memoryview(content)
    for number, start in enumerate(range(0, len(view), piece_bytes), start=first_piece):
        _check_piece(view[start : start + piece_bytes], number, pieces)


def _check_piece(content: BufferView, number: int, pieces: Sequence[int]) -> None:
    if crc32_of(content) != pieces[number]:
        raise CorruptedDataError(f"bytes of an object fail their checksum piece={number}")
