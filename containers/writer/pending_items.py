"""What an aggregator keeps until it is published: the log's items as they came, and merges with their source.

Items are kept whole and folded into a state only when they are flushed, so that any prefix of them can be published
with exactly the state that belongs to it (H15).
"""

from typing import TYPE_CHECKING, TypeAlias

from containers.operations.append_run import AppendRun
from containers.operations.operation import (
    DeleteOperation,
    MergeOperation,
    SealOperation,
    SegmentOperation,
    TruncateOperation,
)
from segmentstore.contracts.identifiers import SequenceNumber

if TYPE_CHECKING:
    from containers.writer.segment_aggregator import SegmentAggregator


class PendingMerge:
    """A merge whose target has taken over the source's aggregator, with everything un-published in it."""

    __slots__ = ("operation", "source")

    def __init__(self, operation: MergeOperation, source: "SegmentAggregator") -> None:
        self.operation = operation
        self.source = source


PendingItem: TypeAlias = AppendRun | SegmentOperation | PendingMerge

_PROMPT = (SealOperation, TruncateOperation, DeleteOperation, PendingMerge)


def first_number(item: PendingItem) -> SequenceNumber:
    """Sequence number of its first operation."""
    if isinstance(item, AppendRun):
        return item.first_sequence_number
    if isinstance(item, PendingMerge):
        return item.operation.sequence_number
    return item.sequence_number


def last_number(item: PendingItem) -> SequenceNumber:
    """Sequence number of its last operation; that of the merge for a merge."""
    return item.last_sequence_number if isinstance(item, AppendRun) else first_number(item)


def byte_count(item: PendingItem) -> int:
    """Un-published bytes that the item brings."""
    if isinstance(item, AppendRun):
        return item.length
    return item.source.held_bytes if isinstance(item, PendingMerge) else 0


def is_prompt(item: PendingItem) -> bool:
    """Whether it should reach Tier 2 soon: it frees space there, or readers of Tier 2 wait for it."""
    return isinstance(item, _PROMPT)
