"""The interface of Tier 2 as the one owner of a container sees it: segment verbs under one commit point.

A flush round is one `publish()`: it uploads chunks (many small segments share one object), writes one SST of
changed records, and replaces the container's manifest by compare-and-set. All of a publication becomes visible at once
or not at all, so no half merge, no half delete and no attribute ahead of its bytes can exist.

Guarantees (tests/contracts/storage_suite.py):

- S1  publish() is all or nothing, and what it completed every later call sees, after any crash.
- S2  After claim(e), a publish under a smaller epoch raises StorageNotPrimaryError and changes nothing.
- S3  A published record's `length` never shrinks and its `start_offset` never goes back; `read` returns exactly
      the published bytes of [start_offset, length) or raises; it never returns bytes that fail a checksum.
- S4  An unknown outcome is resolved inside publish() by reading the manifest back; StorageError out of publish()
      means: nothing is known to be published; the same publication may be handed in again, unchanged.
- S5  Dropped bytes are deleted later, when no reader and no backup can need them, by collect_garbage().
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from segmentstore.contracts.errors import StorageNotPrimaryError
from segmentstore.contracts.identifiers import (
    AttributeKey,
    AttributeValue,
    BufferView,
    Epoch,
    SegmentId,
    SequenceNumber,
)


class ClaimedBySameLogError(StorageNotPrimaryError):
    """Another owner of the log, or of a copy of it, has claimed the manifest under the epoch with which we came, or
    under a higher one."""

    def __init__(self, message: str, *, epochs_ahead: int) -> None:
        super().__init__(message)
        self.epochs_ahead = epochs_ahead
        """0 if it was our epoch."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment as Tier 2 knows it: the state after exactly the operations up to `sequence_number`."""

    segment_id: SegmentId
    name: str
    start_offset: int
    length: int
    """End of the bytes in Tier 2: the container's `storage_length`."""
    sealed: bool
    last_modified_ms: int
    """Unix time in milliseconds; never goes back."""
    sequence_number: SequenceNumber
    """Operations at or below it are in this record; replay does not apply them again."""
    core_attributes: Mapping[AttributeKey, AttributeValue] = field(default_factory=dict)
    extended_attribute_count_is_zero: bool = False
    """True only if no extended attribute of this segment was ever published: absent needs no look-up."""


@dataclass(frozen=True, slots=True)
class RunEvents:
    """What is known of the events of one run. Times are Unix milliseconds."""

    first_number: int | None
    """The run begins with this event, counted from the segment's creation; None: it begins inside an event that began
    before it."""
    lowest_time_ms: int
    highest_time_ms: int


@dataclass(frozen=True, slots=True)
class DataPiece:
    """New bytes of a segment at [offset, offset + sum of the runs)."""

    offset: int
    runs: Sequence[BufferView]
    """Each run begins and ends on an append boundary; blocks end only between runs."""
    events: Sequence[RunEvents | None] | None = None
    """One for each run, None for bytes of unknown structure; None for all of them: a byte stream."""


@dataclass(frozen=True, slots=True)
class MergePiece:
    """The published bytes of a source, moved to [offset, offset + length) of this segment without copying."""

    offset: int
    source_id: SegmentId
    length: int
    """The source's published length. Its start offset is 0: a truncated source is refused earlier."""
    first_event: int | None = None
    """Number that the source's first event has in this segment; None: its events do not count here."""
    begins_event: bool = False
    """The moved bytes begin with that event, whatever their sender declared of them."""


Piece: TypeAlias = DataPiece | MergePiece


@dataclass(frozen=True, slots=True)
class SegmentPublication:
    """Everything that changed for one segment since its last publication."""

    record: SegmentRecord
    pieces: Sequence[Piece] = ()
    """In offset order, without gaps, from max(published length, record.start_offset) to record.length."""
    attributes: Mapping[AttributeKey, AttributeValue | None] = field(default_factory=dict)
    """Extended attributes that changed; None removes one."""
    deleted: bool = False
    """The segment leaves the catalog with its layout and attributes. A merged source is named by the
    MergePiece *and* by its own publication with `deleted`."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One flush round of a container."""

    segments: Sequence[SegmentPublication]
    highest_segment_id: SegmentId
    highest_sequence_number: SequenceNumber
    """Never smaller than in the manifest: recovery from Tier 2 alone continues above them."""


