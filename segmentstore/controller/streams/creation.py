"""Creating a stream: intent with configuration and first epoch, segments, the mark stream, active.

Invariants:

- A stream is visible once all of its segments and its mark stream exist.
- First segments share the key space evenly; their numbers go on where the deleted stream of that name stopped.
"""

from contextlib import suppress
from dataclasses import replace

from segmentstore.codec.stream_names import (
    INTERNAL_NAME_LENGTH_MAX,
    is_user_name,
    mark_stream,
    segment_id_of,
    segment_name,
    transient_segment,
)
from segmentstore.codec.stream_records.epoch_record import EpochRecord
from segmentstore.codec.stream_records.stream_configuration_record import (
    ScalingPolicy,
    StreamConfigurationRecord,
)
from segmentstore.codec.stream_records.stream_segment import StreamSegment
from segmentstore.codec.stream_records.stream_state_record import StreamState, StreamStateRecord
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import (
    IndexClosedError,
    ScopeNotFoundError,
    StreamExistsError,
)
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import PENDING_INDEX, MetadataStore
from segmentstore.controller.streams.key_space import even_ranges
from segmentstore.controller.streams.settings import StreamSettings
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_keys import (
    STREAMS_INDEX,
    configuration_key,
    deleted_number_key,
    epoch_key,
    state_key,
    tag_index,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.streams.stream_segments import StreamSegments
from segmentstore.runtime.clock import WallClock

_LARGEST_ID = segment_id_of(number=(1 << 31) - 1, creation_epoch=(1 << 31) - 1)

MARK_CONFIGURATION = StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=1))


class Creation:
    """The verb create."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        operations: StreamOperations,
        segments: StreamSegments,
        wall_clock: WallClock,
        settings: StreamSettings,
    ) -> None:
        self._metadata = metadata
        self._operations = operations
        self._segments = segments
        self._wall_clock = wall_clock
        self._settings = settings
        operations.register(StreamState.CREATING, self._resume)

    async def create(
        self, scope: str, stream: str, configuration: StreamConfigurationRecord
    ) -> None:
        """Raises StreamExistsError, ScopeNotFoundError, InvalidRequestError."""
        check_names(scope, stream, self._settings)
        check_configuration(configuration, self._settings)
        async with self._operations.exclusive(scope, stream) as history:
            state = await history.any_state()
            if state.record is not None:
                raise StreamExistsError(scope, stream)
            await self._write_intent(history, configuration)
            await self._operations.drive(history)

    async def _write_intent(
        self, history: StreamHistory, configuration: StreamConfigurationRecord
    ) -> None:
        now_ms = self._wall_clock.now_ms()
        first = await self._first_number(history)
        ranges = even_ranges(configuration.scaling.segment_count_min)
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
        deleted = (await history.table.read(deleted_number_key(history.stream))).record
        floor = await self._metadata.first_segment_number(history.scope)
        return max(floor, deleted.number if deleted is not None else 0)

    async def _resume(self, history: StreamHistory) -> None:
        state = await history.any_state()
        assert state.record is not None, f"nothing to create stream={history.name!r}"
        epoch = await history.epoch(0)
        await self._segments.create(
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


def check_names(scope: str, stream: str, settings: StreamSettings) -> None:
    """Raises InvalidRequestError for names under which some later segment could not be created."""
    if len(stream) > INTERNAL_NAME_LENGTH_MAX:
        raise InvalidRequestError(f"a stream name is too long length={len(stream)}")
    # The mark stream is created behind the intent: by then it is too late to refuse.
    longer = mark_stream(stream) if is_user_name(stream) else stream
    longest = transient_segment(
        segment_name(scope, longer, _LARGEST_ID), writer_id=bytes(16), nonce=bytes(16)
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
