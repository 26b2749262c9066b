"""Each record reads back as what was written, has the bytes that it always had, and refuses bytes that are damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.controller_records.record_fields import FieldReader, FieldWriter
from segmentstore.codec.controller_records.scope_records import (
    IndexPage,
    IndexRoot,
    ScopeRecord,
    ScopeState,
    SegmentNumberRecord,
)
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    SealedSegmentRecord,
    StreamConfigurationRecord,
    StreamSegment,
    StreamState,
    StreamStateRecord,
    TruncationRecord,
)
from segmentstore.contracts.errors import CorruptedDataError

GOLDEN = Path(__file__).parents[2] / "golden" / "stream_records_v1.hex"


class AnyRecord(Protocol):
    def encode(self) -> bytes: ...


SAMPLES: dict[str, tuple[AnyRecord, Callable[[bytes], AnyRecord]]] = {
    "scope": (ScopeRecord(ScopeState.DELETING, 3, 700, 1_700_000_000_000), ScopeRecord.decode),
    "configuration": (
        StreamConfigurationRecord(
            scaling=ScalingPolicy(
                type=ScalingType.EVENTS_PER_SECOND,
                target_rate=1000,
                scale_factor=2,
                segment_count_min=3,
            ),
            retention=RetentionPolicy(
                type=RetentionType.SIZE, limit=1 << 40, maximum=(1 << 63) - 1
            ),
            tags=("blue", "größe"),
            timestamp_aggregation_timeout_ms=-5,
            rollover_bytes=1 << 27,
        ),
        StreamConfigurationRecord.decode,
    ),
    "state": (
        StreamStateRecord(
            state=StreamState.SCALING,
            current_epoch=7,
            last_epoch=8,
            next_segment_number=300,
            created_ms=1_700_000_000_000,
        ),
        StreamStateRecord.decode,
    ),
    "epoch": (
        EpochRecord(
            8,
            6,
            1_700_000_000_001,
            (
                StreamSegment(8 << 32 | 299, 0.0, 1 / 3, 1_700_000_000_001),
                StreamSegment(2, 1 / 3, 1.0, 1_700_000_000_000),
            ),
        ),
        EpochRecord.decode,
    ),
    "sealed segment": (SealedSegmentRecord(8, 123_456_789), SealedSegmentRecord.decode),
    "sealing segment": (SealedSegmentRecord(8), SealedSegmentRecord.decode),
    "truncation": (
        TruncationRecord({2: 100, 8 << 32 | 299: 0}, {2: 50, 1: 0}),
        TruncationRecord.decode,
    ),
    "segment number": (SegmentNumberRecord(301), SegmentNumberRecord.decode),
    "index root": (IndexRoot((("a", 0), ("m", 5)), 6), IndexRoot.decode),
    "closed index root": (IndexRoot((), 6, closed=True), IndexRoot.decode),
    "index page": (IndexPage(("a", "b-c.d", "z")), IndexPage.decode),
}


def golden() -> dict[str, bytes]:
    lines = GOLDEN.read_text().splitlines()
    return {name: bytes.fromhex(content) for name, content in (line.split("=") for line in lines)}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_has_the_bytes_that_it_always_had(name: str) -> None:
    record, decode = SAMPLES[name]
    assert record.encode() == golden()[name]
    assert decode(golden()[name]) == record


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_that_is_cut_off_or_too_long_is_refused(name: str) -> None:
    record, decode = SAMPLES[name]
    content = record.encode()
    for damaged in [content[:length] for length in range(len(content))] + [content + b"\0"]:
        with pytest.raises(CorruptedDataError):
            decode(damaged)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_record_of_another_version_is_refused(name: str) -> None:
    record, decode = SAMPLES[name]
    for version in (0, 2, 255):
        with pytest.raises(CorruptedDataError):
            decode(bytes((version,)) + record.encode()[1:])


@given(
    st.integers(0, (1 << 64) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.dictionaries(st.integers(0, (1 << 63) - 1), st.integers(-1, (1 << 63) - 1)),
)
def test_fields_read_back_as_written(
    unsigned: int, signed: int, fraction: float, text: str, offsets: dict[int, int]
) -> None:
    # Half a surrogate pair is no text.
    text = text.encode(errors="ignore").decode()
    writer = FieldWriter(1)
    writer.unsigned(unsigned)
    writer.signed(signed)
    writer.fraction(fraction)
    writer.text(text)
    writer.offsets(offsets)
    reader = FieldReader(writer.end(), what="sample", version_max=1)
    assert reader.unsigned() == unsigned
    assert reader.signed() == signed
    assert reader.fraction() == fraction
    assert reader.text() == text
    assert reader.offsets() == offsets
    reader.end()


@given(st.binary(max_size=64), st.sampled_from(sorted(SAMPLES)))
def test_any_bytes_are_read_or_refused(content: bytes, name: str) -> None:
    _, decode = SAMPLES[name]
    try:
        record = decode(content)
    except CorruptedDataError:
        return
    assert decode(record.encode()) == record
