from datetime import UTC, datetime

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
