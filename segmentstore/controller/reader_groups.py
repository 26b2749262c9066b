"""Creates, describes, changes and deletes reader groups; a group as a message and as a record.

    record `group/<name>` in the scope's table, indexes `groups` and, while something is under way, `unfinished-groups`
    stream `_RG<name>` in the scope: the readers' shared state, which only they understand

Invariants:

- The state stream exists before a group is shown, and goes before the group's name is free again.
- What can be refused is refused before the first record of a group. A group that cannot be made is taken back.
- Creating a group that exists gives the stored configuration: the client compares.
- A change names the generation that it is based on; the next one is one higher.
- A group that holds back retention is listed as a subscriber before its record says so, and until after it does not.
"""

import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Final

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.reader_group_records import (
    GroupCut,
    ReaderGroupRecord,
    ReaderGroupState,
    RetentionType,
)
from segmentstore.codec.controller_records.stream_records import StreamConfigurationRecord
from segmentstore.codec.stream_names import is_stream_name, is_user_name, reader_group_stream
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.controller.errors import (
    IndexClosedError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
    too_many_waiters,
)
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.retry_queue import ResourceName, RetryQueue, is_refusal
from segmentstore.controller.settings import ReaderGroupSettings
from segmentstore.controller.streams.streams import Streams
from segmentstore.controller.subscribers import Subscribers, group_key
from segmentstore.runtime.keyed_locks import KeyedLocks

_LOG = logging.getLogger(__name__)

GROUPS_INDEX: Final = "groups"
"""In a scope's table: every reader group, also one that is being created or deleted."""

UNFINISHED_GROUPS_INDEX: Final = "unfinished-groups"

CreateResponse = api.CreateReaderGroupResponse
ConfigResponse = api.ReaderGroupConfigResponse
UpdateResponse = api.UpdateReaderGroupResponse
DeleteStatus = api.DeleteReaderGroupStatus


