"""Objects as the engine's callers name them: records, descriptions, conditions; and digests of bytes: hash, checksums.

Digests are made before bytes are written, and pieces are checked by them whenever bytes are read.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module

_NATIVE_DIGESTS = native_module("segmentstore.runtime.native.digests")
_HASH_BY_NAME_PERSON = b"named object"
_DigestParts: TypeAlias = tuple[int, bytes, tuple[int, ...]]
"""Size, SHA-256 (nothing if it was not asked for), checksums of the pieces."""


class RetentionMode(Enum):
    """How strictly an object is kept until its date."""

    GOVERNANCE = "GOVERNANCE"
    """A caller that may bypass governance can delete it earlier."""
    COMPLIANCE = "COMPLIANCE"
    """No caller can, and the date can only move away."""


@dataclass(slots=True)
class Description:
    """Of one version. Never changed once made; not frozen, since making it would cost seven times as much."""

    content_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    """Empty: the first half of the SHA-256."""
    version_id: str | None = None
    """None: the one version without an id, which the next such put replaces."""
    retention: tuple[RetentionMode, int] | None = None
    """Mode and date in Unix milliseconds."""
    legal_hold: bool = False


@dataclass(slots=True)
class IndexRecord:
    """One version of an object. Never changed once it has its numbers; not frozen, since that triples its cost."""

    size: int
    sequence: int
    content_hash: bytes
    etag: str
    created_ms: int
    piece_bytes: int
    pieces: tuple[int, ...] = ()
    content_type: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    version_id: str = ""
    retention_mode: RetentionMode | None = None
    retain_until_ms: int = 0
    legal_hold: bool = False
    versioned: bool = False
    """It has a version id. The one version without an id has the id ""."""
    delete_marker: bool = False
    inline: bool = False
    """Small enough to stand in the index: every record of it carries its bytes, and it has no blob row."""
    oldest: int = 0
    """The lowest number that a record of this key and version id may have."""

    def number(self, sequence: int, oldest: int) -> None:
        """Of a draft, whose put is judged: no other thread has it. A copy would cost as much as all its bytes do."""
        self.sequence = sequence
        self.oldest = oldest

    def is_locked(self, now_ms: int, *, bypass_governance: bool) -> bool:
        """Whether it must be neither removed nor overwritten now."""
        if self.legal_hold:
            return True
        if self.retention_mode is None or now_ms >= self.retain_until_ms:
            return False
        return self.retention_mode is RetentionMode.COMPLIANCE or not bypass_governance

    def check(self) -> None:
        expected = -(-self.size // self.piece_bytes) if self.piece_bytes else 0
        assert len(self.pieces) == expected, (
            f"checksums do not cover the blob size={self.size} pieces={len(self.pieces)}"
        )
        assert not (self.delete_marker and self.size), f"a delete marker of {self.size} bytes"


@dataclass(slots=True)
class StoredObject:
    """A version of an object with its bytes. Never changed; not frozen, since that makes it four times as dear."""

    record: IndexRecord
    content: bytes


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One row of a listing."""

    key: bytes
    record: IndexRecord


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """A key with its versions, or those of them that were asked for, newest first."""

    key: bytes
    records: Sequence[IndexRecord]
    with_current: bool
    """Whether the first of them is the current one."""


class UploadNotFoundError(ObjectNotFoundError):
    """It was never begun, or is completed, given up, or too old."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Refused unless all that is given holds."""

    absent: bool = False
    """No current version, or a delete marker."""
    present: bool = False
    """A current version that is no delete marker, whichever it is."""
    etag: str | None = None
    """Of the current version."""
    sequence: int | None = None
    """Of the current version: unlike the etag it never comes back."""


ALWAYS = Condition()


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
    return ContentDigest(*_digest_parts(content, piece_bytes, hashed=True))