@dataclass(frozen=True, slots=True)
class ClaimedManifest:
    """What the manifest said when it was claimed."""

    created: bool
    """The manifest did not exist before: this container starts from nothing."""
    was_ours: bool
    """An earlier owner of the same log had claimed it."""
    epoch: Epoch
    version: int
    changes: int
    """How many changes of the manifest there were, claims not counted."""
    highest_segment_id: SegmentId
    highest_sequence_number: SequenceNumber


@dataclass(frozen=True, slots=True)
class AttributePage:
    """Some extended attributes of a segment, in the order of their keys."""

    values: Sequence[tuple[AttributeKey, AttributeValue]]
    """May be empty although more follow."""
    following: AttributeKey | None
    """Where the next page starts: everything below it is in this one. None: there are no more."""


@dataclass(frozen=True, slots=True)
class StorageRead:
    """Bytes from Tier 2: whole blocks around what was asked for, so possibly wider on both sides."""

    offset: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    """A snapshot for `/health` and `/metrics`. Counters grow from the start of the process."""

    root_version: int
    run_count: int
    garbage_objects: int
    puts: int
    gets: int
    put_bytes: int
    get_bytes: int
    stored_bytes_before_compression: int
    stored_bytes_after_compression: int
    checksum_failures: int
    joined_chunks: int = 0
    """Chunks that compaction replaced by fewer."""
    joined_bytes: int = 0
    """Uncompressed bytes that it copied for that."""
    scrubbed_chunks: int = 0
    scrubbed_bytes: int = 0
    """Stored bytes that were read to prove them."""
    scrub_damages: int = 0
    scrub_repairs: int = 0
    scrub_passes: int = 0
    """Times that every chunk was looked at."""
    last_scrubbed_ms: int = 0
    """Unix time at which the last pass ended; 0 if none has."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """One block of a segment's published bytes, as readers of the objects find it."""

    offset: int
    """In the segment; of the block's first byte."""
    length: int
    """Uncompressed bytes."""
    first_event_offset: int | None
    """In the segment: where the first event that starts in the block starts; None if none is known to."""
    event_number: int
    """Of that event, counted from the segment's creation; 0 without one."""
    events_known: bool
    """False: no writer said where events lie in this block. True without a first event: it is the inside of one."""
    lowest_time_ms: int
    highest_time_ms: int
    """Bounds of the append times of the block's events, in Unix milliseconds; 0 if nothing is known."""
    object_key: str
    image_position: int
    """Of the chunk's image in the object."""
    position: int
    """Of the block's stored bytes in the object."""
    stored_length: int
    """Without the checksum behind them."""
    compression: int
    """As the chunk format numbers it."""

    @property
    def begins_on_event(self) -> bool:
        return self.first_event_offset == self.offset

    @property
    def times_known(self) -> bool:
        """Whether the two bounds hold. Where events lie may be known without when all of them came."""
        return self.events_known and self.highest_time_ms > 0


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One chunk image of a segment."""

    start_offset: int
    end_offset: int
    """In the segment; exclusive."""
    object_key: str
    position: int
    """Of the image in the object."""
    size: int
    """Bytes of the image."""


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A manifest version that is kept for a backup: nothing that it names is deleted."""

    name: str
    created_ms: int
    """Unix time."""
    epoch: int
    version: int
    """Of the manifest that is kept."""
    is_proved: bool = True
    """False while it is not known, or never was, to be of one moment with those of the other containers."""


@dataclass(frozen=True, slots=True)
class ProposedImage:
    """A chunk image: where it lies and which bytes of the segment it holds."""

    start_offset: int
    end_offset: int
    object_key: str
    position: int
    size: int
    file_crc32: int


@dataclass(frozen=True, slots=True)
class SwapProposal:
    """Put `new` in the place of `old`: the same range of one segment, both in offset order."""

    segment_id: SegmentId
    old: Sequence[ProposedImage]
    new: Sequence[ProposedImage]


class SwapOwner(Protocol):
    """What the owner of a container's Tier 2 does for a compactor that is another process."""

    def reserve_object_keys(self, count: int) -> list[str]:
        """Keys under which objects may be uploaded for a proposal. Raises StoreFullError."""
        ...

    def release_object_keys(self, keys: Sequence[str]) -> None:
        """Keys that were given out and will not be used; what lies under them is garbage."""
        ...

    async def upload_reserved(self, key: str, content: BufferView) -> None:
        """Store an object under a key that was given out. Raises SwapRefusedError, StorageError."""
        ...

    async def propose_swap(self, proposal: SwapProposal) -> None:
        """Check a swap and publish it. Raises SwapRefusedError with the reason, and what publishing raises."""
        ...


