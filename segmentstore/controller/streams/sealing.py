"""Sealing a stream: its active segments are sealed and have no successors.

Invariant: "no successors" is answered only once the stream's state says SEALED, which is written after the last
segment was sealed (H75).
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from segmentstore.codec.stream_records.stream_state_record import StreamState
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_keys import state_key
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments

Closing = Callable[[str, str], AbstractAsyncContextManager[None]]
"""Keeps a stream (scope, name) free of unfinished business of another room while it is sealed."""


class Sealing:
    """The verb seal."""

    def __init__(self, *, operations: StreamOperations, segments: StreamSegments) -> None:
        self._operations = operations
        self._segments = segments
        self._closings: list[Closing] = []
        operations.register(StreamState.SEALING, self._resume)

    def register(self, closing: Closing) -> None:
        """Enter this, in the order of registration, before the stream is held for sealing."""
        self._closings.append(closing)

    async def seal(self, scope: str, stream: str) -> None:
        """Sealing twice is fine. Raises StreamNotFoundError, ScopeNotFoundError."""
        async with AsyncExitStack() as held:
            if not await self._needs_sealing(scope, stream):
                return
            for closing in self._closings:
                await held.enter_async_context(closing(scope, stream))
            history = await held.enter_async_context(self._operations.exclusive(scope, stream))
            state = await history.any_state()
            if state.record is None:
                raise history.not_found()
            if state.record.state is StreamState.SEALED:
                return
            batch = Batch()
            batch.put(state_key(stream), replace(state.record, state=StreamState.SEALING), state)
            batch.list_name(PENDING_INDEX, stream)
            await history.table.commit(batch)
            await self._operations.drive(history)

    async def _needs_sealing(self, scope: str, stream: str) -> bool:
        # Not decided here but under the lock; this spares what is sealed, or is no stream, the closing.
        history = await self._operations.history(scope, stream)
        record = (await history.any_state()).record
        if record is None:
            raise history.not_found()
        return record.state is not StreamState.SEALED

    async def _resume(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to seal stream={history.name!r}"
        epoch = await history.epoch(state.record.current_epoch)
        await self._segments.seal(
            [history.segment_name(segment.segment_id) for segment in epoch.segments]
        )
        batch = Batch()
        batch.put(state_key(history.stream), replace(state.record, state=StreamState.SEALED), state)
        batch.unlist_name(PENDING_INDEX, history.stream)
        await history.table.commit(batch)
