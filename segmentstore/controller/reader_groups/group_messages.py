"""Reader groups as messages and as records. Pure."""

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_records.reader_group_record import (
    GroupCut,
    ReaderGroupRecord,
    ReaderGroupState,
    RetentionType,
)
from segmentstore.contracts.errors import InvalidRequestError


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
    return GroupCut(
        cut.streamInfo.scope,
        cut.streamInfo.stream,
        {segment_id: cut.cut[segment_id] for segment_id in sorted(cut.cut)},
    )


def _message_of_cut(cut: GroupCut) -> api.StreamCut:
    return api.StreamCut(
        streamInfo=api.StreamInfo(scope=cut.scope, stream=cut.stream), cut=dict(cut.offsets)
    )
