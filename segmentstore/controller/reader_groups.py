"""Creates, describes, changes and deletes reader groups; a group as a message and as a record.

    record `group/<name>` in the scope's table, indexes `groups` and, while something is under way, `unfinished-groups`
    stream `_RG<name>` in the scope: the readers' shared state, which only they understand

Invariants, beside those of `scope_items.py`:

- The state stream exists before a group is shown, and goes before the group's name is free again.
- What can be refused is refused before the first record of a group. A group that cannot be made is taken back.
- Creating a group that exists gives the stored configuration: the client compares.
- A change names the generation that it is based on; the next one is one higher.
- A group that holds back retention is listed as a subscriber before its record says so, and until after it does not.
"""

import dataclasses
from contextlib import suppress
from typing import Final

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.reader_group_records import (
    GroupCut,
    ReaderGroupRecord,
    StreamDataRetention,
)
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.codec.controller_records.stream_records import StreamConfigurationRecord
from segmentstore.codec.stream_names import is_stream_name, is_user_name, reader_group_stream
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import (
    IndexClosedError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.scope_items import ScopeItems
from segmentstore.controller.settings import ReaderGroupSettings
from segmentstore.controller.streams.streams import Streams
from segmentstore.controller.subscribers import Subscribers, group_key

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
        self.items = ScopeItems(
            kind="group",
            store=store,
            parts=self,
            key=group_key,
            index=GROUPS_INDEX,
            unfinished_index=UNFINISHED_GROUPS_INDEX,
            waiters_max=settings.waiters_per_group_max,
            names_per_read=settings.names_per_read,
        )
        """Deletes all groups of a scope, and finishes what was broken off."""

    async def create(self, config: api.ReaderGroupConfiguration) -> api.CreateReaderGroupResponse:
        """Raises InvalidRequestError."""
        scope, group = config.scope, config.readerGroupName
        if not is_user_name(group):
            return CreateResponse(status=CreateResponse.Status.INVALID_RG_NAME)
        wanted = self._checked(config, ScopeItemState.CREATING)
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
            if record is not None and record.state is ScopeItemState.ACTIVE:
                return ConfigResponse(
                    status=status.SUCCESS,
                    config=message_of(info.scope, info.readerGroup, record),
                )
        return ConfigResponse(status=status.RG_NOT_FOUND)

    async def update(self, config: api.ReaderGroupConfiguration) -> api.UpdateReaderGroupResponse:
        """Replace everything but the id; `config` has the present generation. Raises InvalidRequestError."""
        status = UpdateResponse.Status
        scope, group = config.scope, config.readerGroupName
        wanted = self._checked(config, ScopeItemState.ACTIVE)
        try:
            table = await self._store.scope_table(scope)
        except ScopeNotFoundError:
            return UpdateResponse(status=status.RG_NOT_FOUND)
        async with self.items.held(scope, group):
            known = await table.read(group_key(group))
            record = known.record
            if record is None or record.state is not ScopeItemState.ACTIVE:
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
        async with self.items.held(scope, group):
            record = (await table.read(group_key(group))).record
            if record is None or record.group_id != info.readerGroupId:
                return DeleteStatus(status=status.RG_NOT_FOUND)
            await self.items.delete(table, scope, group)
        return DeleteStatus(status=status.SUCCESS)

    # --- steps -----------------------------------------------------------------------------------

    def _checked(
        self, config: api.ReaderGroupConfiguration, state: ScopeItemState
    ) -> ReaderGroupRecord:
        streams_max = self._settings.streams_per_group_max
        if max(len(config.startingStreamCuts), len(config.endingStreamCuts)) > streams_max:
            raise InvalidRequestError(f"a group reads at most {streams_max} streams")
        return record_of(config, state=state)

    async def _create(self, scope: str, group: str, wanted: ReaderGroupRecord) -> ReaderGroupRecord:
        table = await self._store.scope_table(scope)
        async with self.items.held(scope, group):
            await self.items.finish(table, scope, group)
            known = await table.read(group_key(group))
            if known.record is not None:
                return known.record
            await self._subscribers.check_cuts(wanted)
            return await self.items.create(table, scope, group, wanted, known)

    async def create_parts(self, scope: str, name: str, record: ReaderGroupRecord) -> None:
        """The streams know their subscriber, and the state stream exists."""
        await self._subscribe(scope, name, record)
        with suppress(StreamExistsError):
            await self._streams.create(
                scope, reader_group_stream(name), _state_configuration(record)
            )

    async def delete_parts(self, scope: str, name: str, record: ReaderGroupRecord) -> None:
        """No stream knows the subscriber, and the state stream is gone."""
        for stream in subscribed_streams(record):
            await self._subscribers.unsubscribe(*stream, scope=scope, group=name)
        with suppress(StreamNotFoundError):
            await self._streams.delete(scope, reader_group_stream(name), even_if_open=True)

    async def add_removal(
        self, table: MetadataTable, batch: Batch, name: str, record: ReaderGroupRecord
    ) -> None:
        """Nothing else goes with the record."""

    async def _subscribe(self, scope: str, group: str, record: ReaderGroupRecord) -> None:
        for stream in subscribed_streams(record):
            await self._subscribers.subscribe(*stream, scope=scope, group=group)


def _state_configuration(record: ReaderGroupRecord) -> StreamConfigurationRecord:
    return StreamConfigurationRecord(rollover_bytes=record.rollover_bytes)


def subscribed_streams(record: ReaderGroupRecord) -> list[tuple[str, str]]:
    """Scope and name of every stream whose retention the group holds back, each once."""
    if record.retention_type is StreamDataRetention.NONE:
        return []
    return list(dict.fromkeys((cut.scope, cut.stream) for cut in record.starting_cuts))


def record_of(config: api.ReaderGroupConfiguration, *, state: ScopeItemState) -> ReaderGroupRecord:
    """Raises InvalidRequestError for numbers that no group can have."""
    if (
        config.generation < 0
        or config.retentionType not in StreamDataRetention.__members__.values()
    ):
        raise InvalidRequestError(
            f"reader group is out of range generation={config.generation} retention_type={config.retentionType}"
        )
    return ReaderGroupRecord(
        state=state,
        group_id=config.readerGroupId,
        generation=config.generation,
        retention_type=StreamDataRetention(config.retentionType),
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