class ReaderGroups:
    """The controller's verbs of reader groups."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        streams: Streams,
        subscribers: Subscribers,
        settings: ReaderGroupSettings,
    ) -> None:
        self._store = store
        self._streams = streams
        self._subscribers = subscribers
        self._settings = settings
        self._locks = KeyedLocks[str](
            waiters_max=settings.waiters_per_group_max, refusal=too_many_waiters
        )
        self._retry_queue = RetryQueue(resume=self._resume)

    async def create(self, config: api.ReaderGroupConfiguration) -> api.CreateReaderGroupResponse:
        """Raises InvalidRequestError."""
        scope, group = config.scope, config.readerGroupName
        if not is_user_name(group):
            return CreateResponse(status=CreateResponse.Status.INVALID_RG_NAME)
        wanted = self._checked(config, ReaderGroupState.CREATING)
        self._streams.check_creation(
            scope, reader_group_stream(group), _state_configuration(wanted)
        )
        try:
            record = await self._create(scope, group, wanted)
        except (ScopeNotFoundError, IndexClosedError):
            return CreateResponse(status=CreateResponse.Status.SCOPE_NOT_FOUND)
        return CreateResponse(
            status=CreateResponse.Status.SUCCESS, config=message_of(scope, group, record)
        )

    async def configuration(self, info: api.ReaderGroupInfo) -> api.ReaderGroupConfigResponse:
        status = ConfigResponse.Status
        with suppress(ScopeNotFoundError):
            table = await self._store.scope_table(info.scope)
            record = (await table.read(group_key(info.readerGroup))).record
            if record is not None and record.state is ReaderGroupState.ACTIVE:
                return ConfigResponse(
                    status=status.SUCCESS,
                    config=message_of(info.scope, info.readerGroup, record),
                )
        return ConfigResponse(status=status.RG_NOT_FOUND)

    async def update(self, config: api.ReaderGroupConfiguration) -> api.UpdateReaderGroupResponse:
        """Replace everything but the id; `config` has the present generation. Raises InvalidRequestError."""
        status = UpdateResponse.Status
        scope, group = config.scope, config.readerGroupName
        wanted = self._checked(config, ReaderGroupState.ACTIVE)
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return UpdateResponse(status=status.RG_NOT_FOUND)
        async with self._locks.held(f"{scope}/{group}"):
            known = await table.read(group_key(group))
            record = known.record
            if record is None or record.state is not ReaderGroupState.ACTIVE:
                return UpdateResponse(status=status.RG_NOT_FOUND)
            if (record.group_id, record.generation) != (wanted.group_id, wanted.generation):
                return UpdateResponse(status=status.INVALID_CONFIG, generation=record.generation)
            await self._subscribers.check_cuts(wanted, known=record)
            after = dataclasses.replace(wanted, generation=record.generation + 1)
            await self._subscribe(scope, group, after)
            batch = Batch()
            batch.put(group_key(group), after, known)
            await table.commit(batch)
            for stream in subscribed_streams(record):
                if stream not in subscribed_streams(after):
                    await self._subscribers.unsubscribe(*stream, scope=scope, group=group)
            return UpdateResponse(status=status.SUCCESS, generation=after.generation)

    async def delete(self, info: api.ReaderGroupInfo) -> api.DeleteReaderGroupStatus:
        status = DeleteStatus.Status
        scope, group = info.scope, info.readerGroup
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return DeleteStatus(status=status.RG_NOT_FOUND)
        async with self._locks.held(f"{scope}/{group}"):
            record = (await table.read(group_key(group))).record
            if record is None or record.group_id != info.readerGroupId:
                return DeleteStatus(status=status.RG_NOT_FOUND)
            with self._retry_queue.queued_on_failure(scope, group):
                await self._delete(table, scope, group)
        return DeleteStatus(status=status.SUCCESS)

    async def delete_all(self, scope: str) -> None:
        """Every group of a scope that is to be deleted with all it holds. Raises ScopeNotFoundError."""
        table = await self._store.scope_table(scope)
        async with aclosing(self._names(table, GROUPS_INDEX)) as names:
            async for group in names:
                async with self._locks.held(f"{scope}/{group}"):
                    await self._delete(table, scope, group)

    async def resume(self, scope: str) -> None:
        """Finish what a controller that is gone began in the scope; what cannot be finished now stays with `run`.

        Raises ScopeNotFoundError, and what the scope's own table raises.
        """
        table = await self._store.scope_table(scope)
        async with aclosing(self._names(table, UNFINISHED_GROUPS_INDEX)) as names:
            async for group in names:
                await self._retry_queue.attempt((scope, group))

    async def run(self) -> None:
        """Finish what was broken off, until cancelled."""
        await self._retry_queue.run()

    def complaints(self) -> Mapping[ResourceName, str]:
        """Groups that could be neither finished nor taken back, and why."""
        return self._retry_queue.complaints()

    # --- steps -----------------------------------------------------------------------------------

    def _checked(
        self, config: api.ReaderGroupConfiguration, state: ReaderGroupState
    ) -> ReaderGroupRecord:
        streams_max = self._settings.streams_per_group_max
        if max(len(config.startingStreamCuts), len(config.endingStreamCuts)) > streams_max:
            raise InvalidRequestError(f"a group reads at most {streams_max} streams")
        return record_of(config, state=state)

    async def _create(self, scope: str, group: str, wanted: ReaderGroupRecord) -> ReaderGroupRecord:
        table = await self._store.scope_table(scope)
        async with self._locks.held(f"{scope}/{group}"):
            await self._finish(table, scope, group)
            known = await table.read(group_key(group))
            if known.record is not None:
                return known.record
            await self._subscribers.check_cuts(wanted)
            batch = Batch()
            batch.put(group_key(group), wanted, known)
            batch.list_name(GROUPS_INDEX, group)
            batch.list_name(UNFINISHED_GROUPS_INDEX, group)
            with self._retry_queue.queued_on_failure(scope, group):
                await table.commit(batch)
                return await self._make(table, scope, group, wanted)

    async def _resume(self, place: ResourceName) -> None:
        scope, group = place
        table = await self._store.scope_table(scope)
        async with self._locks.held(f"{scope}/{group}"):
            # What was broken off may be the intent itself, still on its way.
            table.require_settled()
            await self._finish(table, scope, group)

    async def _finish(self, table: MetadataTable, scope: str, group: str) -> None:
        record = (await table.read(group_key(group))).record
        if record is None:
            return
        if record.state is ReaderGroupState.DELETING:
            await self._finish_deleting(table, scope, group, record)
        if record.state is not ReaderGroupState.CREATING:
            return
        try:
            await self._make(table, scope, group, record)
        except SegmentStoreError as error:
            if not is_refusal(error):
                raise
            _LOG.warning("group=%s/%s cannot be made and was taken back: %s", scope, group, error)

    async def _make(
        self, table: MetadataTable, scope: str, group: str, record: ReaderGroupRecord
    ) -> ReaderGroupRecord:
        """Finish a group whose record says CREATING. If that is refused for good, nothing of it stays."""
        try:
            return await self._finish_creating(table, scope, group, record)
        except SegmentStoreError as refusal:
            if is_refusal(refusal):
                try:
                    await self._delete(table, scope, group)
                except SegmentStoreError as error:
                    self._retry_queue.note_failure((scope, group), error)
            raise

    async def _finish_creating(
        self, table: MetadataTable, scope: str, group: str, record: ReaderGroupRecord
    ) -> ReaderGroupRecord:
        await self._subscribe(scope, group, record)
        with suppress(StreamExistsError):
            await self._streams.create(
                scope,
                reader_group_stream(group),
                _state_configuration(record),
            )
        active = dataclasses.replace(record, state=ReaderGroupState.ACTIVE)
        batch = Batch()
        batch.put(group_key(group), active, await table.read(group_key(group)))
        batch.unlist_name(UNFINISHED_GROUPS_INDEX, group)
        await table.commit(batch)
        return active

    async def _delete(self, table: MetadataTable, scope: str, group: str) -> None:
        known = await table.read(group_key(group))
        if known.record is None:
            return
        record = dataclasses.replace(known.record, state=ReaderGroupState.DELETING)
        if known.record.state is not ReaderGroupState.DELETING:
            batch = Batch()
            batch.put(group_key(group), record, known)
            batch.list_name(UNFINISHED_GROUPS_INDEX, group)
            await table.commit(batch)
        try:
            await self._finish_deleting(table, scope, group, record)
        except SegmentStoreError as error:
            # Whatever it is: the group is half deleted, and has to go.
            self._retry_queue.note_failure((scope, group), error)
            raise

    async def _finish_deleting(
        self, table: MetadataTable, scope: str, group: str, record: ReaderGroupRecord
    ) -> None:
        for stream in subscribed_streams(record):
            await self._subscribers.unsubscribe(*stream, scope=scope, group=group)
        with suppress(StreamNotFoundError):
            await self._streams.delete(scope, reader_group_stream(group), even_if_open=True)
        batch = Batch()
        batch.remove(group_key(group), await table.read(group_key(group)))
        batch.unlist_name(GROUPS_INDEX, group)
        batch.unlist_name(UNFINISHED_GROUPS_INDEX, group)
        await table.commit(batch)

    async def _subscribe(self, scope: str, group: str, record: ReaderGroupRecord) -> None:
        for stream in subscribed_streams(record):
            await self._subscribers.subscribe(*stream, scope=scope, group=group)

    def _names(self, table: MetadataTable, index: str) -> AsyncGenerator[str, None]:
        return table.all_names(index, per_read=self._settings.names_per_read)


def _state_configuration(record: ReaderGroupRecord) -> StreamConfigurationRecord:
    return StreamConfigurationRecord(rollover_bytes=record.rollover_bytes)


def subscribed_streams(record: ReaderGroupRecord) -> list[tuple[str, str]]:
    """Scope and name of every stream whose retention the group holds back, each once."""
    if record.retention_type is RetentionType.NONE:
        return []
    return list(dict.fromkeys((cut.scope, cut.stream) for cut in record.starting_cuts))


def record_of(
    config: api.ReaderGroupConfiguration, *, state: ReaderGroupState
) -> ReaderGroupRecord:
    """Raises InvalidRequestError for numbers that no group can have."""
    if config.generation < 0 or config.retentionType not in RetentionType.__members__.values():
        raise InvalidRequestError(
            f"reader group is out of range generation={config.generation} retention_type={config.retentionType}"
        )
    return ReaderGroupRecord(
        state=state,
        group_id=config.readerGroupId,
        generation=config.generation,
        retention_type=RetentionType(config.retentionType),
        refresh_ms=config.groupRefreshTimeMillis,
        checkpoint_interval_ms=config.automaticCheckpointIntervalMillis,
        outstanding_checkpoints_max=config.maxOutstandingCheckpointRequest,
        rollover_bytes=config.rolloverSizeBytes,
        starting_cuts=tuple(_cut_of(cut) for cut in config.startingStreamCuts),
        ending_cuts=tuple(_cut_of(cut) for cut in config.endingStreamCuts),
    )


def message_of(scope: str, group: str, record: ReaderGroupRecord) -> api.ReaderGroupConfiguration:
    """The configuration as it was given, with the generation that it has now."""
    return api.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=record.refresh_ms,
        automaticCheckpointIntervalMillis=record.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=record.outstanding_checkpoints_max,
        retentionType=record.retention_type,
        generation=record.generation,
        readerGroupId=record.group_id,
        startingStreamCuts=[_message_of_cut(cut) for cut in record.starting_cuts],
        endingStreamCuts=[_message_of_cut(cut) for cut in record.ending_cuts],
        rolloverSizeBytes=record.rollover_bytes,
    )


def _cut_of(cut: api.StreamCut) -> GroupCut:
    for segment_id in cut.cut:
        if segment_id < 0:
            raise InvalidRequestError(f"a segment id is not negative segment_id={segment_id}")
    name = cut.streamInfo
    if not (is_stream_name(name.scope) and is_stream_name(name.stream)):
        raise InvalidRequestError(
            f"no stream can have that name scope={name.scope!r} stream={name.stream!r}"
        )
    return GroupCut(
        cut.streamInfo.scope,
        cut.streamInfo.stream,
        {segment_id: cut.cut[segment_id] for segment_id in sorted(cut.cut)},
    )


def _message_of_cut(cut: GroupCut) -> api.StreamCut:
    return api.StreamCut(
        streamInfo=api.StreamInfo(scope=cut.scope, stream=cut.stream), cut=dict(cut.offsets)
    )
