"""The operations of the log, as objects.

An operation is what the container promises: its results (assigned offsets, absolute attribute values, ids), never a
request, so that replaying it twice changes nothing. The bytes are in record_codec.py.

| operation | meaning |
|---|---|
| AppendOperation | bytes, attribute values and perhaps a seal, added to one segment in one step |
| AppendRun (in metadata/) | the same after commit: neighbouring appends of a segment, their bytes in the cache |
| SealOperation, TruncateOperation, DeleteOperation | the verbs |
| MergeOperation | a verb as well: an open source is sealed by it, and the target's attributes change with it |
| UpdateAttributesOperation | attribute values without bytes |
| MapSegmentOperation | gives an id to a name, with the whole state: creation and reactivation |
| MapTransactionOperation | the same for a segment that is to be merged into its parent |
| MetadataCheckpointOperation | the whole active metadata; the log may be truncated before it |
| StorageCheckpointOperation | storage lengths, so that a log kept behind an old checkpoint is not misread |
"""

from asyncio import Future
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.identifiers import (
    NO_SEQUENCE_NUMBER,
    AttributeKey,
    AttributeValue,
    BufferView,
    SegmentId,
    SequenceNumber,
)

AttributeChanges: TypeAlias = Sequence[tuple[AttributeKey, AttributeValue | None]]
"""Absolute values after the operation; None removes the attribute."""


class OperationType(IntEnum):
    """First byte of every record. Persistent: never renumber."""

    APPEND = 1
    SEAL = 2
    TRUNCATE = 3
    MERGE = 4
    DELETE = 5
    UPDATE_ATTRIBUTES = 6
    MAP_SEGMENT = 7
    MAP_TRANSACTION = 8
    METADATA_CHECKPOINT = 9
    STORAGE_CHECKPOINT = 10


class Operation:
    """What all operations have. `future` gets `result` once the operation is durable and applied."""

    __slots__ = ("future", "result", "sequence_number")

    type: OperationType

    def __init__(self) -> None:
        self.sequence_number: SequenceNumber = NO_SEQUENCE_NUMBER
        self.future: Future[int] | None = None
        self.result = 0


class SegmentOperation(Operation):
    """An operation on one active segment."""

    __slots__ = ("segment",)

    def __init__(self, segment: SegmentMetadata) -> None:
        self.sequence_number = NO_SEQUENCE_NUMBER
        self.future = None
        self.result = 0
        self.segment = segment


class AppendOperation(SegmentOperation):
    """Bytes at an assigned offset, on their way to the log."""

    __slots__ = ("attributes", "data", "events", "last_modified_ms", "length", "offset", "seal")
    type = OperationType.APPEND

    def __init__(self, segment: SegmentMetadata, data: bytes) -> None:
        self.sequence_number = NO_SEQUENCE_NUMBER
        self.future = None
        self.result = 0
        self.segment = segment
        self.data = data
        """The bytes as received: what the log and the run's checksum are made of. Dropped at commit."""
        self.length = len(data)
        self.offset = 0
        self.attributes: AttributeChanges | None = None
        self.seal = False
        self.events: int | None = None
        """How many whole events `data` is, as its sender declared; None: bytes of unknown structure."""
        self.last_modified_ms = 0


class SealOperation(SegmentOperation):
    """No more appends."""

    __slots__ = ("last_modified_ms",)
    type = OperationType.SEAL

    def __init__(self, segment: SegmentMetadata) -> None:
        super().__init__(segment)
        self.last_modified_ms = 0


class TruncateOperation(SegmentOperation):
    """Bytes below `offset` are gone."""

    __slots__ = ("offset",)
    type = OperationType.TRUNCATE

    def __init__(self, segment: SegmentMetadata, offset: int) -> None:
        super().__init__(segment)
        self.offset = offset


class MergeOperation(SegmentOperation):
    """The bytes of `source` now stand at [offset, offset + length) of the segment; `source` is gone.

    The attributes are the target's, what it remembers of the merge among them.
    """

    __slots__ = ("attributes", "last_modified_ms", "length", "offset", "source")
    type = OperationType.MERGE

    def __init__(self, segment: SegmentMetadata, source: SegmentMetadata) -> None:
        super().__init__(segment)
        self.source = source
        self.offset = 0
        self.length = 0
        self.attributes: AttributeChanges = ()
        self.last_modified_ms = 0


