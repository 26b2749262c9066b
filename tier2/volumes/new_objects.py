"""A group of new objects, sealed: their records and their rows, made by one call.

Most groups are puts of keys that nothing is known of, with bytes that nobody has stored, and without conditions,
versions or locks. Of such a group nothing can be refused, and all numbers and places are known before anything is
written. The call is native where that was built (`native/record_seal.c`); its twin in Python does the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.volumes.blob_record import (
    RECORD_HEADER_BYTES,
    GroupRecord,
    RecordKind,
    encode_group_headers,
    padding_of,
)
from tier2.volumes.buffered_index import RowsAhead
from tier2.volumes.index_record import IndexRecord, encode_index_record
from tier2.volumes.index_rows import (
    BLOB,
    CURRENT,
    BlobRow,
    ObjectRow,
    blob_key,
    current_key,
    encode_blob_row,
    encode_object_row,
)
from tier2.volumes.mutations import ALWAYS, NewObject, Put


def new_object(put: Put) -> NewObject | None:
    """What is known of it, if there may be nothing to judge: nothing else is said of it than bytes, etag and type."""
    draft, content = put.draft, put.content
    if (
        put.condition is not ALWAYS
        or put.stored is not None
        or len(draft.pieces) != 1
        or draft.metadata
        or draft.versioned
        or draft.retention_mode
        or draft.legal_hold
        or not cannot_change(content)
    ):
        return None
    return (
        put.key,
        draft.content_type,
        draft.etag,
        draft.content_hash,
        draft.pieces[0],
        draft.size,
        draft.created_ms,
        b"".join(content) if draft.inline else None,
        content,
    )


def cannot_change(content: Sequence[BufferView]) -> bool:
    """What was hashed is what will be written, whatever its owner does meanwhile.

    Of all else the record's checksum is made anew: a record that is not whole would take its group along after a power
    cut, and so others' objects; bytes that differ from their hash are the trouble of one object.
    """
    for buffer in content:
        owner = buffer.obj if type(buffer) is memoryview else buffer
        if type(owner) is not bytes:
            return False
    return True


Sealed: TypeAlias = tuple[list[bytes], dict[bytes, bytes], int, int]
"""What is written: the bytes before, between and behind the blobs of objects that are not inline. Then the rows of the
index by their keys; the length of all, those blobs included; and how much of that is live."""
Seal: TypeAlias = Callable[[Sequence[NewObject], int, int, int, int, int, int], Sealed]
"""Of a group, the number of its first record, the number of the volume, the group's place in it, the volume's seed,
the time, and the length of a piece (which is no shorter than any of the objects)."""


class GroupPlace(NamedTuple):
    """Where a group begins."""

    volume: int
    offset: int
    seed: int
    """Of the volume (`seed_of`)."""
    sequence: int


@dataclass(slots=True)
class SealedGroup:
    """What is written for a group of new objects, and what the index gets."""

    place: GroupPlace
    buffers: list[BufferView]
    length: int
    """Of all buffers."""
    live: int
    """Bytes of it that are live."""
    unique_bytes: int
    """Bytes of it that the system need not keep in memory."""
    rows: dict[bytes, bytes | None]
    records: list[IndexRecord]
    """The outcomes, in the order of the puts."""


@dataclass(slots=True)
class Prepared:
    """What was made ready for some puts before their group begins, beside the one before it."""

    rows: RowsAhead
    sealed: SealedGroup | None = None
    """Of these puts, if nothing was known of any of them then."""


def rows_asked_for(puts: Sequence[Put]) -> list[bytes]:
    """The rows of the index that say whether there are such objects, and such bytes."""
    wanted = [CURRENT + put.key for put in puts]
    wanted += [BLOB + put.draft.content_hash for put in puts if not put.draft.inline]
    return wanted


def seal_group(puts: Sequence[Put], place: GroupPlace, now_ms: int) -> SealedGroup:
    """Puts that have `new`, of keys and bytes without a row, each named once."""
    objects = [put.new for put in puts if put.new is not None]
    assert len(objects) == len(puts) > 0, "puts that have to be judged"
    records = [put.draft for put in puts]
    parts, rows, length, live = seal(
        objects,
        place.sequence,
        place.volume,
        place.offset,
        place.seed,
        now_ms,
        records[0].piece_bytes,
    )
    for sequence, record in enumerate(records, start=place.sequence):
        record.number(sequence, sequence)
    buffers: list[BufferView] = [parts[0]]
    unique_bytes = 0
    if len(parts) > 1:
        following = iter(parts[1:])
        for put in puts:
            if not put.draft.inline:
                buffers += (*put.content, next(following))
                if put.unique:
                    unique_bytes += put.draft.size
    return SealedGroup(place, buffers, length, live, unique_bytes, {**rows}, records)


def native_seal() -> Seal | None:
    """None where it was not built, or is switched off."""
    module = native_module("tier2.volumes.native.record_seal")
    return None if module is None else module.seal


def seal_in_python(
    objects: Sequence[NewObject],
    sequence: int,
    volume: int,
    offset: int,
    seed: int,
    timestamp_ms: int,
    piece_bytes: int,
) -> Sealed:
    """The twin."""
    records: list[GroupRecord] = []
    rows: dict[bytes, bytes] = {}
    length = live = 0
    for number, one in enumerate(objects, start=sequence):
        key, content_type, etag, content_hash, crc, size, created_ms, inline, content = one
        record = IndexRecord(
            size,
            number,
            content_hash,
            etag,
            created_ms,
            piece_bytes,
            (crc,),
            content_type,
            inline=inline is not None,
            oldest=number,
        )
        encoded = encode_index_record(record)
        start, front = offset + length, RECORD_HEADER_BYTES + len(key) + len(encoded)
        whole = front + size
        if inline is None:
            row = ObjectRow(volume, start, front, record)
            blob_row = BlobRow(volume, start, start + front, size, 1)
            rows[blob_key(content_hash)] = encode_blob_row(blob_row)
        else:
            row = ObjectRow(volume, start, whole, record, inline)
        rows[current_key(key)] = encode_object_row(row, encoded)
        records.append((RecordKind.PUT, number, key, encoded, content))
        live += whole
        length += whole + len(padding_of(whole))
    headers = encode_group_headers(records, seed=seed, timestamp_ms=timestamp_ms)
    parts = _parts(records, headers, [one[7] for one in objects])
    return parts, rows, length, live


def _parts(
    records: Sequence[GroupRecord], headers: Sequence[bytes], inlines: Sequence[bytes | None]
) -> list[bytes]:
    parts: list[bytes] = []
    part: list[bytes] = []
    for (_, _, key, encoded, content), header, inline in zip(
        records, headers, inlines, strict=True
    ):
        part += (header, key, encoded)
        if inline is None:
            parts.append(b"".join(part))
            part = []
        else:
            part.append(inline)
        part.append(padding_of(len(key) + len(encoded) + sum(map(len, content))))
    parts.append(b"".join(part))
    return parts


seal: Seal = native_seal() or seal_in_python
