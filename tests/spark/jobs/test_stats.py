"""What the indexes say of streams: sizes, events, times, skew, and a page that shows them."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from segmentstore.spark.jobs.job_execution import LocalTaskRunner
from segmentstore.spark.jobs.stats import StatsJob, StatsSettings, StatsSummary
from segmentstore.spark.jobs.stream_statistics import (
    BUCKETS_MAX,
    ChunkSpanStatistics,
    TimeBuckets,
    stream_of,
)
from segmentstore.spark.tier2_access import Tier2Location
from tests.spark.jobs.failing_tasks import BusyTasks, FailingTasks, KilledError
from tests.spark.jobs.generated_store import START_MS, GeneratedStore
from tests.spark.jobs.other_chunks import swap_all
from tier2.container_objects import ObjectIdentity
from tier2.format.chunk_format import BlockEntry, ChunkIndex, Compression, EventInformation
from tier2.layout_entry import LayoutEntry


def looked_at(
    store: GeneratedStore, settings: StatsSettings, tasks: LocalTaskRunner | None = None
) -> StatsSummary:
    return StatsJob(
        place=Tier2Location(place=store.place), tasks=tasks or LocalTaskRunner(), settings=settings
    ).run()


def test_streams_are_counted_from_their_indexes_alone(store: GeneratedStore) -> None:
    streams = {s.name: s for s in looked_at(store, StatsSettings(stretch_chunks=2)).streams}
    assert sorted(streams) == ["demo/stream0", "demo/stream1"]
    for name, stream in streams.items():
        made = [s for s in store.segments.values() if s.name.startswith(name)]
        assert stream.length == sum(len(segment.content) for segment in made)
        # The last block of each segment is counted only if its owner counted events.
        assert 0 < stream.events <= sum(len(segment.events) for segment in made)
        assert stream.first_ms == START_MS
        assert stream.last_ms is not None
        assert stream.last_ms >= START_MS + 5 * 60_000
        assert sum(size for _, size, _ in stream.times().in_order()) == stream.length
        assert len(stream.skew_over_time()) == 6
        assert 1.0 <= stream.skew < 2.0
        assert all(1.0 <= skew <= 2.0 for _, skew in stream.skew_over_time())


def test_the_number_of_chunks_in_a_stretch_changes_nothing(store: GeneratedStore) -> None:
    found = [
        [
            (stream.name, stream.events, list(stream.times().in_order()))
            for stream in looked_at(store, StatsSettings(stretch_chunks=chunks)).streams
        ]
        for chunks in (1, 3, 100)
    ]
    assert found[0] == found[1] == found[2]


def test_the_report_is_one_file_whose_charts_are_well_formed(
    store: GeneratedStore, tmp_path: Path
) -> None:
    report = tmp_path / "new" / "report.html"
    looked_at(store, StatsSettings(report=report))
    page = report.read_text()
    assert "demo/stream0" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    charts = page.split("<svg ")[1:]
    assert len(charts) >= 5
    for chart in charts:
        ElementTree.fromstring("<svg " + chart.partition("</svg>")[0] + "</svg>")
    assert [path.name for path in report.parent.iterdir()] == ["report.html"]


def test_a_killed_run_does_not_read_again_what_it_has_read(
    store: GeneratedStore, tmp_path: Path
) -> None:
    settings = StatsSettings(stretch_chunks=2, state_directory=tmp_path / "state")
    whole = looked_at(store, StatsSettings(stretch_chunks=2))
    with pytest.raises(KilledError):
        looked_at(store, settings, FailingTasks(2))
    resumed = looked_at(store, settings)
    assert 0 < resumed.chunks_read < whole.chunks_read
    assert resumed.chunks_known == whole.chunks_read - resumed.chunks_read
    assert resumed.streams == whole.streams
    assert looked_at(store, settings).chunks_read == 0


def test_only_segments_of_the_prefix_are_looked_at(store: GeneratedStore) -> None:
    (stream,) = looked_at(store, StatsSettings(prefix="demo/stream1/")).streams
    assert stream.name == "demo/stream1"


def test_transactions_belong_to_their_stream_and_what_is_no_stream_is_together() -> None:
    assert stream_of("a/b/0.#epoch.0#transaction." + "0" * 32) == "a/b"
    assert stream_of("just/bytes") == "(other segments)"
    assert stream_of("_system/_tables/scopes") == "(the store's own)"


def test_buckets_stay_few_and_lose_nothing() -> None:
    buckets, other = TimeBuckets(), TimeBuckets()
    for minute in range(10_000):
        buckets.add(START_MS + minute * 60_000, minute, 1)
    other.add(START_MS, 5, 7)
    other.merge(buckets)
    for one in (buckets, other):
        one.check()
        assert len(one.sums) <= BUCKETS_MAX
    assert sum(size for _, size, _ in other.in_order()) == sum(range(10_000)) + 5
    assert sum(events for _, _, events in other.in_order()) == 10_007
    assert TimeBuckets.of_json(other.as_json()) == other


def test_h8_segments_that_change_meanwhile_are_counted_once(store: GeneratedStore) -> None:
    length = sum(len(segment.content) for segment in store.segments.values())

    def change() -> None:
        store.append("demo/stream0/1.#epoch.0", 1, [b"one more"], at_ms=START_MS)
        swap_all(store, "demo/stream0/0.#epoch.0")

    found = looked_at(store, StatsSettings(stretch_chunks=2), BusyTasks(change, times=1))
    assert sum(stream.length for stream in found.streams) == length


def test_blocks_of_unknown_times_are_counted_and_dated_by_nobody() -> None:
    facts = ChunkSpanStatistics()
    entry = LayoutEntry(0, 300, ObjectIdentity(1, 1, 1), 0, 400, 0, 0)
    known = EventInformation(0, 0, START_MS, START_MS + 10)
    unknown = EventInformation(0, 1, 0, 0)
    later = EventInformation(0, 2, START_MS + 20, START_MS + 30)
    blocks = [
        BlockEntry(100 * number, 64 + 100 * number, 96, 100, Compression.NONE, events)
        for number, events in enumerate((known, unknown, later))
    ]
    facts.add_index(entry, ChunkIndex(blocks, 300))
    assert (facts.lowest_time_ms, facts.highest_time_ms) == (START_MS, START_MS + 30)
    assert sum(events for _, _, events in facts.times.in_order()) == 2
    assert min(start for start, _, _ in facts.times.in_order()) > 0
