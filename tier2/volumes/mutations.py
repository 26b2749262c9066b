"""What callers ask to be changed, as it waits for its group, and the conditions under which it may be.

A mutation is judged in the writer's turn, against the index and the mutations before it in its group; nobody else
changes the index in between, so a condition that holds when it is judged holds when it is applied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.description import Description
from tier2.volumes.index_record import IndexRecord, RetentionMode
from tier2.volumes.index_rows import BlobRow, ObjectRow, RowMove


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


NewObject: TypeAlias = tuple[
    bytes, str, str, bytes, int, int, int, bytes | None, Sequence[BufferView]
]
"""Key, content type, etag, hash of the content, its CRC32, its size, Unix milliseconds; its bytes, if they stand in the
index as well; and its buffers. All of it is measured before it is written: none of it may change."""


@dataclass(frozen=True, slots=True)
class CheckedBytes:
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
    condition: Condition = ALWAYS
    bypass_governance: bool = False
    stored: BlobRow | None = None
    """The bytes are synced in a volume already, and `content` is empty."""
    unique: bool = False
    """Of somebody who keeps the newest bytes in memory too."""
    new: NewObject | None = None
    """What its group needs of it if nothing is known of its key and bytes; None: it has to be judged (new_objects)."""
    checked: CheckedBytes | None = None
    """Its bytes are there already, and somebody has looked (found_bytes)."""

    @property
    def size(self) -> int:
        return 0 if self.stored is not None else self.draft.size


@dataclass(slots=True)
class Undigested:
    """A put whose bytes have still to be hashed: it becomes a `Put` before its group is made.

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
    """Of bytes, etag and type, and nothing else. Whoever makes its group hashes it: no thread is sooner reached."""

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
    """The same of many plain records (plain_copy) of one volume: each is judged for itself."""

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
class IndexSynced:
    """Not answered before the index survives a power cut, with everything before it in the line."""

    size: int = 0


Mutation: TypeAlias = (
    Put
    | Delete
    | ChangeLock
    | Relocation
    | PlainRelocation
    | VolumeWritten
    | VolumeRemoved
    | IndexSynced
)
FREES_SPACE = (Delete, Relocation, PlainRelocation, VolumeWritten, VolumeRemoved, IndexSynced)
"""What goes on when the disk is full."""
OF_COMPACTION = (Relocation, PlainRelocation, VolumeWritten, VolumeRemoved, IndexSynced)
