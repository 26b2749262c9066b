"""One record of a volume, as the description of its bytes has it: all faster ways to make it are held against this."""

from collections.abc import Sequence
from zlib import crc32

from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.volume_format import (
    ALIGNMENT,
    RecordHeader,
    RecordKind,
    encode_record_header,
    seed_of,
)


def encode_record(
    *,
    secret: int,
    kind: RecordKind,
    timestamp_ms: int,
    sequence: int,
    key: bytes,
    index_record: bytes,
    blob: Sequence[BufferView] = (),
    batch_left: int = 0,
) -> list[BufferView]:
    """Its buffers, one behind the other, with so many of its group behind it."""
    body = (key, index_record, *blob)
    header = RecordHeader(
        crc=crc32(b"".join(body), seed_of(secret)),
        timestamp_ms=timestamp_ms,
        key_length=len(key),
        blob_length=sum(map(len, blob)),
        kind=kind,
        index_record_length=len(index_record),
        sequence=sequence,
        batch_left=batch_left,
    )
    padding = bytes(-header.body_length % ALIGNMENT)
    return [encode_record_header(header, secret), *body, padding]
