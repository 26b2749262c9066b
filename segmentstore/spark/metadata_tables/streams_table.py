"""Rows of `streams`: a stream's map, and what its records add if Tier 2 is read."""

from dataclasses import dataclass

from segmentstore.codec.stream_records import record_places
from segmentstore.codec.stream_records.stream_configuration_record import (
    RetentionType,
    ScalingType,
    StreamConfigurationRecord,
)
from segmentstore.codec.stream_records.stream_state_record import StreamStateRecord
from segmentstore.spark.metadata_tables.table_rows import Row, position_of, time_of
from segmentstore.spark.published_streams import PublishedStreams
from segmentstore.spark.stream_map import StreamMap


@dataclass(frozen=True, slots=True)
class StreamRecords:
    """What the controller wrote of a stream; None for what is not in Tier 2."""

    state: StreamStateRecord | None = None
    configuration: StreamConfigurationRecord | None = None


async def records_of(published: PublishedStreams, scope: str, stream: str) -> StreamRecords:
    """From Tier 2. Raises StreamMissingError if the scope is not there, StorageError."""
    table = await published.scope_table(scope)
    state, configuration = await table.get(
        [record_places.state(stream), record_places.configuration(stream)]
    )
    return StreamRecords(
        StreamStateRecord.decode(state) if state else None,
        StreamConfigurationRecord.decode(configuration) if configuration else None,
    )


def stream_row(stream: StreamMap, records: StreamRecords) -> Row:
    """One row."""
    if records.state is not None:
        state, created_ms = records.state.state.name, records.state.created_ms
    else:
        state, created_ms = ("SEALED" if stream.is_sealed else "ACTIVE"), stream.created_ms
    row: Row = {
        "scope": stream.scope,
        "stream": stream.stream,
        "state": state,
        "tags": list(stream.tags),
        "created": time_of(created_ms),
        "segment_count": len(stream.active),
        "segment_count_total": len(stream.segments),
        "bytes": sum(each.end_offset - each.start_offset for each in stream.segments),
        "head": position_of(stream.head),
        "tail": position_of(stream.tail),
    }
    if records.configuration is not None:
        row |= _policies(records.configuration)
    return row


def _policies(configuration: StreamConfigurationRecord) -> Row:
    scaling, retention = configuration.scaling, configuration.retention
    return {
        "scaling": scaling.type.name,
        "scaling_target": None if scaling.type is ScalingType.FIXED else scaling.target_rate,
        "segment_count_min": scaling.segment_count_min,
        "retention": retention.type.name,
        "retention_limit": None if retention.type is RetentionType.NONE else retention.limit,
    }
