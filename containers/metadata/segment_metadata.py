"""What the container believes of one active segment: committed, and pending behind it.

Committed fields are what users see and what a checkpoint's replay gives; pending fields are the state after
every operation accepted so far, against which the next one is judged. A failed frame ends the container, and with it
every pending field.

Invariants (check()):
- start_offset <= length, storage_length <= length, and each only grows, set in one method that asserts it;
- pending_length >= length, pending_start_offset >= start_offset;
- flags go one way; the segment id never changes.
"""

from containers.cache.cache_entry import CacheEntry
from containers.metadata.append_run import AppendRun
from containers.metadata.attribute_table import AttributeTable
from containers.read_index.segment_read_index import SegmentReadIndex
from segmentstore.contracts.identifiers import NO_SEQUENCE_NUMBER, SegmentId, SequenceNumber


class _AppendFields:
    """What every append meets. A base class's fields come first in memory: together, they are few cache lines."""

    __slots__ = (
        "encoded_snapshot",
        "has_tail_waiters",
        "last_modified_ms",
        "last_sequence_number",
        "length",
        "open_entry",
        "open_run",
        "pending_deleted",
        "pending_last_modified_ms",
        "pending_length",
        "pending_operations",
        "pending_sealed",
        "segment_id",
        "waiting_requests",
    )


class SegmentMetadata(_AppendFields):
    """One active segment. Fields are plain attributes: the append path reads and writes them per operation."""

    __slots__ = (
        "attributes",
        "deleted",
        "last_used",
        "merged",
        "name",
        "pending_merged",
        "pending_start_offset",
        "pins",
        "published_sequence_number",
        "read_index",
        "sealed",
        "sealed_in_storage",
        "start_offset",
        "storage_length",
    )

    read_index: SegmentReadIndex
    """Where its readable bytes are. Set once, when the segment becomes active."""
    open_entry: CacheEntry
    """Where the next append's bytes go. Set and changed by its read index."""

    def __init__(self, *, segment_id: SegmentId, name: str) -> None:
        self.segment_id = segment_id
        self.name = name
        self.start_offset = 0
        self.length = 0
        self.storage_length = 0
        self.last_modified_ms = 0
        self.sealed = False
        self.sealed_in_storage = False
        self.merged = False
        """Merged into another segment; not yet so in Tier 2."""
        self.deleted = False
        """Deleted, or merged and published as such. Its metadata stays until Tier 2 has followed."""
        self.attributes = AttributeTable(complete=False)
        self.last_sequence_number: SequenceNumber = NO_SEQUENCE_NUMBER
        """Newest committed operation that touched it."""
        self.published_sequence_number: SequenceNumber = NO_SEQUENCE_NUMBER
        """Operations at or below it are in Tier 2."""
        self.pending_start_offset = 0
        self.pending_length = 0
        self.pending_last_modified_ms = 0
        self.pending_sealed = False
        self.pending_merged = False
        self.pending_deleted = False
        self.pending_operations = 0
        """Accepted and not yet committed operations that name this segment: it must not be evicted."""
        self.open_run: AppendRun | None = None
        """The newest item of the in-memory log for this segment, while it may grow."""
        self.has_tail_waiters = False
        """Whether a reader waits for bytes at the tail, which a commit has to wake; kept by its read index."""
        self.pins = 0
        """Handles, requests and writer steps that hold this object."""
        self.last_used = 0.0
        """Loop time of the last use, for eviction."""
        self.waiting_requests = 0
        """Requests that wait to be accepted; later ones of this segment queue behind them."""
        self.encoded_snapshot: bytes | None = None
        """Its part of the next checkpoint; None when it has to be encoded again."""

    def is_gone(self) -> bool:
        """Users do not see it any more."""
        return self.deleted or self.merged

    def is_pending_gone(self) -> bool:
        return self.pending_deleted or self.pending_merged

    def set_length(self, length: int) -> None:
        assert length >= self.length, f"length goes back from {self.length} to {length}"
        self.length = length

    def set_start_offset(self, offset: int) -> None:
        assert offset >= self.start_offset, f"start goes back from {self.start_offset} to {offset}"
        assert offset <= self.length, f"start {offset} past length {self.length}"
        self.start_offset = offset

    def set_storage_length(self, length: int) -> None:
        assert length >= self.storage_length, f"storage {self.storage_length} back to {length}"
        assert length <= self.length, f"storage length {length} past length {self.length}"
        self.storage_length = length

    def set_last_modified(self, milliseconds: int) -> None:
        """Never goes back, whatever the clock does."""
        if milliseconds > self.last_modified_ms:
            self.last_modified_ms = milliseconds

    def reset_pending(self) -> None:
        """Make pending equal committed: after recovery and at activation."""
        self.pending_start_offset = self.start_offset
        self.pending_length = self.length
        self.pending_last_modified_ms = self.last_modified_ms
        self.pending_sealed = self.sealed
        self.pending_merged = self.merged
        self.pending_deleted = self.deleted
        self.pending_operations = 0
        self.attributes.pending.clear()

    def check(self) -> None:
        """Prove the invariants; O(1)."""
        assert self.start_offset <= self.length, repr(self)
        assert self.storage_length <= self.length, repr(self)
        assert self.pending_length >= self.length, repr(self)
        assert self.pending_start_offset >= self.start_offset, repr(self)
        assert self.pending_sealed >= self.sealed, repr(self)
        assert self.pending_sealed >= self.pending_merged, repr(self)
        assert self.pending_operations >= 0, repr(self)
        assert self.pins >= 0, repr(self)

    def __repr__(self) -> str:
        return (
            f"<segment {self.segment_id} {self.name!r} [{self.start_offset}, {self.length}) "
            f"storage={self.storage_length} pending={self.pending_length} sealed={self.sealed} "
            f"merged={self.merged} deleted={self.deleted} pins={self.pins}>"
        )
