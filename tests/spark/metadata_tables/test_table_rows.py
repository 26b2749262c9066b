from contextlib import aclosing

import pytest

from segmentstore.codec.controller_records.reader_group_records import (
    ConsumedCutRecord,
    GroupCut,
    ReaderGroupRecord,
    StreamDataRetention,
)
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.codec.controller_records.stream_records import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfigurationRecord,
    StreamState,
    StreamStateRecord,
)
from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import SegmentRecord, StoredBlock
from segmentstore.spark.metadata_tables.table_rows import (
    StreamRecords,
    chunk_row,
    chunk_rows,
    published_segment_row,
    reader_group_row,
    stream_columns,
    stream_row,
    stream_segment_row,
    transaction_row,
)
from segmentstore.spark.streams.segment_graph import StreamMetadata, StreamSegmentMetadata
from tests.spark.stream_history import MovingStore, begin_history

EPOCH_1 = 1 << 32


def mapped(
    segment_id: int, start: int, end: int, **links: tuple[int, ...]
) -> StreamSegmentMetadata:
    return StreamSegmentMetadata(
        segment_id=segment_id,
        name=f"plant/readings/{segment_id & 0xFFFFFFFF}.#epoch.{segment_id >> 32}",
        epoch=segment_id >> 32,
        low=0.0,
        high=1.0,
        start_offset=start,
        end_offset=end,
        published_end=end - 10,
        is_sealed=segment_id == 0,
        container_id=2,
        successors=links.get("successors", ()),
        predecessors=links.get("predecessors", ()),
    )


STREAM = StreamMetadata(
    "plant",
    "readings",
    [
        mapped(0, 20, 100, successors=(EPOCH_1 | 1,)),
        mapped(EPOCH_1 | 1, 0, 50, predecessors=(0,)),
    ],
    {0: 20},
    tags=("hot",),
)


def record(name: str, *, start: int = 0, length: int = 300) -> SegmentRecord:
    return SegmentRecord(
        SegmentId(7), name, start, length, False, 1_700_000_000_123, SequenceNumber(9)
    )


def block(
    offset: int, *, number: int | None, compression: int = 1, times: tuple[int, int] = (5, 9)
) -> StoredBlock:
    return StoredBlock(
        offset=offset,
        length=100,
        first_event_offset=None if number is None else offset + 3,
        event_number=number or 0,
        events_known=True,
        lowest_time_ms=times[0],
        highest_time_ms=times[1],
        object_key="containers/0002/chunks/1-1-5",
        image_position=40,
        position=50,
        stored_length=60,
        compression=compression,
    )


def test_a_stream_shows_its_cuts_as_positions_and_its_policies() -> None:
    records = StreamRecords(
        StreamStateRecord(
            state=StreamState.SCALING,
            current_epoch=1,
            last_epoch=1,
            next_segment_number=2,
            created_ms=1_000,
        ),
        StreamConfigurationRecord(
            scaling=ScalingPolicy(type=ScalingType.EVENTS_PER_SECOND, target_rate=500),
            retention=RetentionPolicy(type=RetentionType.SIZE, limit=1 << 30),
        ),
    )
    assert stream_row(STREAM, records) == {
        "scope": "plant",
        "stream": "readings",
        "state": "SCALING",
        "tags": ["hot"],
        "created": 1_000_000,
        "segment_count": 1,
        "segment_count_total": 2,
        "bytes": 130,
        "head": '{"0": 20}',
        "tail": f'{{"{EPOCH_1 | 1}": 50}}',
        "scaling": "EVENTS_PER_SECOND",
        "scaling_target": 500,
        "segment_count_min": 1,
        "retention": "SIZE",
        "retention_limit": 1 << 30,
    }


def test_a_stream_of_which_tier_2_has_no_records_has_no_policies() -> None:
    row = stream_row(STREAM, StreamRecords())
    assert (row["state"], row["created"], "scaling" in row) == ("ACTIVE", None, False)


def test_a_segment_of_a_stream_shows_its_neighbours_and_what_tier_2_has() -> None:
    row = stream_segment_row(STREAM, STREAM.segments[0], record(STREAM.segments[0].name))
    assert row["successors"] == [EPOCH_1 | 1]
    assert (row["start_offset"], row["published_end"], row["end_offset"]) == (20, 90, 100)
    assert row["modified"] == 1_700_000_000_123_000


