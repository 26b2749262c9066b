"""What is known of a multipart upload from its creation on, and its bytes: a JSON object, version 1."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from segmentstore.contracts.errors import CorruptedDataError

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """What the object will be. Lock values as in index records; an empty mode is none."""

    bucket: str
    key: str
    created_ms: int
    content_type: str
    metadata: Mapping[str, str]
    checksum_algorithm: str = ""
    """In lower case; empty: none was announced."""
    composite: bool = True
    """Whether the object gets the checksum of its parts' checksums."""
    retention_mode: str = ""
    retain_until_ms: int = 0
    legal_hold: bool = False


def encode_upload_record(record: UploadRecord) -> bytes:
    """See the module."""
    return json.dumps({"format": _FORMAT, **asdict(record)}).encode()


def decode_upload_record(content: bytes) -> UploadRecord:
    """Raises CorruptedDataError."""
    try:
        fields = json.loads(content)
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        return UploadRecord(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"not the record of an upload: {content[:200]!r}") from error
