"""An upload in parts: what is known of it from its beginning on, and the bytes of that, a JSON object of format 1.

format, key (hexadecimal), begun_ms, content_type, metadata, retention ([mode, until_ms] or null), legal_hold, notes

The object that it becomes says which upload it was: metadata[UPLOAD_ID] of its index record is durable by the same sync
as the object is.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from segmentstore.contracts.errors import CorruptedDataError
from tier2.volumes.description import Description
from tier2.volumes.index_record import RetentionMode
from tier2.volumes.part_files import Part

UPLOAD_ID = "upload_id"
"""In the metadata of the object: for the engine's callers to know it again, not for their clients."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """What the object will be."""

    key: bytes
    begun_ms: int
    description: Description
    """Without etag and version id: those are given at the end."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What whoever began it wants to find again."""


@dataclass(slots=True)
class Upload:
    """One that was begun, with the parts that are there."""

    upload_id: str
    record: UploadRecord
    parts: dict[int, Part] = field(default_factory=dict)
    completing: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """For callers who wait for a completion under way, to see what came of it."""


def encode_upload_record(record: UploadRecord) -> bytes:
    """See the module."""
    description = record.description
    retention = None
    if description.retention is not None:
        mode, until_ms = description.retention
        retention = [mode.value, until_ms]
    fields = {
        "format": _FORMAT,
        "key": record.key.hex(),
        "begun_ms": record.begun_ms,
        "content_type": description.content_type,
        "metadata": dict(description.metadata),
        "retention": retention,
        "legal_hold": description.legal_hold,
        "notes": dict(record.notes),
    }
    return json.dumps(fields).encode()


def decode_upload_record(content: bytes) -> UploadRecord:
    """Raises CorruptedDataError."""
    try:
        fields = json.loads(content)
        if fields["format"] != _FORMAT:
            raise ValueError("another format")
        retention = fields["retention"]
        if retention is not None:
            mode, until_ms = retention
            retention = (RetentionMode(mode), int(until_ms))
        description = Description(
            content_type=str(fields["content_type"]),
            metadata=dict(fields["metadata"]),
            retention=retention,
            legal_hold=bool(fields["legal_hold"]),
        )
        key = bytes.fromhex(fields["key"])
        return UploadRecord(key, int(fields["begun_ms"]), description, dict(fields["notes"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"not the record of an upload: {content[:200]!r}") from error
