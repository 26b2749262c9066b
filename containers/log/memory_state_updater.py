"""Applies a durable frame: metadata, read index, in-memory log, futures, in one synchronous stretch.

Nothing in here may be refused: room was reserved when the operation was accepted. An exception is a bug, and the
processor halts the container before any further future completes. Because the bytes are in the read index and
`length` has moved before a future completes, a client that saw its ack can read its bytes.

A life that began without Tier 2 flushes nothing, and the one behind it replays the log: what is truncated or deleted
is freed here, as in a replay.

A barrier wrote nothing, so that it was durable proves nothing: what it tells (a refusal, a length) is told once the
container is known to be the owner still (containers/ownership.py).
"""

from collections.abc import Sequence
from functools import partial

from containers.log.in_memory_log import InMemoryLog
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import (
    AppendOperation,
    Barrier,
    DeleteOperation,
    MergeOperation,
    Operation,
    SealOperation,
    SegmentOperation,
    TruncateOperation,
    commit_fields,
)
from containers.ownership import Ownership
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done


class MemoryStateUpdater:
    """The commit of operations to everything in memory."""

    def __init__(
        self, *, metadata: ContainerMetadata, memory_log: InMemoryLog, ownership: Ownership
    ) -> None:
        self._metadata = metadata
        self._memory_log = memory_log
        self._ownership = ownership

    def commit(self, operations: Sequence[Operation]) -> None:
        """Apply operations in order, then complete their futures, then wake tail readers."""
        metadata = self._metadata
        add_append = self._memory_log.add_append
        grown: dict[SegmentMetadata, None] = {}
        last = metadata.committed_sequence_number
        for operation in operations:
            if operation.__class__ is AppendOperation:
                assert isinstance(operation, AppendOperation)
                segment = operation.segment
                offset = operation.offset
                assert offset == segment.length, f"append at {offset} behind {segment!r}"
                last = operation.sequence_number
                segment.length = end = operation.result
                if operation.last_modified_ms > segment.last_modified_ms:
                    segment.last_modified_ms = operation.last_modified_ms
                segment.last_sequence_number = last
                segment.pending_operations -= 1
                changes = operation.attributes
                if changes is not None:
                    segment.attributes.commit(changes, last)
                add_append(
                    segment,
                    offset,
                    end,
                    operation.data,
                    last,
                    operation.last_modified_ms,
                    changes,
                    operation.events,
                )
                if operation.seal:
                    self._seal_with_append(operation)
                elif segment.has_tail_waiters:
                    grown[segment] = None
            elif operation.__class__ is not Barrier:
                last = operation.sequence_number
                self._apply(operation)
        assert last >= metadata.committed_sequence_number, f"commit goes back to {last}"
        metadata.committed_sequence_number = last
        for operation in operations:
            future = operation.future
            if future is not None and not future.done():
                if operation.__class__ is Barrier:
                    self._complete_barrier(operation)
                else:
                    future.set_result(operation.result)
        for segment in grown:
            segment.read_index.appended()
        self._memory_log.wake_reader()

    def complete_barriers(self, operations: Sequence[Operation]) -> None:
        """Complete barriers that have nothing left to wait for."""
        for operation in operations:
            future = operation.future
            if future is not None and not future.done():
                self._complete_barrier(operation)

    def _complete_barrier(self, operation: Operation) -> None:
        assert isinstance(operation, Barrier), f"not a barrier: {operation!r}"
        future, segment, refusal = operation.future, operation.segment, operation.error
        assert future is not None, "a barrier without a future"
        fail = partial(fail_unless_done, future)
        if refusal is not None:
            tell = partial(fail, refusal)
        else:
            tell = partial(complete_unless_done, future, segment.length if segment else 0)
        self._ownership.when_confirmed(tell, fail)

    def _seal_with_append(self, append: AppendOperation) -> None:
        seal = SealOperation(append.segment)
        seal.sequence_number = append.sequence_number
        seal.last_modified_ms = append.last_modified_ms
        seal.result = append.result
        append.segment.pending_operations += 1
        self._apply(seal)

    def _apply(self, operation: Operation) -> None:
        if not isinstance(operation, SegmentOperation):
            self._memory_log.add(operation)  # checkpoints touch nothing in memory
            return
        segment = operation.segment
        segment.pending_operations -= 1
        if isinstance(operation, MergeOperation):
            self._merge(operation)
            return
        commit_fields(operation)
        self._memory_log.add(operation, segment)
        match operation:
            case SealOperation():
                segment.read_index.sealed()
            case TruncateOperation():
                if self._metadata.flushes_nothing:
                    segment.read_index.skipped(operation.offset)
                segment.read_index.truncated(operation.offset)
            case DeleteOperation():
                segment.read_index.end_reads(SegmentNotFoundError(segment.name))
                if self._metadata.flushes_nothing:
                    segment.read_index.free_all()

    def _merge(self, operation: MergeOperation) -> None:
        target, source = operation.segment, operation.source
        assert operation.offset == target.length, f"merge at {operation.offset} into {target!r}"
        assert operation.length == source.length, f"merge of {operation.length} from {source!r}"
        source.pending_operations -= 1
        self._memory_log.add(operation, target, source)
        target.read_index.begin_merge(operation.offset, source.read_index)
        commit_fields(operation)
        assert target.length == operation.result, f"{target!r} is not {operation.result} long"
        source.read_index.end_reads(SegmentNotFoundError(source.name))
        if target.read_index.has_waiters:
            target.read_index.appended()
