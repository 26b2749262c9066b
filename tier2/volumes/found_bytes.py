"""Bytes that are stored already under the hash of a put: read and checked before the put is answered with them.

Invariants:

- An answered put can be read back: it refers to bytes that it wrote, or to bytes that were found sound.
- Sound is what reads and a rebuild would find: the volume is there with its header, the record's header is good, its
  checksum is that of key, index record and bytes, and the bytes are those of the put, by its own checksums.
- Whatever takes the place of bytes that others name is certainly what its hash says: of buffers that may change
  meanwhile a copy is hashed again, and written.

Blocking; made for an executor. Memory: one piece.
"""

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File
from tier2.volumes.blob_record import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_record_header,
    seed_of,
)
from tier2.volumes.content import digest, digest_by_name
from tier2.volumes.index_record import IndexRecord, decode_index_record
from tier2.volumes.index_rows import BlobRow
from tier2.volumes.mutations import CheckedBytes, Put
from tier2.volumes.new_objects import cannot_change
from tier2.volumes.volume_files import VolumeFiles

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundBytes:
    """The outcome of a put that is not made yet: the index has its bytes there, and nobody has looked."""

    place: BlobRow


class FoundBytesCheck:
    """Looks. Any number of threads at once."""

    def __init__(self, *, volumes: VolumeFiles) -> None:
        self._volumes = volumes

    def check(self, put: Put, found: FoundBytes) -> Put:
        """The same put, with what is there. Raises CorruptedDataError if its own bytes have changed meanwhile."""
        place = found.place
        try:
            self._require_sound(put.draft, place)
        except (CorruptedDataError, OSError) as error:
            _LOGGER.error(
                "bytes that are put again are damaged, and written anew: %s volume=%d offset=%d",
                error,
                place.volume,
                place.record_offset,
            )
            key, version_id = self._named_at(place)
            checked = CheckedBytes(place, False, key, version_id)
            return replace(put, content=_certain(put), checked=checked)
        return replace(put, checked=CheckedBytes(place, True))

    def _require_sound(self, draft: IndexRecord, place: BlobRow) -> None:
        """Raises CorruptedDataError, OSError (FileNotFoundError if the volume is gone)."""
        with closing(self._volumes.open(place.volume)) as file:
            self._require_whole(file, draft, place)

    def _require_whole(self, file: File, draft: IndexRecord, place: BlobRow) -> None:
        front, header, secret = self._front(file, place)
        if (header.blob_offset, header.blob_length, draft.size) != (
            len(front),
            place.size,
            place.size,
        ):
            raise CorruptedDataError(f"another record is there {header=} {place=}")
        crc = crc32_of(memoryview(front)[RECORD_HEADER_BYTES:], seed_of(secret))
        position, end = place.blob_offset, place.blob_offset + place.size
        for number, expected in enumerate(draft.pieces):
            piece = file.read_at(position, min(draft.piece_bytes, end - position))
            if crc32_of(piece) != expected:
                raise CorruptedDataError(f"bytes fail their checksum piece={number}")
            crc = crc32_of(piece, crc)
            position += len(piece)
        if position != end or crc != header.crc:
            raise CorruptedDataError("a record fails its checksum")

    def _named_at(self, place: BlobRow) -> tuple[bytes, str]:
        """Key and version id of the record that brought the bytes, as far as they can be read; they may be wrong."""
        try:
            with closing(self._volumes.open(place.volume)) as file:
                front, header, _ = self._front(file, place)
            encoded = RECORD_HEADER_BYTES + header.key_length
            record = decode_index_record(front[encoded : header.blob_offset])
        except (CorruptedDataError, OSError):
            return b"", ""
        return front[RECORD_HEADER_BYTES:encoded], record.version_id

    def _front(self, file: File, place: BlobRow) -> tuple[bytes, RecordHeader, int]:
        """Everything of the record before the bytes, its header, and the volume's secret number."""
        volume = self._volumes.header_in(file, place.volume)
        if volume is None:
            raise CorruptedDataError("the volume has no header")
        length = place.blob_offset - place.record_offset
        front = file.read_at(place.record_offset, max(0, length))
        return front, decode_record_header(front, volume.secret), volume.secret


def _certain(put: Put) -> Sequence[BufferView]:
    """The bytes of a put, which are what its hash says and stay so. Raises CorruptedDataError."""
    if cannot_change(put.content):
        return put.content
    content = (b"".join(put.content),)
    draft = put.draft
    now = (
        digest_by_name(put.key, content, draft.piece_bytes)
        if put.unique
        else digest(content, draft.piece_bytes)
    )
    if (now.content_hash, now.pieces) != (draft.content_hash, draft.pieces):
        raise CorruptedDataError(f"the bytes of a put changed while it waited key={put.key!r}")
    return content