KeptBytes: TypeAlias = Callable[[SegmentId, int, int], bytes | None]
"""A copy of the bytes [start, end) of a segment if all of them are in memory; None otherwise. Never reads Tier 2."""


class ReadOnlyStorage(Protocol):
    """What can be read from one container's manifest with or without its owner."""

    async def find(self, name: str) -> SegmentRecord | None:
        """The published segment of that name, None if the catalog has none."""

    async def load(self, segment_ids: Sequence[SegmentId]) -> Mapping[SegmentId, SegmentRecord]:
        """Published records by id; unknown ids are left out."""

    async def load_attributes(
        self, segment_id: SegmentId, keys: Sequence[AttributeKey] | None
    ) -> Mapping[AttributeKey, AttributeValue]:
        """Published extended attributes: those of `keys` that exist, or all of them for None."""

    async def scan_attributes(
        self, segment_id: SegmentId, *, start: AttributeKey, end: AttributeKey, count: int
    ) -> AttributePage:
        """About `count` published extended attributes with start <= key < end."""

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead:
        """At least the byte at `offset`, at most about `length` bytes plus a block on either side.

        Raises CorruptedDataError after one retry (never returns damaged bytes), SegmentTruncatedError for an offset
        below the published start, ValueError for one at or past the published length, SegmentNotFoundError.
        """

    def list_segments(self, prefix: str, start_after: str) -> AsyncGenerator[SegmentRecord, None]:
        """Published segments in name order. Hold it in `aclosing`."""

    def statistics(self) -> StorageStatistics: ...


class Storage(ReadOnlyStorage, Protocol):
    """Tier 2 for the owner of one container."""

    async def claim(self, *, epoch: Epoch, log_id: bytes, follows: bytes = b"") -> ClaimedManifest:
        """Create or take over the manifest under this epoch. `follows`: a log whose manifest goes over to this one.

        Raises StorageNotPrimaryError if the manifest's epoch is not smaller (ClaimedBySameLogError if it is known to be
        of the same log, and not of a claim of ours), InvalidRequestError (which names both) if store id, log id or
        container count differ, StorageError if Tier 2 does not answer (may be called again).
        """

    def list_chunks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredChunk, None]:
        """The chunks that hold published bytes of [start, end), in order, whole ones at both sides; none is looked at.

        Hold it in `aclosing`. Raises SegmentTruncatedError, SegmentNotFoundError, CorruptedDataError, and ValueError
        for a range past the published length.
        """

    def list_blocks(
        self, segment_id: SegmentId, start: int, end: int
    ) -> AsyncGenerator[StoredBlock, None]:
        """The blocks that hold published bytes of [start, end), in order, whole ones at both sides.

        Hold it in `aclosing`. Raises SegmentTruncatedError, SegmentNotFoundError, CorruptedDataError, and ValueError
        for a range past the published length.
        """

    @property
    def root_changes(self) -> int:
        """How many changes of the manifest are known to be durable; of a claimed manifest."""

    async def publish(self, publication: Publication) -> None:
        """Make a flush round durable and visible. The caller waits for one call before it makes the next."""

    async def collect_garbage(self) -> int:
        """Delete what has been garbage for longer than the grace period; returns the objects removed."""

    async def sweep_orphans(self) -> None:
        """Look, without haste, at what earlier owners have left behind, and make garbage of what nothing names; returns
        behind the last object. May run beside publish(), and be called again after it raised; as publish()."""

    async def maintain(self) -> bool:
        """Merge SSTs, join chunks, if that is due; True if something was done. Never runs beside publish()."""

    async def scrub(self, kept: KeptBytes) -> bool:
        """Prove some of what is stored, as far as the settings allow now, and write damaged chunks anew whose bytes
        are kept elsewhere; True if one was. Never runs beside publish()."""

    async def create_snapshot(self, name: str, *, is_proved: bool = True) -> SnapshotInfo:
        """Keep a snapshot of the manifest under a name until it is deleted. A name that is taken gives its snapshot.

        Raises InvalidRequestError, and as publish(). May run beside publish().
        """

    async def prove_snapshot(self, name: str, version: int) -> bool:
        """The snapshot of that name and version is proved from now on. False if there is none.

        May run beside publish(). Raises as publish().
        """

    async def delete_snapshot(self, name: str) -> bool:
        """False if there is none of that name. May run beside publish(). Raises as publish()."""

    async def snapshots(self) -> Sequence[SnapshotInfo]:
        """By name."""

    async def close(self) -> None: ...
