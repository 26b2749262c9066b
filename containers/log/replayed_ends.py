"""Deletions and merges at the end of a replay: which of them Tier 2 has followed, so that memory need not."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.append_run import AppendRun
from containers.operations.operation import MergeOperation, Operation
from segmentstore.contracts.identifiers import SegmentId


def merges_of(items: Iterable[AppendRun | Operation]) -> list[MergeOperation]:
    """The merges among the items of the in-memory log, in order."""
    return [item for item in items if isinstance(item, MergeOperation)]


def forget_ended(
    merges: Sequence[MergeOperation],
    *,
    by_id: Mapping[SegmentId, SegmentMetadata],
    in_storage: Collection[SegmentId],
    forgotten: Mapping[SegmentId, int],
    forget: Callable[[SegmentMetadata], None],
) -> None:
    """Drop deleted segments, and the sources that were merged into them, if Tier 2 has none of them.

    `forgotten` says up to which sequence number segments have left memory; `forget` adds to it.
    """
    # A target that Tier 2 never had takes its published sources along: the storage writer needs it for that.
    needed: set[SegmentId] = set()
    for merge in merges:
        source_id = merge.source.segment_id
        if source_id in in_storage or source_id in needed:
            needed.add(merge.segment.segment_id)
    for segment in [segment for segment in by_id.values() if segment.deleted]:
        if segment.segment_id not in in_storage and segment.segment_id not in needed:
            forget(segment)
    for merge in reversed(merges):  # targets before their sources: chains end at their last target
        source = by_id.get(merge.source.segment_id)
        target_left = forgotten.get(merge.segment.segment_id, 0)
        if source is not None and merge.sequence_number <= target_left:
            forget(source)


def complete_stored(merges: Iterable[MergeOperation]) -> None:
    """The log need not have the bytes of a source any more whose target is in Tier 2 up to the merge's end."""
    for merge in merges:
        target, source = merge.segment, merge.source
        if target.storage_length >= merge.offset + merge.length:
            target.read_index.complete_merge(source.read_index)
