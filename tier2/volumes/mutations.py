"""What callers ask to be changed, as it waits for its batch, with conditions; and the limits of keys, texts and dates.

A mutation is judged by the thread that commits its batch, against the index and the mutations before it in the batch;
no other thread changes the index in between, so a condition that holds when it is judged holds when it is applied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.index import BlobRow, ObjectRow, RowMove
from tier2.volumes.objects import (
    ALWAYS,
    Condition,
    ContentDigest,
    Description,
    IndexRecord,
    RetentionMode,
)
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_format import INDEX_RECORD_BYTES_MAX, KEY_BYTES_MAX, encode_index_record

_VERSION_ID_BYTES_MAX = 1024
_TEXTS_UNCHECKED_MAX = 4096
"""Characters that always fit."""
_RETENTION_DATE_MS_MAX = (1 << 63) - 1

NewObject: TypeAlias = tuple[
    bytes, str, str, bytes, int, int, int, bytes | None, Sequence[BufferView]
]
"""Key, content type, etag, hash of the content, its CRC32, its size, Unix milliseconds; its bytes, if they stand in the
index as well; and its buffers. All of it is measured before it is written: none of it may change."""


@dataclass(frozen=True, slots=True)
class DuplicateFound:
    """The outcome of a put that is not made yet: the index has its bytes there, and no thread has read them yet."""

    place: BlobRow


@dataclass(frozen=True, slots=True)
class CheckedDuplicate:
    """What was found where the index has bytes of the hash of a put."""

    place: BlobRow
    are_sound: bool
    key: bytes = b""
    version_id: str = ""
    """Where they are not: whose record brought them, as far as that can be read. Nothing checks it."""


@dataclass(slots=True)
class Put:
    """A new version of an object. `draft` is its record without a sequence number.

    Never changed once made; not frozen, since making it would cost seven times as much.
    """

    key: bytes
    draft: IndexRecord
    content: Sequence[BufferView]
    """Empty, and `draft.size` is not 0: the bytes are stored already, in `stored` or where the index has their hash."""
    condition: Condition = ALWAYS
    bypass_governance: bool = False
    stored: BlobRow | None = None
    """The bytes are synced in a volume of their own already."""
    unique: bool = False
    """The caller keeps the newest bytes in memory too."""
    new: NewObject | None = None
    """What its batch needs of it if nothing is known of its key and bytes; None: it has to be judged."""
    checked: CheckedDuplicate | None = None
    """Its bytes are there already, and were read and compared (deduplication.py)."""

    @property
    def size(self) -> int:
        """Bytes that it holds in memory: none if it is said where they are, or that they are stored already."""
        return self.draft.size if self.content else 0


@dataclass(slots=True)
class UnhashedPut:
    """A put whose bytes have still to be hashed: it becomes a `Put` before its batch is made.

    Never changed once made; not frozen, as there.
    """

    key: bytes
    content: Sequence[BufferView]
    size: int
    description: Description
    condition: Condition = ALWAYS
    bypass_governance: bool = False
    unique: bool = False
    """As in `Put`; and in place of its hash stands that of its name."""


class SmallPut(NamedTuple):
    """Of bytes, etag and type alone. The thread that makes its batch hashes it: no other is reached sooner."""

    key: bytes
    content: bytes
    content_type: str
    etag: str
    """As in `Description`."""
    size: int


@dataclass(frozen=True, slots=True)
class Delete:
    """The object, or one version of it, is gone.

    Without a version id and marker: the current version. With a marker id: a marker becomes the current version; the
    marker of the empty id takes the place of the version without an id.
    """

    key: bytes
    version_id: str | None = None
    marker_id: str | None = None
    condition: Condition = ALWAYS
    bypass_governance: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class ChangeLock:
    """Other retention, or another legal hold, for one version. What is None stays."""

    key: bytes
    version_id: str | None
    retention: tuple[RetentionMode | None, int] | None = None
    """Mode and date in Unix milliseconds; a mode of None ends it."""
    legal_hold: bool | None = None
    bypass_governance: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Relocation:
    """Compaction has copied and verified a record: point to the copy, if the original is still the one that counts."""

    key: bytes
    old: ObjectRow | None
    new: ObjectRow | None
    old_blob: BlobRow | None = None
    new_blob: BlobRow | None = None
    content_hash: bytes = b""
    size: int = 0


@dataclass(frozen=True, slots=True)
class PlainRelocation:
    """The same of many plain records (volume_format.py) of one volume: each is judged for itself."""

    source: int
    target: int
    moves: Sequence[RowMove]
    size: int = 0


@dataclass(frozen=True, slots=True)
class VolumeWritten:
    """A volume that compaction, or a large upload, has written and synced up to `end`."""

    volume: int
    end: int
    sequence_lowest: int
    sequence_highest: int
    tombstone_bytes: int = 0
    tombstone_oldest: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class VolumeRemoved:
    """The file of a volume of which nothing is live is gone."""

    volume: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class VolumeShortened:
    """Nothing of a volume is live from `end` on, and that is about to be cut off: a start looks at it anew."""

    volume: int
    end: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class SyncIndex:
    """Not answered before the index survives a power cut, with everything before it in the queue."""

    size: int = 0


Mutation: TypeAlias = (
    Put
    | Delete
    | ChangeLock
    | Relocation
    | PlainRelocation
    | VolumeWritten
    | VolumeRemoved
    | VolumeShortened
    | SyncIndex
)
FREES_SPACE = (
    Delete,
    Relocation,
    PlainRelocation,
    VolumeWritten,
    VolumeRemoved,
    VolumeShortened,
    SyncIndex,
)
"""What goes on when the disk is full."""
OF_COMPACTION = (
    Relocation,
    PlainRelocation,
    VolumeWritten,
    VolumeRemoved,
    VolumeShortened,
    SyncIndex,
)


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
    if not texts.isascii() or len(texts) > _TEXTS_UNCHECKED_MAX:
        _check_draft_length(draft)
    return draft


def is_plain(content_type: str, etag: str) -> bool:
    """Whether there is nothing that `draft_of` could refuse in these."""
    return (
        len(content_type) + len(etag) <= _TEXTS_UNCHECKED_MAX
        and content_type.isascii()
        and etag.isascii()
    )


def _check_draft_length(draft: IndexRecord) -> None:
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
    if not 0 <= until_ms <= _RETENTION_DATE_MS_MAX:
        raise InvalidRequestError(f"a bad date until_ms={until_ms}")