def digest_all(contents: Sequence[Sequence[BufferView]], piece_bytes: int) -> list[ContentDigest]:
    """As `digest`, of each; the native piece lets other threads run between two of them."""
    return [
        ContentDigest(size, content_hash, pieces)
        for size, content_hash, pieces in _digest_parts_of_all(contents, piece_bytes, hashed=True)
    ]


def digest_by_name(key: bytes, content: Sequence[BufferView], piece_bytes: int) -> ContentDigest:
    """As `digest`, of bytes that `key` alone tells from all others: they are summed, and not hashed.

    In the place of their hash stands that of key, size and checksums, by another function than `digest` has: so no
    content that a client can make is ever taken for these bytes.
    """
    ((size, _, pieces),) = _digest_parts_of_all([content], piece_bytes, hashed=False)
    name = hashlib.blake2b(key, digest_size=32, person=_HASH_BY_NAME_PERSON)
    name.update(struct.pack(f">Q{len(pieces)}I", size, *pieces))
    return ContentDigest(size=size, content_hash=name.digest(), pieces=pieces)


def _digest_parts_of_all(
    contents: Sequence[Sequence[BufferView]], piece_bytes: int, *, hashed: bool
) -> list[_DigestParts]:
    if _NATIVE_DIGESTS is None or (hashed and not _NATIVE_DIGESTS.HASHES):
        return [_digest_parts(content, piece_bytes, hashed=hashed) for content in contents]
    found: list[_DigestParts] = _NATIVE_DIGESTS.digest_all(contents, piece_bytes, hashed)
    return found


def _digest_parts(content: Iterable[BufferView], piece_bytes: int, *, hashed: bool) -> _DigestParts:
    """Size, SHA-256, and the checksums of the pieces: as the native piece has them."""
    running = RunningDigest(piece_bytes, hashed=hashed)
    running.update(content)
    found = running.digest()
    return found.size, found.content_hash, found.pieces


class RunningDigest:
    """As `digest`, of bytes that come one after the other: update() as often as there are some, then digest()."""

    def __init__(self, piece_bytes: int, *, hashed: bool = True) -> None:
        """Unless `hashed`, there is no hash."""
        self.size = 0
        """Of what came."""
        self._piece_bytes = piece_bytes
        self._sha = hashlib.sha256() if hashed else None
        self._pieces: list[int] = []
        self._crc = 0
        """Of the piece that is not full yet."""
        self._room = piece_bytes
        """What it lacks."""

    def update(self, content: Iterable[BufferView]) -> None:
        """Blocking. Raises BufferError for bytes that do not lie one behind the other."""
        crc, room = self._crc, self._room
        for buffer in content:
            view = memoryview(buffer)
            if not view.c_contiguous:
                raise BufferError("bytes that do not lie one behind the other")
            view = view.cast("B")
            if self._sha is not None:
                self._sha.update(view)
            self.size += len(view)
            while len(view) >= room:
                self._pieces.append(crc32_of(view[:room], crc))
                view, crc, room = view[room:], 0, self._piece_bytes
            if view:
                crc = crc32_of(view, crc)
                room -= len(view)
        self._crc, self._room = crc, room

    def digest(self) -> ContentDigest:
        """Of all that came; more may follow."""
        pieces = tuple(self._pieces)
        if self._room < self._piece_bytes:
            pieces += (self._crc,)
        return ContentDigest(self.size, b"" if self._sha is None else self._sha.digest(), pieces)


def digest_piece(content: bytes) -> ContentDigest:
    """As `digest`, of bytes that are one piece."""
    pieces = (crc32_of(content),) if content else ()
    return ContentDigest(len(content), hashlib.sha256(content).digest(), pieces)


def cannot_change(content: Sequence[BufferView]) -> bool:
    """What was hashed is what will be written, whatever its owner does meanwhile.

    Of all else the record's checksum is made anew: a record that is not whole would take its batch along after a power
    cut, and so others' objects; bytes that differ from their hash are the trouble of one object.
    """
    for buffer in content:
        owner = buffer.obj if type(buffer) is memoryview else buffer
        if type(owner) is not bytes:
            return False
    return True


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
