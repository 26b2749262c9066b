"""What has to be known of an object's bytes before they are written: hash, etag, checksums of the pieces."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module

_NATIVE = native_module("segmentstore.runtime.native.digests")
_NAMED = b"named object"
_Read: TypeAlias = tuple[int, bytes, tuple[int, ...]]
"""Size, SHA-256 (nothing if it was not asked for), checksums of the pieces."""


@dataclass(slots=True)
class ContentDigest:
    """Of one object's bytes."""

    size: int
    content_hash: bytes
    """SHA-256 of the bytes, or what stands for it (`digest_by_name`)."""
    pieces: tuple[int, ...]
    """CRC32 of each piece of `piece_bytes`; the last one may be shorter."""


def digest(content: Iterable[BufferView], piece_bytes: int) -> ContentDigest:
    """One pass over the bytes, of which no more than one buffer need be in memory.

    Blocking: large ones belong in an executor (hashing lets other threads run).
    """
    return ContentDigest(*_read(content, piece_bytes, hashed=True))


def digest_all(contents: Sequence[Sequence[BufferView]], piece_bytes: int) -> list[ContentDigest]:
    """As `digest`, of each; where there is the native piece, other threads are in nobody's way between two of them."""
    return [
        ContentDigest(size, content_hash, pieces)
        for size, content_hash, pieces in _read_all(contents, piece_bytes, hashed=True)
    ]


def digest_by_name(key: bytes, content: Sequence[BufferView], piece_bytes: int) -> ContentDigest:
    """As `digest`, of bytes that `key` alone tells from all others: they are summed, and not hashed.

    In the place of their hash stands that of key, size and checksums, by another function than `digest` has: so no
    content that anybody can make is ever taken for these bytes.
    """
    ((size, _, pieces),) = _read_all([content], piece_bytes, hashed=False)
    name = hashlib.blake2b(key, digest_size=32, person=_NAMED)
    name.update(struct.pack(f">Q{len(pieces)}I", size, *pieces))
    return ContentDigest(size=size, content_hash=name.digest(), pieces=pieces)


def _read_all(
    contents: Sequence[Sequence[BufferView]], piece_bytes: int, *, hashed: bool
) -> list[_Read]:
    if _NATIVE is None or (hashed and not _NATIVE.HASHES):
        return [_read(content, piece_bytes, hashed=hashed) for content in contents]
    found: list[_Read] = _NATIVE.digest_all(contents, piece_bytes, hashed)
    return found


def _read(content: Iterable[BufferView], piece_bytes: int, *, hashed: bool) -> _Read:
    """Size, SHA-256, and the checksums of the pieces: as the native piece has them."""
    sha = hashlib.sha256()
    pieces: list[int] = []
    crc, room, size = 0, piece_bytes, 0
    for buffer in content:
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise BufferError("bytes that do not lie one behind the other")
        view = view.cast("B")
        if hashed:
            sha.update(view)
        size += len(view)
        while len(view) >= room:
            pieces.append(crc32_of(view[:room], crc))
            view, crc, room = view[room:], 0, piece_bytes
        if view:
            crc = crc32_of(view, crc)
            room -= len(view)
    if room < piece_bytes:
        pieces.append(crc)
    return size, sha.digest() if hashed else b"", tuple(pieces)


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
