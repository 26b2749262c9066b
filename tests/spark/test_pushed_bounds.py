from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    LessThanOrEqual,
    Not,
    StringContains,
)

from segmentstore.spark.scan.scan_planner import NO_BOUNDS, PushedBounds, bounds_of


def test_filters_on_places_and_times_become_bounds() -> None:
    filters: list[Filter] = [
        In(("segment_id",), (3, 5, 7, None)),
        In(("segment_id",), (5, 7, 9)),
        GreaterThan(("offset",), 100),
        LessThanOrEqual(("offset",), 900),
        GreaterThan(("timestamp",), datetime(2026, 11, 21, tzinfo=UTC)),
    ]
    assert bounds_of(filters) == PushedBounds(
        segment_ids=frozenset({5, 7}),
        lowest_offset=100,
        highest_offset=900,
        lowest_time_ms=1_795_219_200_000,
    )


@pytest.mark.parametrize("time_ms", [-1_001, -157_766_398_997, -1, 0, 1_001, 253_402_300_799_999])
def test_bounds_of_times_let_through_rows_of_that_very_time_also_before_1970(time_ms: int) -> None:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    for moment in (time, time.astimezone(timezone(timedelta(hours=-5)))):
        bounds = bounds_of([EqualTo(("timestamp",), moment)])
        assert bounds.lowest_time_ms == time_ms
        assert bounds.highest_time_ms == time_ms + 1


def test_other_filters_say_nothing() -> None:
    filters: list[Filter] = [
        EqualTo(("key",), b"k"),
        Not(EqualTo(("offset",), 3)),
        StringContains(("stream",), "a"),
        EqualTo(("headers", "name"), "x"),
        EqualTo(("offset",), None),
        In(("offset",), (None,)),
        EqualNullSafe(("segment_id",), None),
        EqualNullSafe(("timestamp",), None),
    ]
    assert bounds_of(filters) == NO_BOUNDS