class DeleteOperation(SegmentOperation):
    """The segment is gone."""

    __slots__ = ()
    type = OperationType.DELETE


class UpdateAttributesOperation(SegmentOperation):
    """Attribute values without bytes."""

    __slots__ = ("attributes",)
    type = OperationType.UPDATE_ATTRIBUTES

    def __init__(self, segment: SegmentMetadata, attributes: AttributeChanges) -> None:
        super().__init__(segment)
        self.attributes = attributes


class MapSegmentOperation(SegmentOperation):
    """A name gets its id, with the whole state. `created` tells creation from reactivation."""

    __slots__ = ("attributes", "created", "snapshot")
    type = OperationType.MAP_SEGMENT

    def __init__(self, segment: SegmentMetadata, *, created: bool, snapshot: bytes) -> None:
        super().__init__(segment)
        self.created = created
        self.snapshot = snapshot
        """Encoded by containers.operations.snapshot_codec."""
        self.attributes: AttributeChanges = ()
        """Extended attributes given at creation."""


class MapTransactionOperation(MapSegmentOperation):
    """The map of a segment named `<parent>#transaction.<id>`, together with its parent's name, which is in the log for
    people: the segment's own name says the same, and nothing here reads it."""

    __slots__ = ("parent_name",)
    type = OperationType.MAP_TRANSACTION

    def __init__(
        self, segment: SegmentMetadata, *, created: bool, snapshot: bytes, parent_name: str
    ) -> None:
        super().__init__(segment, created=created, snapshot=snapshot)
        self.parent_name = parent_name


class MetadataCheckpointOperation(Operation):
    """All active segments at this sequence number, as one encoded snapshot, and how many changes of Tier 2's manifest
    are durable: what has left memory is in those."""

    __slots__ = ("payload", "root_changes")
    type = OperationType.METADATA_CHECKPOINT

    def __init__(self, payload: Sequence[BufferView], *, root_changes: int = 0) -> None:
        super().__init__()
        self.payload = payload
        self.root_changes = root_changes


class StorageCheckpointOperation(Operation):
    """Storage lengths of all active segments, and how many changes of Tier 2's manifest are durable."""

    __slots__ = ("lengths", "root_changes")
    type = OperationType.STORAGE_CHECKPOINT

    def __init__(self, lengths: Sequence[tuple[SegmentId, int]], *, root_changes: int = 0) -> None:
        super().__init__()
        self.lengths = lengths
        self.root_changes = root_changes


class Barrier(Operation):
    """Not logged. Completes when everything submitted before it has committed.

    With `error` it is a refusal that was judged against pending state: delivered only then.
    """

    __slots__ = ("error", "segment")

    def __init__(self, segment: "SegmentMetadata | None", error: Exception | None = None) -> None:
        super().__init__()
        self.segment = segment
        self.error = error


def commit_fields(operation: SegmentOperation) -> None:
    """Change the committed fields of the segments that a durable operation names; one rule for a commit and a replay.

    The in-memory log, the read index, waiters and what Tier 2 has are the caller's.
    """
    segment, number = operation.segment, operation.sequence_number
    segment.last_sequence_number = number
    match operation:
        case SealOperation():
            segment.sealed = True
            segment.set_last_modified(operation.last_modified_ms)
        case TruncateOperation():
            segment.set_start_offset(operation.offset)
        case MergeOperation():
            source = operation.source
            source.sealed = source.merged = True
            source.last_sequence_number = number
            segment.set_length(operation.offset + operation.length)
            segment.set_last_modified(operation.last_modified_ms)
            segment.attributes.commit(operation.attributes, number)
        case DeleteOperation():
            segment.deleted = True
        case UpdateAttributesOperation() | MapSegmentOperation():
            segment.attributes.commit(operation.attributes, number)
        case _:
            raise AssertionError(f"operation cannot be applied: {operation!r}")
