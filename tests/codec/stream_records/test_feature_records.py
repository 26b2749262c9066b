"""Records of transactions, groups, tables, retention and marks, and the watermarks that foreign clients read."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.controller_records.key_value_table_record import (
    KeyValueTableRecord,
)
from segmentstore.codec.controller_records.reader_group_records import (
    ConsumedCutRecord,
    GroupCut,
    ReaderGroupRecord,
    StreamDataRetention,
)
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.codec.controller_records.stream_records import (
    RetentionCut,
    RetentionCutsRecord,
    SegmentWithRange,
)
from segmentstore.codec.controller_records.transaction_records import (
    CommitFenceRecord,
    RollingPlanRecord,
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.controller_records.watermark_records import Watermark, WriterMarkRecord
from segmentstore.contracts.errors import CorruptedDataError

GOLDEN = Path(__file__).parents[2] / "golden" / "controller_feature_records_v1.hex"

WATERMARK_OF_JAVA = bytes.fromhex(
    "000001000000006100000000000003e800000000000007d002"
    "0000010000000018000000000000000000000000000000003fe0000000000000000000000000000c"
    "000001000000001800000002000000033fe00000000000003ff00000000000000000010000000000"
)
"""Written by the serializer of Pravega's own client library, 0.13."""
CUT = {SegmentWithRange(0, 0.0, 0.5): 12, SegmentWithRange((2 << 32) | 3, 0.5, 1.0): 1 << 40}


class AnyRecord(Protocol):
    def encode(self) -> bytes: ...


SAMPLES: dict[str, tuple[AnyRecord, Callable[[bytes], AnyRecord]]] = {
    "open transaction": (
        TransactionRecord(
            state=TransactionState.OPEN, lease_ms=90_000, created_ms=1_700_000_000_000
        ),
        TransactionRecord.decode,
    ),
    "committed transaction": (
        TransactionRecord(
            state=TransactionState.COMMITTED,
            lease_ms=90_000,
            created_ms=1_700_000_000_000,
            completed_ms=1_700_000_000_123,
            commit_number=300,
            writer="wörker",
            timestamp=-7,
            merged={(3 << 32) | 1: 1 << 33, 0: 12},
        ),
        TransactionRecord.decode,
    ),
    "transaction with stages": (
        TransactionRecord(
            state=TransactionState.COMMITTING,
            lease_ms=0,
            created_ms=1_700_000_000_000,
            commit_number=4,
            stages=((2 << 96) | 5, (2 << 96) | 4),
        ),
        TransactionRecord.decode,
    ),
    "stage that joins a transaction": (
        TransactionRecord(
            state=TransactionState.COMMITTING,
            lease_ms=3_600_000,
            created_ms=1_700_000_000_000,
            joins=(2 << 96) | 9,
        ),
        TransactionRecord.decode,
    ),
    "commit fence": (
        CommitFenceRecord(
            application_id="query:é",
            version=-3,
            is_lasting=True,
            committed_ms=1_700_000_000_000,
        ),
        CommitFenceRecord.decode,
    ),
    "rolling plan": (
        RollingPlanRecord(
            transaction_epoch=2, active_epoch=7, transaction_ids=((2 << 96) | 5, (2 << 96) | 4)
        ),
        RollingPlanRecord.decode,
    ),
    "reader group": (
        ReaderGroupRecord(
            state=ScopeItemState.ACTIVE,
            group_id="8ab5e3ba-0001",
            generation=4,
            retention_type=StreamDataRetention.AUTOMATIC,
            refresh_ms=3_000,
            checkpoint_interval_ms=-1,
            outstanding_checkpoints_max=3,
            rollover_bytes=0,
            starting_cuts=(GroupCut("s", "a", {0: -1, 1: 20}),),
            ending_cuts=(GroupCut("s", "a", {}),),
        ),
        ReaderGroupRecord.decode,
    ),
    "consumed cut": (
        ConsumedCutRecord(group_id="8ab5e3ba-0001", generation=4, offsets={1: 20, 5: 0}),
        ConsumedCutRecord.decode,
    ),
    "key-value table": (
        KeyValueTableRecord(
            state=ScopeItemState.CREATING,
            partition_count=4,
            primary_key_bytes=16,
            secondary_key_bytes=8,
            rollover_bytes=1 << 27,
        ),
        KeyValueTableRecord.decode,
    ),
    "numbered key-value table": (
        KeyValueTableRecord(
            state=ScopeItemState.ACTIVE,
            partition_count=4,
            primary_key_bytes=16,
            secondary_key_bytes=8,
            rollover_bytes=1 << 27,
            first_number=300,
        ),
        KeyValueTableRecord.decode,
    ),
    "retention cuts": (
        RetentionCutsRecord(
            (
                RetentionCut(1_700_000_000_000, 0, {0: 12}),
                RetentionCut(1_700_000_300_000, 1 << 34, {0: 1 << 34}),
            )
        ),
        RetentionCutsRecord.decode,
    ),
    "writer mark": (
        WriterMarkRecord(time=-(1 << 62), alive=True, position={0: 12, 1 << 32: 0}),
        WriterMarkRecord.decode,
    ),
    "watermark": (Watermark(1_000, 2_000, CUT, "shop", "orders"), Watermark.decode),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_reads_back_as_what_was_written(name: str) -> None:
    record, decode = SAMPLES[name]
    assert decode(record.encode()) == record


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_has_the_bytes_that_it_always_had(name: str) -> None:
    golden = dict(line.split("=") for line in GOLDEN.read_text().splitlines())
    assert SAMPLES[name][0].encode().hex() == golden[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_that_was_cut_off_or_goes_on_is_refused(name: str) -> None:
    record, decode = SAMPLES[name]
    content = record.encode()
    for length in range(len(content)):
        with pytest.raises(CorruptedDataError):
            decode(content[:length])
    with pytest.raises(CorruptedDataError):
        decode(content + b"\x00")


@given(content=st.binary(max_size=200))
def test_foreign_bytes_are_refused_or_read_and_never_anything_else(content: bytes) -> None:
    for _, decode in SAMPLES.values():
        try:
            decode(content)
        except CorruptedDataError:
            continue


def test_a_watermark_of_the_foreign_client_is_read() -> None:
    assert Watermark.decode(WATERMARK_OF_JAVA) == Watermark(1_000, 2_000, CUT)


def test_a_watermark_differs_from_the_foreign_one_by_the_names_behind_it_alone() -> None:
    ours = Watermark(1_000, 2_000, CUT, "shop", "orders").encode()
    names = b"\x00\x04shop\x00\x06orders"
    assert ours[8 : -len(names)] == WATERMARK_OF_JAVA[8:]
    assert ours.endswith(names)
    assert ours[:4] == WATERMARK_OF_JAVA[:4]


@pytest.mark.parametrize("count", [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000])
def test_a_watermark_has_any_number_of_segments(count: int) -> None:
    step = 1.0 / (count or 1)
    cut = {
        SegmentWithRange(number, number * step, (number + 1) * step): 5 for number in range(count)
    }
    watermark = Watermark(1, 2, cut, "s", "a")
    assert Watermark.decode(watermark.encode()) == watermark
