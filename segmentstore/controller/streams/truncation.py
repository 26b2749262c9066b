"""Truncating a stream at a stream cut: the cut becomes the head, what lies behind it goes.

Invariants:

- The head is recorded before the first byte goes: no reader is sent to what is being deleted.
- A segment goes only when no client needs any more what it remembers.
- A cut lies between the head and the end of the stream, and covers the key space; the head never goes back.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from segmentstore.codec.controller_records.stream_records import (
    RetentionPolicy,
    StreamSegment,
    StreamState,
    TruncationRecord,
)
from segmentstore.codec.stream_names import creation_epoch_of
from segmentstore.controller.errors import (
    PreconditionError,
    StreamSealedError,
)
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.stream_cuts import (
    Cut,
    SegmentsByKey,
    check_cover,
    check_cut,
    lies_behind,
    normalised,
    reaches,
)
from segmentstore.controller.streams.stream_history import StreamHistory, state_key, truncation_key
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments

BeforeDeletion = Callable[[StreamHistory, Sequence[int]], Awaitable[None]]
"""Keeps elsewhere what is needed of these segments, which are about to go; without any it says whether it could."""


class Truncation:
    """The verb truncate."""

    def __init__(
        self,
        *,
        operations: StreamOperations,
        segments: StreamSegments,
        settings: StreamSettings,
    ) -> None:
        self._operations = operations
        self._segments = segments
        self._settings = settings
        self._before_deletion: list[BeforeDeletion] = []
        operations.register(StreamState.TRUNCATING, self._resume)

    def register(self, before_deletion: BeforeDeletion) -> None:
        """Call this before segments behind a cut go. May be called again for the same ones."""
        self._before_deletion.append(before_deletion)

    async def truncate(
        self, scope: str, stream: str, cut: Cut, *, while_policy: RetentionPolicy | None = None
    ) -> None:
        """Let the stream begin at the cut; doing it again is fine.

        With `while_policy` refused by PolicyReplacedError if the stream has another policy by now.

        Raises PreconditionError (no valid cut, before the head, past the end), StreamSegmentNotFoundError,
        StreamNotFoundError, ScopeNotFoundError, StreamSealedError, InvalidRequestError.
        """
        check_cut(cut)
        async with self._operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            if state.record is None:
                raise history.not_found()
            if state.record.state is StreamState.SEALED:
                raise StreamSealedError(scope, stream)
            head = await history.head()
            offsets = normalised(cut)
            if offsets == normalised(head):
                return
            if while_policy is not None:
                await history.require_policy(while_policy)
            await self._check(history, offsets, head)
            # What could not be done behind the intent is refused before it.
            await self._prepare_deletion(history, [])
            known = await history.table.read(truncation_key(stream))
            batch = Batch()
            batch.put(state_key(stream), replace(state.record, state=StreamState.TRUNCATING), state)
            previous = known.record.head if known.record is not None else {}
            batch.put(truncation_key(stream), TruncationRecord(offsets, previous), known)
            batch.list_name(PENDING_INDEX, stream)
            await history.table.commit(batch)
            await self._operations.drive(history)

    async def _check(self, history: StreamHistory, cut: Cut, head: Cut) -> None:
        segments = await history.segments_of(cut)
        check_cover(segments)
        head_segments = await history.segments_of(head)
        if not reaches(cut, segments, head, head_segments):
            raise PreconditionError(f"the cut lies before the head stream={history.name!r}")
        infos = await self._segments.info([history.segment_name(each) for each in cut])
        for (segment_id, offset), info in zip(cut.items(), infos, strict=True):
            if info is None or offset > info.length:
                raise PreconditionError(
                    f"the cut lies past the end stream={history.name!r} segment_id={segment_id}"
                    f" offset={offset} length={info.length if info is not None else None}"
                )

    async def _resume(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to truncate stream={history.name!r}"
        truncation = await history.table.read(truncation_key(history.stream))
        record = truncation.record
        assert record is not None, f"a truncation without a cut stream={history.name!r}"
        for segment_id, offset in record.head.items():
            if offset:
                await self._segments.truncate(history.segment_name(segment_id), offset)
        await self._delete_behind(history, record)
        batch = Batch()
        batch.put(truncation_key(history.stream), replace(record, previous_head=None), truncation)
        batch.put(state_key(history.stream), replace(state.record, state=StreamState.ACTIVE), state)
        batch.unlist_name(PENDING_INDEX, history.stream)
        await history.table.commit(batch)

    async def _delete_behind(self, history: StreamHistory, record: TruncationRecord) -> None:
        head = SegmentsByKey(await history.segments_of(record.head))
        previous = SegmentsByKey(await history.segments_of(record.previous_head or {}))
        first = min(map(creation_epoch_of, record.previous_head or {}), default=0)
        last = max(creation_epoch_of(segment_id) for segment_id in record.head)
        gone: list[int] = []
        async with aclosing(history.segments_born(first, last)) as segments:
            async for segment in segments:
                if self._is_garbage(segment, head, previous):
                    gone.append(segment.segment_id)
                if len(gone) >= self._settings.records_per_batch_max:
                    await self._delete(history, gone)
                    gone = []
        await self._delete(history, gone)

    async def _delete(self, history: StreamHistory, segment_ids: Sequence[int]) -> None:
        if segment_ids:
            await self._prepare_deletion(history, segment_ids)
            await self._segments.delete([history.segment_name(each) for each in segment_ids])

    async def _prepare_deletion(self, history: StreamHistory, segment_ids: Sequence[int]) -> None:
        for before_deletion in self._before_deletion:
            await before_deletion(history, segment_ids)

    def _is_garbage(
        self,
        segment: StreamSegment,
        head: SegmentsByKey[StreamSegment],
        previous: SegmentsByKey[StreamSegment],
    ) -> bool:
        gone_before = bool(previous) and lies_behind(segment, previous)
        return lies_behind(segment, head) and not gone_before
