"""Goal: what a streaming query says of itself is true; it ends where it should, and waits when it should."""

import json
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import parse_options
from segmentstore.spark.streaming import progress_publisher
from segmentstore.spark.streaming.stream_reader import SegmentStoreStreamReader
from segmentstore.spark.streams.offsets import lag_bytes
from tests.integration.spark.live_streams import LiveStreams, live_streams, numbered
from tests.integration.spark.streaming_queries import consumed, query

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAM = "plant/readings"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may stand still for the few seconds after which progress is left unpublished."""
    monkeypatch.setattr(progress_publisher, "_ANSWER_SECONDS", 60.0)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStreams]:
    with live_streams(tmp_path_factory.mktemp("progress")) as store:
        yield store


def test_a_small_batch_waits_until_enough_is_there(live: LiveStreams) -> None:
    live.create("plant/small")
    live.write("plant/small", numbered("a", 20))
    found = query(live, "plant/small", minBytesPerTrigger="2k", maxTriggerDelay="1h")
    reader = found.reader()
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    live.write("plant/small", numbered("b", 5))
    assert reader.latestOffset(first, limit) == first
    live.write("plant/small", numbered("c", 20))
    second = reader.latestOffset(first, limit)
    assert found.batch(first, second) == numbered("b", 5) + numbered("c", 20)
    reader.stop()


def test_available_now_ends_with_what_was_there_and_reports_how_far_it_is_behind(
    live: LiveStreams,
) -> None:
    live.create("plant/now", segments=2)
    live.write("plant/now", numbered("a", 60))
    found = query(live, "plant/now", maxRowsPerTrigger="25")
    reader = found.reader()
    reader.prepareForTriggerAvailableNow()
    live.write("plant/now", numbered("b", 60))
    start, events, lags = reader.initialOffset(), list[bytes](), list[int]()
    while True:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        latest = reader.reportLatestOffset()
        assert latest is not None
        lags.append(lag_bytes(end_offset=end, latest_offset=latest))
        if end == start:
            break
        events += found.batch(start, end)
        start = end
    reader.stop()
    assert sorted(events) == numbered("a", 60)
    assert lags[0] == 35 * (8 + len(numbered("a", 1)[0]))
    assert lags[-2:] == [0, 0]


def test_a_trigger_for_everything_is_not_limited(live: LiveStreams) -> None:
    live.create("plant/once")
    live.write("plant/once", numbered("a", 60))
    found = query(live, "plant/once", maxRowsPerTrigger="25")
    reader = found.reader()
    start = reader.initialOffset()
    assert found.batch(start, reader.latestOffset(start, ReadAllAvailable())) == numbered("a", 60)
    reader.stop()


def test_committed_progress_holds_back_retention_by_consumption_and_never_goes_back(
    live: LiveStreams,
) -> None:
    live.create("plant/consumed", segments=2)
    live.write("plant/consumed", numbered("a", 60))
    found = query(live, "plant/consumed", checkpointGroup="nightly", maxRowsPerTrigger="25")
    reader = found.reader()
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    for position in (first, second, first):
        reader.commit(position)
    reader.stop()
    live.flush()
    rows = consumed(live, "plant")
    assert rows == {("plant", "nightly", "plant", "consumed"): json.dumps(second)}


def test_a_stream_that_a_query_joins_is_added_to_its_group(live: LiveStreams) -> None:
    live.create("yard/first")
    live.write("yard/first", numbered("a", 5))
    found = query(live, "", scope="yard", checkpointGroup="nightly").read_on()
    reader = found.reader()
    reader.commit(found.positions[-1])
    live.create("yard/second")
    live.write("yard/second", numbered("b", 5))
    found.read_on()
    reader.commit(found.positions[-1])
    reader.stop()
    live.flush()
    assert consumed(live, "yard") == {
        ("yard", "nightly", "yard", name): json.dumps(found.positions[-1][f"yard/{name}"])
        for name in ("first", "second")
    }


@pytest.mark.parametrize(
    ("group", "why"), [("not_a_name", "INVALID_RG_NAME"), ("foreign", "SUBSCRIBER_NOT_FOUND")]
)
def test_progress_that_cannot_be_published_does_not_stop_a_query(
    live: LiveStreams, caplog: pytest.LogCaptureFixture, group: str, why: str
) -> None:
    name = f"plant/{group.replace('_', '-')}-events"
    live.create(name)
    live.write(name, numbered("a", 5))
    if group == "foreign":
        # Somebody reads with a group of that name, which does not hold back retention.
        live.run(lambda store: store.reader_group("plant/foreign").create([name]))
    reader = query(live, name, checkpointGroup=group).reader()
    for _ in range(2):
        reader.commit(reader.initialOffset())
    reader.stop()
    assert caplog.text.count(f"why={why}") == 2


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "offline", "checkpointGroup": "nightly"},
        {"metadata": "streams"},
        {"content": "bytes", "segment": "plant/readings/0.#epoch.0", "maxRowsPerTrigger": "5"},
    ],
)
def test_options_that_a_stream_cannot_have_are_refused_at_once(
    live: LiveStreams, options: dict[str, str]
) -> None:
    words = {"tier2": live.place, "controller": live.controller}
    if "segment" not in options:
        words["stream"] = STREAM
    with pytest.raises(
        InvalidRequestError, match=r"checkpointGroup|maxRowsPerTrigger|spark\.read,"
    ):
        SegmentStoreStreamReader(parse_options(words | options))
