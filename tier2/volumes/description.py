"""What callers say of an object besides its bytes; and the limits of keys, texts and dates."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from segmentstore.contracts.errors import InvalidRequestError
from tier2.volumes.blob_record import INDEX_RECORD_BYTES_MAX, KEY_BYTES_MAX
from tier2.volumes.content import ContentDigest
from tier2.volumes.index_record import IndexRecord, RetentionMode, encode_index_record
from tier2.volumes.settings import VolumeSettings

_VERSION_ID_BYTES_MAX = 1024
_TEXTS_UNCHECKED = 4096
"""Characters that always fit."""
_DATE_MS_MAX = (1 << 63) - 1


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


def draft_of(
    found: ContentDigest, description: Description, *, now_ms: int, settings: VolumeSettings
) -> IndexRecord:
    """The record of a put before it has a number. Raises InvalidRequestError."""
    mode: RetentionMode | None = None
    until_ms = 0
    if description.retention is not None:
        mode, until_ms = description.retention
        check_date(until_ms)
    if description.version_id is not None:
        if not description.version_id:
            raise InvalidRequestError("a version id is not empty")
        check_texts(description.version_id)
    draft = IndexRecord(
        # In the order of the fields: names cost a third more.
        found.size,
        0,
        found.content_hash,
        description.etag or found.content_hash[:16].hex(),
        now_ms,
        settings.piece_bytes,
        found.pieces,
        description.content_type,
        dict(description.metadata),
        description.version_id or "",
        mode,
        until_ms,
        description.legal_hold,
        versioned=description.version_id is not None,
        inline=found.size <= settings.inline_bytes_max,
    )
    texts = draft.etag + draft.content_type
    if draft.metadata:
        texts += "".join(draft.metadata) + "".join(draft.metadata.values())
    if not texts.isascii() or len(texts) > _TEXTS_UNCHECKED:
        _check_length(draft)
    return draft


def is_plain(content_type: str, etag: str) -> bool:
    """Whether there is nothing that `draft_of` could refuse in these."""
    return (
        len(content_type) + len(etag) <= _TEXTS_UNCHECKED
        and content_type.isascii()
        and etag.isascii()
    )


def _check_length(draft: IndexRecord) -> None:
    try:
        length = len(encode_index_record(draft))
    except UnicodeEncodeError as error:
        raise InvalidRequestError("a text of an object cannot be encoded") from error
    if length > INDEX_RECORD_BYTES_MAX:
        raise InvalidRequestError(f"the description of an object is too long bytes={length}")


def check_key(key: bytes) -> None:
    """Raises InvalidRequestError."""
    if not 0 < len(key) <= KEY_BYTES_MAX or b"\0" in key:
        raise InvalidRequestError(
            f"an object key has 1 to {KEY_BYTES_MAX} bytes and no zero byte key={key[:100]!r}"
        )


def check_texts(*version_ids: str) -> None:
    """Raises InvalidRequestError."""
    for version_id in version_ids:
        if not version_id.isascii() or len(version_id) > _VERSION_ID_BYTES_MAX:
            raise InvalidRequestError(f"a bad version id length={len(version_id)}")


def check_date(until_ms: int) -> None:
    """Raises InvalidRequestError."""
    if not 0 <= until_ms <= _DATE_MS_MAX:
        raise InvalidRequestError(f"a bad date until_ms={until_ms}")
