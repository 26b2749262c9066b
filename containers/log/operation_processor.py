"""Takes operations in: judges them against pending state, numbers them, and hands them to the frame pipeline.

Invariants:
- P1  sequence numbers strictly increase in the order of acceptance, which is the order of the log;
- P2  a future completes only when its operation is durable and applied; refusals that were judged against pending
      state complete only when that state has committed (H24);
- P3  what cannot be accepted yet waits in line, in call order per segment; delay comes before acceptance (H35);
- P4  any failure of the pipeline ends the processor for good; whoever owns the container next recovers.

Submitting never waits and never starts a task.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from containers.attributes.judgement import UnknownAttributesError
from containers.log.admission_line import WaitingRequest
from containers.log.append_intake import (
    AppendIntake,
    fail_unless_done,
    log_full_error,
)
from containers.metadata.segment_metadata import SegmentMetadata
from containers.operations.operation import AttributeChanges, Barrier, MergeOperation, Operation
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.runtime.reported_elsewhere import reported_elsewhere


@dataclass(frozen=True, slots=True)
class OperationProcessorStatistics:
    """A snapshot for `/metrics`."""

    queued_operations: int
    frames_in_flight: int
    outstanding_bytes: int
    waiting_requests: int
    appended_operations: int
    appended_bytes: int
    frames: int
    frame_bytes: int


class OperationProcessor(AppendIntake):
    """The write path of one container between the verbs and Tier 1. There is only one."""

    # --- verbs besides append -----------------------------------------------------------------------------------

    def seal(self, segment: SegmentMetadata) -> "Future[int]":
        """Final length. Queues behind waiting appends of the segment."""
        return self._process(
            segment, lambda: self._updater.accept_seal(segment, now_ms=self._now_ms)
        )

    def truncate(self, segment: SegmentMetadata, offset: int) -> "Future[int]":
        """Never waits in line: it frees space (H35)."""
        return self._process(
            segment, lambda: self._updater.accept_truncate(segment, offset), overtakes=True
        )

    def merge(
        self,
        target: SegmentMetadata,
        source: SegmentMetadata,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        seal_source: bool = False,
    ) -> "Future[int]":
        """The target's new length. The source stays active while the merge waits in line (H27)."""
        future = self._process(
            target,
            lambda: self._updater.accept_merge(
                target,
                source,
                updates=attribute_updates,
                seal_source=seal_source,
                now_ms=self._now_ms,
            ),
        )
        _pin_until(future, [source])
        return future

    def merge_first(
        self,
        target: SegmentMetadata,
        sources: Sequence[SegmentMetadata],
        merged: list[MergeOperation],
        *,
        seal_sources: bool = False,
    ) -> "Future[int]":
        """Merge sources behind one another, up to one that is refused; refused as a whole if that is the first one.

        `merged` has the operations of those that were taken in, once the future is done: the target's new length.
        """
        future = self._process(
            target,
            lambda: self._accept_merges(target, sources, merged, seal_sources=seal_sources),
        )
        _pin_until(future, sources)
        return future

    def _accept_merges(
        self,
        target: SegmentMetadata,
        sources: Sequence[SegmentMetadata],
        merged: list[MergeOperation],
        *,
        seal_sources: bool,
    ) -> MergeOperation:
        for source in sources:
            try:
                operation = self._updater.accept_merge(
                    target, source, updates=(), seal_source=seal_sources, now_ms=self._now_ms
                )
            except SegmentStoreError:
                if not merged:
                    raise
                break
            merged.append(operation)
        # Nobody waits for these: the log keeps the order, so they are durable when the last one is.
        self._pipeline.queue.extend(merged[:-1])
        return merged[-1]

    def delete(self, segment: SegmentMetadata) -> "Future[int]":
        """Never waits in line: it frees space, and what waits will be refused."""
        return self._process(segment, lambda: self._updater.accept_delete(segment), overtakes=True)

    def update_attributes(
        self, segment: SegmentMetadata, updates: Sequence[AttributeUpdate]
    ) -> "Future[int]":
        """Throttled like an append: it costs memory until it is in Tier 2 (H34)."""
        if self._log_full:
            future: Future[int] = self._loop.create_future()
            future.set_exception(log_full_error())
            return future
        return self._process(
            segment,
            lambda: self._updater.accept_attributes(segment, updates),
            waits=self._throttle.is_active,
        )

    def map(
        self, segment: SegmentMetadata, *, created: bool, attributes: AttributeChanges = ()
    ) -> "Future[int]":
        """Log a segment that was just made active."""
        return self._process(
            segment,
            lambda: self._updater.accept_map(segment, created=created, attributes=attributes),
        )

    def barrier(self, segment: SegmentMetadata | None) -> "Future[int]":
        """Done when everything submitted before it (of the segment: also what waits in line) is done."""
        future: Future[int] = self._loop.create_future()
        if segment is not None and segment.line:
            self._line.add(
                WaitingRequest(
                    segment,
                    length=0,
                    attempt=lambda: self._submit_barrier(Barrier(segment), future),
                    fail=lambda error: fail_unless_done(future, error),
                )
            )
        else:
            self._submit_barrier(Barrier(segment), future)
        return future

    def checkpoint(self) -> "Future[int]":
        """Write a metadata checkpoint now; gives its sequence number."""
        future: Future[int] = self._loop.create_future()
        if self._pipeline.failure is not None:
            self._stopped(future)
            return future
        operation = self._updater.accept_checkpoint()
        self._checkpoints.checkpoint_taken(sum(len(part) for part in operation.payload))
        operation.result = operation.sequence_number
        self._pipeline.submit(operation, future)
        return future

    async def first_checkpoint(self) -> None:
        """Write the checkpoint behind a recovery; other containers serve while it is prepared."""
        await self._preparation.encode_all()
        await self.checkpoint()

    def storage_checkpoint(self) -> "Future[int]":
        """Write the storage lengths (H31)."""
        future: Future[int] = self._loop.create_future()
        if self._pipeline.failure is not None:
            self._stopped(future)
            return future
        self._pipeline.submit(self._updater.accept_storage_checkpoint(), future)
        return future

    def _process(
        self,
        segment: SegmentMetadata,
        accept: Callable[[], Operation | None],
        *,
        overtakes: bool = False,
        waits: bool = False,
    ) -> "Future[int]":
        future: Future[int] = self._loop.create_future()

        def attempt() -> None:
            if self._pipeline.failure is not None:
                self._stopped(future)
                return
            try:
                operation = accept()
            except SegmentStoreError as refusal:
                self._refuse(segment, refusal, future)
                return
            if operation is None:
                self._submit_barrier(Barrier(segment), future)
            else:
                self._pipeline.submit(operation, future)

        if waits or (segment.line and not overtakes):
            self._line_up(segment, attempt, future)
            return future
        try:
            attempt()
        except UnknownAttributesError:
            self._line_up(segment, attempt, future)
        return future

    def _line_up(
        self, segment: SegmentMetadata, attempt: Callable[[], None], future: "Future[int]"
    ) -> None:
        self._line.add(
            WaitingRequest(
                segment,
                length=0,
                attempt=attempt,
                fail=lambda error: fail_unless_done(future, error),
            )
        )

    # --- what goes on beside the verbs -----------------------------------------------------------

    def _after_completion(self) -> None:
        super()._after_completion()
        if self._checkpoints.is_due():
            self._preparation.start()

    def _take_due_checkpoint(self) -> None:
        if self._checkpoints.is_due():
            self.checkpoint().add_done_callback(reported_elsewhere)

    def _roll_back(self, stopped: list[Operation]) -> None:
        self._preparation.stop()
        super()._roll_back(stopped)

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work the waiting line off; raises what ended the processor."""
        async with asyncio.TaskGroup() as tasks:
            line = tasks.create_task(self._line.run())
            await self._pipeline.failed.wait()
            line.cancel()
        assert self._pipeline.failure is not None, "woken without a failure"
        raise self._pipeline.failure

    async def drain(self) -> None:
        """Wait until nothing is queued or in flight (or the processor failed)."""
        await self._pipeline.drain()

    def fail(self, cause: BaseException) -> None:
        """End for good: what was accepted and is not durable is rolled back, its outcome unknown to its caller."""
        self._pipeline.fail(cause)

    def statistics(self) -> OperationProcessorStatistics:
        pipeline = self._pipeline
        return OperationProcessorStatistics(
            queued_operations=len(pipeline.queue),
            frames_in_flight=pipeline.frames_in_flight,
            outstanding_bytes=pipeline.outstanding_bytes,
            waiting_requests=len(self._line),
            appended_operations=self._appended_operations,
            appended_bytes=self._appended_bytes,
            frames=pipeline.frames,
            frame_bytes=pipeline.frame_bytes,
        )


def _pin_until(done: "Future[int]", segments: Sequence[SegmentMetadata]) -> None:
    """Segments stay active while an operation on them waits in line (H27)."""
    if done.done():
        return
    for segment in segments:
        segment.pins += 1

    def unpin(_: "Future[int]") -> None:
        for segment in segments:
            segment.pins -= 1

    done.add_done_callback(unpin)
