"""Creates, updates, seals and deletes streams; holds the other verbs and the queries.

    streams.create(...)    streams.update(...)    streams.scaling.scale(...)          streams.queries.successors(...)
    streams.seal(...)      streams.delete(...)    streams.truncation.truncate(...)

| verb | steps |
|---|---|
| create | intent with configuration and first epoch, segments, the mark stream, active |
| update | one batch; with it the intent of a scale, if the new policy asks for other segments |
| seal | the active segments are sealed and have no successors |
| delete | of a sealed stream: its mark stream, what other components keep of it, its segments, its records, its name |

Invariants:

- A stream is visible once all of its segments and its mark stream exist.
- First segments share the key space evenly; their numbers go on where the deleted stream of that name stopped.
- The indexes of tags say exactly what the configurations say.
- "No successors" is answered only once the stream's state says SEALED, which is written after the last segment was
  sealed.
- The next free segment number outlives the stream, so a stream created again finds none of the old segments.
- The state record of a deleted stream goes last, in one batch with the name: until then the next task that holds the
  stream goes on deleting.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from dataclasses import replace

from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    ScalingPolicy,
    StreamConfigurationRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
)
from segmentstore.codec.stream_names import (
    INTERNAL_NAME_LENGTH_MAX,
    creation_epoch_of,
    is_user_name,
    mark_stream,
    segment_id_of,
    segment_name,
    transient_segment,
)
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.segments import SegmentApi
from segmentstore.controller.errors import (
    IndexClosedError,
    MetadataConflictError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX, MetadataStore
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.key_space import split_range
from segmentstore.controller.streams.scaling import EpochTransition, Scaling
from segmentstore.controller.streams.stream_history import (
    EPOCHS_PER_READ,
    STREAMS_INDEX,
    StreamHistory,
    configuration_key,
    epoch_key,
    number_behind_deleted,
    sealed_key,
    state_key,
    tag_index,
    truncation_key,
    use_up_numbers,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_queries import StreamQueries
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.controller.streams.truncation import Truncation
from segmentstore.runtime.clock import WallClock

MARK_CONFIGURATION = StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=1))

_LARGEST_SEGMENT_ID = segment_id_of(number=(1 << 31) - 1, creation_epoch=(1 << 31) - 1)

WhileSealing = Callable[[str, str], AbstractAsyncContextManager[None]]
"""Keeps a stream (scope, name) free of unfinished work of another component while it is sealed."""

OnStreamDeletion = Callable[[StreamHistory], Awaitable[None]]
"""Removes what another component keeps of a stream that is being deleted; may be called again."""


class Streams:
    """The verbs of streams: an intent in one batch, steps that may be repeated, a completion in one batch."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        segments: SegmentApi,
        wall_clock: WallClock,
        settings: StreamSettings,
    ) -> None:
        self._metadata = metadata
        self._wall_clock = wall_clock
        self._settings = settings
        self._while_sealing: list[WhileSealing] = []
        self._on_deletion: list[OnStreamDeletion] = []
        self.operations = StreamOperations(metadata=metadata, settings=settings)
        self.segments = StreamSegments(
            segments=segments, at_once_max=settings.segment_steps_at_once_max
        )
        self.transition = EpochTransition(segments=self.segments)
        self.scaling = Scaling(
            operations=self.operations,
            transition=self.transition,
            wall_clock=wall_clock,
            settings=settings,
        )
        self.truncation = Truncation(
            operations=self.operations, segments=self.segments, settings=settings
        )
        self.queries = StreamQueries(operations=self.operations, segments=self.segments)
        self.operations.register(StreamState.CREATING, self._finish_creation)
        self.operations.register(StreamState.SEALING, self._finish_sealing)
        self.operations.register(StreamState.DELETING, self._finish_deletion)

    # --- create and update ---------------------------------------------------------------------

    def check_creation(
        self, scope: str, stream: str, configuration: StreamConfigurationRecord
    ) -> None:
        """Raises InvalidRequestError for what `create` would refuse whatever there is."""
        check_names(scope, stream, self._settings)
        check_configuration(configuration, self._settings)

    async def create(
        self, scope: str, stream: str, configuration: StreamConfigurationRecord
    ) -> None:
        """Raises StreamExistsError, ScopeNotFoundError, InvalidRequestError."""
        self.check_creation(scope, stream, configuration)
        async with self.operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            if state.record is not None:
                raise StreamExistsError(scope, stream)
            await self._write_creation(history, configuration)
            await self.operations.drive(history)

    async def _write_creation(
        self, history: StreamHistory, configuration: StreamConfigurationRecord
    ) -> None:
        now_ms = self._wall_clock.now_ms()
        first = await self._first_number(history)
        ranges = split_range(0.0, 1.0, configuration.scaling.segment_count_min)
        segments = tuple(
            StreamSegment(segment_id_of(number=first + place, creation_epoch=0), low, high, now_ms)
            for place, (low, high) in enumerate(ranges)
        )
        record = StreamStateRecord(
            state=StreamState.CREATING,
            current_epoch=0,
            last_epoch=0,
            next_segment_number=first + len(segments),
            created_ms=now_ms,
        )
        epoch = EpochRecord(0, 0, now_ms, segments)
        record.check()
        epoch.check()
        batch = Batch()
        stream = history.stream
        batch.put(state_key(stream), record, await history.any_state())
        batch.put(configuration_key(stream), configuration, await history.configuration())
        batch.put(epoch_key(stream, 0), epoch, await history.table.read(epoch_key(stream, 0)))
        batch.list_name(PENDING_INDEX, stream)
        try:
            await history.table.commit(batch)
        except IndexClosedError as error:
            raise ScopeNotFoundError(history.scope) from error

    async def _first_number(self, history: StreamHistory) -> int:
        floor = await self._metadata.first_segment_number(history.scope)
        return max(floor, await number_behind_deleted(history.table, history.stream))

    async def _finish_creation(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to create stream={history.name!r}"
        epoch = await history.epoch(0)
        await self.segments.create(
            [history.segment_name(segment.segment_id) for segment in epoch.segments]
        )
        if is_user_name(history.stream):
            # It exists if an earlier attempt came so far.
            with suppress(StreamExistsError):
                await self.create(history.scope, mark_stream(history.stream), MARK_CONFIGURATION)
        configuration = (await history.configuration()).record
        assert configuration is not None, f"a stream without configuration {history.name!r}"
        batch = Batch()
        batch.put(state_key(history.stream), replace(state.record, state=StreamState.ACTIVE), state)
        batch.list_name(STREAMS_INDEX, history.stream)
        for tag in configuration.tags:
            batch.list_name(tag_index(tag), history.stream)
        batch.unlist_name(PENDING_INDEX, history.stream)
        await history.table.commit(batch)

    async def update(
        self, scope: str, stream: str, configuration: StreamConfigurationRecord
    ) -> None:
        """Replace policies and tags; returns when the stream has the segments that its new policy asks for.

        Raises StreamNotFoundError, ScopeNotFoundError, StreamSealedError, InvalidRequestError.
        """
        check_configuration(configuration, self._settings)
        async with self.operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            known = await history.configuration()
            if state.record is None or known.record is None:
                raise history.not_found()
            if state.record.state is StreamState.SEALED:
                raise StreamSealedError(scope, stream)
            batch = Batch()
            batch.put(configuration_key(stream), configuration, known)
            for tag in configuration.tags:
                if tag not in known.record.tags:
                    batch.list_name(tag_index(tag), stream)
            for tag in known.record.tags:
                if tag not in configuration.tags:
                    batch.unlist_name(tag_index(tag), stream)
            await self.scaling.put_scale_to_policy(history, batch, state, configuration.scaling)
            await history.table.commit(batch)
            await self.operations.drive(history)

    # --- seal ----------------------------------------------------------------------------------

    def register_while_sealing(self, closing: WhileSealing) -> None:
        """Enter this, in the order of registration, before the stream is held for sealing."""
        self._while_sealing.append(closing)

    async def seal(self, scope: str, stream: str) -> None:
        """Sealing twice is fine. Raises StreamNotFoundError, ScopeNotFoundError."""
        async with AsyncExitStack() as held:
            if not await self._needs_sealing(scope, stream):
                return
            for closing in self._while_sealing:
                await held.enter_async_context(closing(scope, stream))
            history = await held.enter_async_context(self.operations.exclusive(scope, stream))
            state = await history.any_state()
            if state.record is None:
                raise history.not_found()
            if state.record.state is StreamState.SEALED:
                return
            batch = Batch()
            batch.put(state_key(stream), replace(state.record, state=StreamState.SEALING), state)
            batch.list_name(PENDING_INDEX, stream)
            await history.table.commit(batch)
            await self.operations.drive(history)

    async def _needs_sealing(self, scope: str, stream: str) -> bool:
        # Not decided here but under the lock; this spares what is sealed, or is no stream, the closing.
        history = await self.operations.history(scope, stream)
        record = (await history.any_state()).record
        if record is None:
            raise history.not_found()
        return record.state is not StreamState.SEALED

    async def _finish_sealing(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to seal stream={history.name!r}"
        epoch = await history.epoch(state.record.current_epoch)
        await self.segments.seal(
            [history.segment_name(segment.segment_id) for segment in epoch.segments]
        )
        batch = Batch()
        batch.put(state_key(history.stream), replace(state.record, state=StreamState.SEALED), state)
        batch.unlist_name(PENDING_INDEX, history.stream)
        await history.table.commit(batch)

    # --- delete --------------------------------------------------------------------------------

    def register_on_deletion(self, cleaning: OnStreamDeletion) -> None:
        """Call this, in the order of registration, before the segments of a deleted stream go."""
        self._on_deletion.append(cleaning)

    async def delete(self, scope: str, stream: str, *, even_if_open: bool = False) -> None:
        """Raises StreamNotSealedError (unless `even_if_open`), StreamNotFoundError, ScopeNotFoundError."""
        async with self.operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            if state.record is None:
                raise history.not_found()
            if state.record.state is not StreamState.SEALED and not even_if_open:
                raise StreamNotSealedError(scope, stream)
            batch = Batch()
            batch.put(state_key(stream), replace(state.record, state=StreamState.DELETING), state)
            batch.list_name(PENDING_INDEX, stream)
            await history.table.commit(batch)
            await self.operations.drive(history)

    async def _finish_deletion(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to delete stream={history.name!r}"
        for cleaning in self._on_deletion:
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
        await self._remove_records(history, state.record.next_segment_number)

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
                    await self.segments.delete(names)
                    names = []
        await self.segments.delete(names)

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

    async def _remove_records(self, history: StreamHistory, next_number: int) -> None:
        table, stream = history.table, history.stream

        async def removal() -> Batch:
            configuration = await history.configuration()
            state = await history.any_state()
            if state.record is None or state.record.state is not StreamState.DELETING:
                raise MetadataConflictError(f"stream is another one meanwhile {history.name!r}")
            batch = Batch()
            await use_up_numbers(table, batch, stream, next_number)
            batch.remove(truncation_key(stream), await table.read(truncation_key(stream)))
            batch.remove(configuration_key(stream), configuration)
            batch.remove(state_key(stream), state)
            if configuration.record is not None:
                for tag in configuration.record.tags:
                    batch.unlist_name(tag_index(tag), stream)
            batch.unlist_name(STREAMS_INDEX, stream)
            batch.unlist_name(PENDING_INDEX, stream)
            return batch

        await table.commit_built(removal)


def check_names(scope: str, stream: str, settings: StreamSettings) -> None:
    """Raises InvalidRequestError for names under which some later segment could not be created."""
    if len(stream) > INTERNAL_NAME_LENGTH_MAX:
        raise InvalidRequestError(f"a stream name is too long length={len(stream)}")
    # The mark stream is created behind the intent: by then it is too late to refuse.
    longer = mark_stream(stream) if is_user_name(stream) else stream
    longest = transient_segment(
        segment_name(scope, longer, _LARGEST_SEGMENT_ID), writer_id=bytes(16), nonce=bytes(16)
    )
    if len(longest) > settings.segment_name_length_max:
        excess = len(longest) - settings.segment_name_length_max
        raise InvalidRequestError(
            f"scope and stream name are too long together scope={scope!r} stream={stream!r} excess={excess}"
        )


def check_configuration(configuration: StreamConfigurationRecord, settings: StreamSettings) -> None:
    """Raises InvalidRequestError."""
    count = configuration.scaling.segment_count_min
    if not 1 <= count <= settings.segments_per_stream_max:
        raise InvalidRequestError(
            f"a stream has 1 to {settings.segments_per_stream_max} segments count={count}"
        )
    if len(configuration.tags) > settings.tags_per_stream_max:
        raise InvalidRequestError(f"a stream has too many tags count={len(configuration.tags)}")
    for tag in configuration.tags:
        if not 0 < len(tag) <= settings.tag_length_max:
            raise InvalidRequestError(
                f"a tag has 1 to {settings.tag_length_max} characters {tag!r}"
            )