@pytest.mark.parametrize(
    "name",
    [
        "logs/today",
        "plant/readings/0.#epoch.0#transaction." + "0" * 32,
        "plant/readings/0.#epoch.0#transient." + "0" * 32 + "." + "1" * 32,
    ],
)
def test_a_segment_that_is_no_streams_has_no_stream(name: str) -> None:
    assert stream_columns(name) == {}
    assert published_segment_row(record(name), container_id=1)["segment"] == name


async def test_a_segment_that_is_removed_while_its_chunks_are_listed_has_no_more_rows() -> None:
    for reads in range(3):
        segment = (await begin_history()).segment
        for number in range(3):
            await segment.append([b"%d" % number * 50])
        container = await (await segment.view()).container(0)
        assert container is not None
        found = await container.find(segment.record.name)
        assert found is not None
        assert isinstance(segment.store, MovingStore)
        segment.store.reads_left, segment.store.before_read = reads, segment.remove
        async with aclosing(chunk_rows(container, found)) as rows:
            starts = [row["start_offset"] async for row in rows]
        assert starts == segment.offsets[: len(starts)], reads


def test_a_chunk_is_the_sum_of_its_blocks_cut_at_the_segments_start() -> None:
    name = "plant/readings/1.#epoch.1"
    blocks = [
        block(0, number=None, times=(0, 0)),
        block(100, number=17, compression=2, times=(50, 60)),
        block(200, number=29),
    ]
    assert chunk_row(2, record(name, start=30, length=290), blocks) == {
        "scope": "plant",
        "stream": "readings",
        "segment_id": EPOCH_1 | 1,
        "segment": name,
        "container_id": 2,
        "start_offset": 30,
        "end_offset": 290,
        "object_key": "containers/0002/chunks/1-1-5",
        "position": 40,
        "stored_bytes": 192,
        "block_count": 3,
        "compression": "lz4+zstd",
        "events_known": True,
        "first_event_number": 17,
        "last_block_event_number": 29,
        "lowest_time": 5_000,
        "highest_time": 60_000,
    }


def test_a_transaction_shows_what_it_waits_for() -> None:
    row = transaction_row(
        f"transaction/plant/readings/{3 << 96 | 5:032x}",
        TransactionRecord(
            state=TransactionState.COMMITTING,
            lease_ms=30_000,
            created_ms=2,
            commit_number=4,
            stages=(1, 2),
        ),
    )
    assert row["epoch"] == 3
    assert (row["state"], row["completed"], row["commit_number"]) == ("COMMITTING", None, 4)
    assert row["stages"] == [f"{1:032x}", f"{2:032x}"]
    assert (row["writer"], row["writer_timestamp"], row["joins"]) == (None, None, None)


@pytest.mark.parametrize("key", ["transaction/plant/readings", "transaction/plant/readings/12"])
def test_a_foreign_key_among_the_transactions_is_damage(key: str) -> None:
    record = TransactionRecord(state=TransactionState.OPEN, lease_ms=1, created_ms=1)
    with pytest.raises(CorruptedDataError, match="foreign key"):
        transaction_row(key, record)


@pytest.mark.parametrize(("consumer", "shown"), [("id-1", '{"0": 40}'), ("id-0", None)])
def test_a_group_shows_what_it_consumed_but_not_what_one_of_its_name_did_before(
    consumer: str, shown: str | None
) -> None:
    cut = GroupCut("plant", "readings", {0: 20})
    group = ReaderGroupRecord(
        state=ScopeItemState.ACTIVE,
        group_id="id-1",
        generation=3,
        retention_type=StreamDataRetention.MANUAL,
        refresh_ms=0,
        checkpoint_interval_ms=0,
        outstanding_checkpoints_max=0,
        rollover_bytes=0,
        starting_cuts=(cut,),
        ending_cuts=(),
    )
    consumed = ConsumedCutRecord(group_id=consumer, generation=3, offsets={0: 40})
    row = reader_group_row("office", "nightly", group, cut, consumed)
    assert row["consumed_offsets"] == shown
    assert (row["starting_offsets"], row["ending_offsets"]) == ('{"0": 20}', None)
    assert (row["scope"], row["stream_scope"], row["retention"]) == ("office", "plant", "MANUAL")
