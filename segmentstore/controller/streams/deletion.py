"""Deleting a sealed stream: its mark stream, what other rooms keep of it, its segments, its records; last its name.

Invariants:

- The next free segment number outlives the stream, so a stream created again finds none of the old segments.
- The state record goes last, in one batch with the name: until then whoever comes next goes on deleting.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from segmentstore.codec.stream_names import creation_epoch_of, is_user_name, mark_stream
from segmentstore.codec.stream_records.segment_number_record import SegmentNumberRecord
from segmentstore.codec.stream_records.stream_state_record import StreamState, StreamStateRecord
from segmentstore.controller.errors import StreamNotFoundError, StreamNotSealedError
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX
from segmentstore.controller.streams.settings import StreamSettings
from segmentstore.controller.streams.stream_history import EPOCHS_PER_READ, StreamHistory
from segmentstore.controller.streams.stream_keys import (
    DELETED_NUMBERS_KEY,
    STREAMS_INDEX,
    configuration_key,
    deleted_number_key,
    epoch_key,
    sealed_key,
    state_key,
    tag_index,
    truncation_key,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments

Cleaning = Callable[[StreamHistory], Awaitable[None]]
"""Removes what another room keeps of a stream that is being deleted; may be called again."""


class Deletion:
    """The verb delete."""

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
        self._cleanings: list[Cleaning] = []
        operations.register(StreamState.DELETING, self._resume)

    def register(self, cleaning: Cleaning) -> None:
        """Call this, in the order of registration, before the segments of a deleted stream go."""
        self._cleanings.append(cleaning)

    async def delete(self, scope: str, stream: str, *, even_if_open: bool = False) -> None:
        """Raises StreamNotSealedError (unless `even_if_open`), StreamNotFoundError, ScopeNotFoundError."""
        async with self._operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            if state.record is None:
                raise history.not_found()
            if state.record.state is not StreamState.SEALED and not even_if_open:
                raise StreamNotSealedError(scope, stream)
            batch = Batch()
            batch.put(state_key(stream), replace(state.record, state=StreamState.DELETING), state)
            batch.list_name(PENDING_INDEX, stream)
            await history.table.commit(batch)
            await self._operations.drive(history)

    async def _resume(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to delete stream={history.name!r}"
        for cleaning in self._cleanings:
            await cleaning(history)
        if is_user_name(history.stream):
            with suppress(StreamNotFoundError):
                await self.delete(history.scope, mark_stream(history.stream), even_if_open=True)
        await self._delete_segments(history, state.record)
        # From the newest epoch down: the first one stays readable until the rest is gone.
        last = state.record.last_epoch
        while last >= 0:
            first = max(0, last - EPOCHS_PER_READ + 1)
            await self._delete_epochs(history, first, last)
            last = first - 1
        await self._finish(history, state.record.next_segment_number)

    async def _delete_segments(self, history: StreamHistory, record: StreamStateRecord) -> None:
        truncation = (await history.table.read(truncation_key(history.stream))).record
        head = truncation.head if truncation is not None else {}
        first = min(map(creation_epoch_of, head), default=0)
        known = await history.table.read(epoch_key(history.stream, record.last_epoch))
        if known.record is None:
            # An earlier attempt deletes records only when every segment is gone.
            return
        names: list[str] = []
        async with aclosing(history.segments_born(first, record.last_epoch)) as segments:
            async for segment in segments:
                names.append(history.segment_name(segment.segment_id))
                if len(names) >= self._settings.records_per_batch_max:
                    await self._segments.delete(names)
                    names = []
        await self._segments.delete(names)

    async def _delete_epochs(self, history: StreamHistory, first: int, last: int) -> None:
        table, stream = history.table, history.stream
        keys = [epoch_key(stream, number) for number in range(first, last + 1)]
        epochs = await table.read_many(keys)
        segment_ids = [
            segment.segment_id
            for number, epoch in zip(range(first, last + 1), epochs, strict=True)
            if epoch.record is not None
            for segment in epoch.record.segments
            if segment.creation_epoch == number
        ]
        for start in range(0, len(segment_ids), self._settings.records_per_batch_max):
            some = segment_ids[start : start + self._settings.records_per_batch_max]
            batch = Batch()
            for segment_id, sealed in (await history.sealed(some)).items():
                batch.remove(sealed_key(stream, segment_id), sealed)
            await table.commit(batch)
        batch = Batch()
        for key, epoch in zip(keys, epochs, strict=True):
            batch.remove(key, epoch)
        await table.commit(batch)

    async def _finish(self, history: StreamHistory, next_number: int) -> None:
        table, stream = history.table, history.stream
        configuration = await history.configuration()
        number = SegmentNumberRecord(next_number)
        highest = await table.read(DELETED_NUMBERS_KEY)
        batch = Batch()
        batch.put(deleted_number_key(stream), number, await table.read(deleted_number_key(stream)))
        if highest.record is None or highest.record.number < next_number:
            batch.put(DELETED_NUMBERS_KEY, number, highest)
        batch.remove(truncation_key(stream), await table.read(truncation_key(stream)))
        batch.remove(configuration_key(stream), configuration)
        batch.remove(state_key(stream), await history.any_state())
        if configuration.record is not None:
            for tag in configuration.record.tags:
                batch.unlist_name(tag_index(tag), stream)
        batch.unlist_name(STREAMS_INDEX, stream)
        batch.unlist_name(PENDING_INDEX, stream)
        await table.commit(batch)
