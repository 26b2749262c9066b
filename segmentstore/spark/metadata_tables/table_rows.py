"""The rows of every metadata table, from the records as the controller and Tier 2 wrote them.

- `streams`: what is known of a stream's segments, and what its records add if Tier 2 is read.
- `segments`: those of streams from their metadata, others from the catalogs of the containers.
- `chunks`: the blocks of a segment, taken together by the image that holds them. Reads one index an image, and no data.
- `transactions`, `readerGroups`: the controller's records, from the tables where it keeps them:

    _system/_tables/transactions    transaction/<scope>/<stream>/<32 hex digits>: one for each transaction
    table of the group's scope      group/<group>
    table of the stream's scope     consumed/<stream>/<scope of the group>/<group>, if the group said something
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.reader_group_records import (
    ConsumedCutRecord,
    GroupCut,
    ReaderGroupRecord,
)
from segmentstore.codec.controller_records.record_keys import REMOVED
from segmentstore.codec.controller_records.stream_records import (
    RetentionType,
    ScalingType,
    StreamConfigurationRecord,
    StreamStateRecord,
)
from segmentstore.codec.controller_records.transaction_records import (
    NO_TIMESTAMP,
    TransactionRecord,
)
from segmentstore.codec.stream_names import SegmentName, parse_segment, transaction_epoch_of
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.spark.streams.offsets import Position
from segmentstore.spark.streams.segment_graph import (
    StreamMetadata,
    StreamMissingError,
    StreamSegmentMetadata,
)
from segmentstore.spark.streams.tier2_catalog import Tier2StreamCatalog, Tier2Table
from tier2.outside_access import BLOCK_CHECKSUM_BYTES, Compression, ContainerReader

Value: TypeAlias = str | int | float | bool | Sequence[str] | Sequence[int] | None
Row: TypeAlias = dict[str, Value]
"""Values by column; columns that are left out are null. Times are Unix microseconds."""


@dataclass(frozen=True, slots=True)
class StreamRecords:
    """What the controller wrote of a stream; None for what is not in Tier 2."""

    state: StreamStateRecord | None = None
    configuration: StreamConfigurationRecord | None = None


async def records_of(published: Tier2StreamCatalog, scope: str, stream: str) -> StreamRecords:
    """From Tier 2. Raises StreamMissingError if the scope is not there, StorageError."""
    table = await published.scope_table(scope)
    state, configuration = await table.get(
        [record_keys.state(stream), record_keys.configuration(stream)]
    )
    return StreamRecords(
        StreamStateRecord.decode(state) if state else None,
        StreamConfigurationRecord.decode(configuration) if configuration else None,
    )


def stream_row(stream: StreamMetadata, records: StreamRecords) -> Row:
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
        "head": offsets_json(stream.head),
        "tail": offsets_json(stream.tail),
    }
    if records.configuration is not None:
        row |= _stream_policies(records.configuration)
    return row


def _stream_policies(configuration: StreamConfigurationRecord) -> Row:
    scaling, retention = configuration.scaling, configuration.retention
    return {
        "scaling": scaling.type.name,
        "scaling_target": None if scaling.type is ScalingType.FIXED else scaling.target_rate,
        "segment_count_min": scaling.segment_count_min,
        "retention": retention.type.name,
        "retention_limit": None if retention.type is RetentionType.NONE else retention.limit,
    }


def stream_segment_row(
    stream: StreamMetadata, segment: StreamSegmentMetadata, record: SegmentRecord | None
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


async def chunk_rows(
    container: ContainerReader, record: SegmentRecord
) -> AsyncGenerator[Row, None]:
    """The images of one segment, in order. Hold it in `aclosing`. Raises StorageError."""
    offset, latest = record.start_offset, record
    image: list[StoredBlock] = []
    while offset < latest.length:
        blocks = container.list_blocks(record.segment_id, offset, latest.length)
        try:
            async with aclosing(blocks):
                async for block in blocks:
                    if image and _image_of(image[-1]) != _image_of(block):
                        yield chunk_row(container.container_id, latest, image)
                        image = []
                    image.append(block)
                    offset = block.offset + block.length
        except SegmentTruncatedError:
            # Truncated since the record was read: what is left of the segment begins further on.
            await container.refresh()
            again = await container.find(record.name)
            if again is None:
                return
            latest, offset, image = again, max(offset, again.start_offset), []
        except SegmentNotFoundError:
            return
    if image:
        yield chunk_row(container.container_id, latest, image)


def chunk_row(container_id: int, record: SegmentRecord, blocks: Sequence[StoredBlock]) -> Row:
    """One image by its blocks, in order."""
    first, last = blocks[0], blocks[-1]
    numbers = [each.event_number for each in blocks if each.first_event_offset is not None]
    known = [each for each in blocks if each.events_known and each.highest_time_ms]
    row: Row = {
        "segment": record.name,
        "container_id": container_id,
        "start_offset": max(first.offset, record.start_offset),
        "end_offset": min(last.offset + last.length, record.length),
        "object_key": first.object_key,
        "position": first.image_position,
        "stored_bytes": sum(each.stored_length + BLOCK_CHECKSUM_BYTES for each in blocks),
        "block_count": len(blocks),
        "compression": _compression_names(blocks),
        "events_known": all(each.events_known for each in blocks),
        "first_event_number": numbers[0] if numbers else None,
        "last_block_event_number": last.event_number
        if last.first_event_offset is not None
        else None,
        "lowest_time": time_of(min((each.lowest_time_ms for each in known), default=0)),
        "highest_time": time_of(max((each.highest_time_ms for each in known), default=0)),
    }
    columns = stream_columns(record.name)
    columns.pop("epoch", None)
    return row | columns


def _image_of(block: StoredBlock) -> tuple[str, int]:
    return block.object_key, block.image_position


def _compression_names(blocks: Sequence[StoredBlock]) -> str:
    names = {each.compression: Compression(each.compression).name.lower() for each in blocks}
    return "+".join(names[number] for number in sorted(names))


async def transaction_rows(
    table: Tier2Table, *, scope: str, stream: str
) -> AsyncGenerator[Row, None]:
    """Of one stream, of a scope, or (both empty) of all. Hold it in `aclosing`. Raises StorageError."""
    prefix = (
        record_keys.TRANSACTION_PREFIX
        + (f"{scope}/" if scope else "")
        + (f"{stream}/" if stream else "")
    )
    async with aclosing(table.scan(prefix)) as entries:
        async for key, value in entries:
            if value != REMOVED:
                yield transaction_row(key, TransactionRecord.decode(value))


def transaction_row(key: str, record: TransactionRecord) -> Row:
    """One record under its key. Raises CorruptedDataError for another key."""
    parts = key.removeprefix(record_keys.TRANSACTION_PREFIX).split("/")
    if len(parts) != 3 or len(parts[2]) != 32:
        raise CorruptedDataError(f"table of transactions has a foreign key key={key!r}")
    scope, stream, digits = parts
    return {
        "scope": scope,
        "stream": stream,
        "transaction_id": digits,
        "epoch": transaction_epoch_of(int(digits, 16)),
        "state": record.state.name,
        "created": time_of(record.created_ms),
        "completed": time_of(record.completed_ms),
        "lease_ms": record.lease_ms,
        "commit_number": record.commit_number or None,
        "writer": record.writer or None,
        "writer_timestamp": None if record.timestamp == NO_TIMESTAMP else record.timestamp,
        "stages": [f"{each:032x}" for each in record.stages],
        "joins": None if record.joins is None else f"{record.joins:032x}",
    }


async def reader_group_rows(
    published: Tier2StreamCatalog, *, scope: str, stream: str
) -> AsyncGenerator[Row, None]:
    """Of all groups in a scope; with `stream` the rows of that stream only. Hold it in `aclosing`.

    Raises StreamMissingError if there is no such scope, StorageError.
    """
    table = await published.scope_table(scope)
    async with aclosing(table.scan(record_keys.GROUP_PREFIX)) as entries:
        async for key, value in entries:
            if value == REMOVED:
                continue
            group, record = (
                key.removeprefix(record_keys.GROUP_PREFIX),
                ReaderGroupRecord.decode(value),
            )
            # A group without streams has a row as well.
            for cut in record.starting_cuts or (GroupCut("", "", {}),):
                if stream and (cut.scope, cut.stream) != (scope, stream):
                    continue
                consumed = await _consumed_cut(published, cut, scope=scope, group=group)
                yield reader_group_row(scope, group, record, cut, consumed)


def reader_group_row(
    scope: str,
    group: str,
    record: ReaderGroupRecord,
    cut: GroupCut,
    consumed: ConsumedCutRecord | None,
) -> Row:
    """A group and one of its streams."""
    ending = {(each.scope, each.stream): each.offsets for each in record.ending_cuts}
    ends = ending.get((cut.scope, cut.stream))
    # What an earlier group of that name consumed does not count.
    counts = consumed is not None and consumed.group_id == record.group_id
    return {
        "scope": scope,
        "reader_group": group,
        "state": record.state.name,
        "group_id": record.group_id,
        "generation": record.generation,
        "retention": record.retention_type.name,
        "stream_scope": cut.scope or None,
        "stream": cut.stream or None,
        "starting_offsets": offsets_json(cut.offsets) if cut.offsets else None,
        "ending_offsets": offsets_json(ends) if ends else None,
        "consumed_offsets": offsets_json(consumed.offsets) if consumed and counts else None,
    }


async def _consumed_cut(
    published: Tier2StreamCatalog, cut: GroupCut, *, scope: str, group: str
) -> ConsumedCutRecord | None:
    try:
        table = await published.scope_table(cut.scope)
    except StreamMissingError:
        return None
    value = (await table.get([record_keys.consumed_cut(cut.stream, scope, group)]))[0]
    return ConsumedCutRecord.decode(value) if value else None


def time_of(milliseconds: int) -> int | None:
    """A time from Unix milliseconds; 0 stands for "unknown"."""
    return milliseconds * 1_000 if milliseconds else None


def offsets_json(offsets: Mapping[int, int]) -> str:
    """A cut as `startingOffsets` takes it."""
    return Position(offsets).to_json()
