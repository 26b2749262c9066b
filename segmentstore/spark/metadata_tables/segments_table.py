"""Rows of `segments`: those of streams from their maps, others from the catalogs of the containers."""

from segmentstore.codec.stream_names import SegmentName, parse_segment
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.metadata_tables.table_rows import Row, time_of
from segmentstore.spark.stream_map import MappedSegment, StreamMap


def stream_segment_row(
    stream: StreamMap, segment: MappedSegment, record: SegmentRecord | None
) -> Row:
    """A segment of a stream; `record` is what Tier 2 knows of it."""
    return {
        "scope": stream.scope,
        "stream": stream.stream,
        "segment_id": segment.segment_id,
        "segment": segment.name,
        "container_id": segment.container_id if segment.container_id >= 0 else None,
        "epoch": segment.epoch,
        "key_low": segment.low,
        "key_high": segment.high,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "published_end": segment.published_end,
        "is_sealed": segment.is_sealed,
        "modified": None if record is None else time_of(record.last_modified_ms),
        "successors": list(segment.successors),
        "predecessors": list(segment.predecessors),
    }


def published_segment_row(record: SegmentRecord, *, container_id: int) -> Row:
    """A segment as a catalog has it, whether it is one of a stream or not."""
    row: Row = {
        "segment": record.name,
        "container_id": container_id,
        "start_offset": record.start_offset,
        "end_offset": record.length,
        "published_end": record.length,
        "is_sealed": record.sealed,
        "modified": time_of(record.last_modified_ms),
    }
    return row | stream_columns(record.name)


def stream_columns(name: str) -> Row:
    """Scope, stream and id that a segment's name says; nothing for one that is (yet) no stream's."""
    try:
        parts: SegmentName = parse_segment(name)
    except InvalidRequestError:
        return {}
    if parts.transaction_id is not None or parts.transient is not None:
        return {}
    return {
        "scope": parts.scope,
        "stream": parts.stream,
        "segment_id": parts.segment_id,
        "epoch": parts.creation_epoch,
    }
