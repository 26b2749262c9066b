"""Goal: the streaming reader gives every event once over a real store, whoever may be asked and whatever happens to it.

Method: the reader is called as Spark calls it, without Spark. Every call is made to another reader object, as if the
query was started again between any two of them: what it needs to know must be in the positions.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from segmentstore.client.store import Store
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.streams.segment_graph import StreamMissingError
from tests.integration.spark.live_streams import LiveStreams, live_streams, numbered
from tests.integration.spark.streaming_queries import newest_time_ms, query
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url

__all__ = ["bucket", "credentials", "moto_url"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAM = "plant/readings"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStreams]:
    with live_streams(tmp_path_factory.mktemp("streaming")) as store:
        yield store


def test_h75_flushed_and_unflushed_events_of_a_scaled_stream_come_once_and_parents_first(
    live: LiveStreams,
) -> None:
    live.create("plant/scaled", segments=2)
    live.write("plant/scaled", numbered("a", 300))
    live.flush()
    live.write("plant/scaled", numbered("b", 100))
    live.scale("plant/scaled", 3)
    live.write("plant/scaled", numbered("c", 200))
    live.scale("plant/scaled", 1)
    live.write("plant/scaled", numbered("d", 100))
    expected = numbered("a", 300) + numbered("b", 100) + numbered("c", 200) + numbered("d", 100)
    found = query(live, "plant/scaled", maxRowsPerTrigger="130").read_on()
    assert sorted(found.events()) == sorted(expected)
    assert all(0 < len(batch) <= 130 for batch in found.batches)
    epoch_of = {b"a": 0, b"b": 0, b"c": 1, b"d": 2}
    epochs = [sorted({epoch_of[event[:1]] for event in batch}) for batch in found.batches]
    assert all(len(each) == 1 for each in epochs), "a batch with parents and children"
    assert epochs == sorted(epochs)
    live.flush()
    offline = query(live, "plant/scaled", mode="offline", maxBytesPerTrigger="20k").read_on()
    assert sorted(offline.events()) == sorted(expected)
    for start, end, batch in zip(found.positions, found.positions[1:], found.batches, strict=False):
        assert found.batch(start, end) == batch, "a batch that is asked for again is another one"


def test_only_the_service_is_asked_where_no_tier_2_is_named(live: LiveStreams) -> None:
    live.create("plant/served", segments=2)
    live.write("plant/served", numbered("a", 100))
    found = query(live, "plant/served", tier2="", maxBytesPerTrigger="5k")
    del found.options["tier2"]
    assert sorted(found.read_on().events()) == numbered("a", 100)
    assert len(found.batches) > 1


def test_offline_a_query_ends_with_what_was_flushed_and_goes_on_when_more_is(
    live: LiveStreams,
) -> None:
    live.create("plant/offline")
    live.write("plant/offline", numbered("a", 50))
    live.flush()
    found = query(live, "plant/offline", mode="offline").read_on()
    live.write("plant/offline", numbered("b", 50))
    live.flush()
    assert found.read_on().events() == numbered("a", 50) + numbered("b", 50)


def test_a_query_begins_at_the_tail_unless_told_otherwise(live: LiveStreams) -> None:
    live.create("plant/tail", segments=2)
    live.write("plant/tail", numbered("a", 50))
    found = query(live, "plant/tail", startingOffsets="").read_on()
    assert found.batches == []
    live.write("plant/tail", numbered("b", 50))
    assert sorted(found.read_on().events()) == numbered("b", 50)


def test_a_query_begins_and_ends_at_positions_that_an_earlier_one_had(live: LiveStreams) -> None:
    live.create("plant/between", segments=2)
    live.write("plant/between", numbered("a", 90))
    live.scale("plant/between", 1)
    live.write("plant/between", numbered("b", 90))
    whole = query(live, "plant/between", maxRowsPerTrigger="30").read_on()
    words = [json.dumps(position) for position in whole.positions]
    for first, last in ((1, 3), (0, len(words) - 1), (2, 4), (4, 4)):
        part = query(
            live, "plant/between", startingOffsets=words[first], endingOffsets=words[last]
        ).read_on()
        wanted = [event for batch in whole.batches[first:last] for event in batch]
        assert sorted(part.events()) == sorted(wanted)


def test_a_whole_scope_is_read_and_a_stream_that_appears_is_joined(live: LiveStreams) -> None:
    live.create("mill/first", segments=2)
    live.create("mill/second")
    live.write("mill/first", numbered("a", 40))
    live.write("mill/second", numbered("b", 40))
    found = query(live, "", scope="mill", maxRowsPerTrigger="30").read_on()
    assert sorted(found.events()) == numbered("a", 40) + numbered("b", 40)
    live.create("mill/third")
    live.write("mill/third", numbered("c", 40))
    assert sorted(found.read_on().events())[80:] == numbered("c", 40)


def test_a_segment_of_bytes_is_read_in_pieces(live: LiveStreams) -> None:
    live.create("plant/bytes")
    content = bytes(range(256)) * 400

    async def append(store: Store) -> None:
        await store.segment("plant/bytes/0.#epoch.0").append(content)

    live.run(append)
    live.flush()
    found = query(live, "", content="bytes", maxBytesPerTrigger="30000")
    found.options["segment"] = "plant/bytes/0.#epoch.0"
    del found.options["stream"]
    found.read_on()
    assert b"".join(found.events()) == content
    assert len(found.batches) == 4


@pytest.mark.parametrize("mode", ["auto", "offline"])
def test_truncated_events_fail_a_query_or_are_passed_over(live: LiveStreams, mode: str) -> None:
    name = f"plant/truncated-{mode}"
    live.create(name)
    live.write(name, numbered("a", 100))
    found = query(live, name, mode=mode, maxRowsPerTrigger="10")
    reader = found.reader()
    live.flush()
    start = reader.initialOffset()
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    event_bytes = 8 + len(numbered("a", 1)[0])
    head = 35 * event_bytes

    live.truncate(name, {0: head})
    live.flush()
    with pytest.raises(DataLossError, match=rf"asked=\[{20 * event_bytes}, {head}\) head={head}"):
        reader.latestOffset(second, reader.getDefaultReadLimit())
    with pytest.raises(DataLossError, match=f"head={head}"):
        reader.partitions(first, second)
    reader.stop()
    lenient = query(live, name, mode=mode, failOnDataLoss="false")
    lenient.positions.append(second)
    assert lenient.read_on().events() == numbered("a", 100)[35:]
    assert lenient.batch(first, second) == []


def test_transactions_and_an_event_of_nine_megabytes_are_in_one_batch_as_a_whole(
    live: LiveStreams,
) -> None:
    live.create("plant/large", segments=2)
    large = b"L" * (9 << 20)

    async def work(store: Store) -> None:
        stream = store.stream("plant/large")
        await stream.abort_transaction(await stream.begin_transaction(lease_seconds=100))
        async with stream.transaction() as transaction:
            for event in numbered("t", 50):
                await transaction.write(event, key=event[:16].decode())
        async with stream.writer() as writer:
            await writer.write(large, key="one")

    live.write("plant/large", numbered("a", 50))
    live.flush()
    live.run(work)
    live.write("plant/large", numbered("b", 50))
    expected = sorted([large, *numbered("t", 50), *numbered("a", 50), *numbered("b", 50)])
    for mode in ("auto", "offline"):
        found = query(live, "plant/large", mode=mode, maxBytesPerTrigger="1m").read_on()
        assert sorted(found.events()) == expected
        assert len(found.batches) >= 2
        live.flush()


def test_segments_without_events_are_crossed_offline_as_well(live: LiveStreams) -> None:
    live.create("plant/empty", segments=2)
    live.scale("plant/empty", 3)
    live.scale("plant/empty", 1)
    live.write("plant/empty", numbered("a", 10))
    live.flush()
    assert query(live, "plant/empty", mode="offline").read_on().events() == numbered("a", 10)


def test_a_query_begins_and_ends_at_times(live: LiveStreams) -> None:
    live.create("plant/times")
    bounds: list[int] = []
    for prefix in "abc":
        live.write("plant/times", numbered(prefix, 20))
        live.flush()
        bounds.append(newest_time_ms(live, "plant/times") + 1)
    middle = query(
        live,
        "plant/times",
        startingOffsets="",
        startingTimestamp=str(bounds[0]),
        endingTimestamp=str(bounds[1]),
    ).read_on()
    assert middle.events() == numbered("b", 20)
    open_end = query(live, "plant/times", endingTimestamp="2999-01-01T00:00:00Z").read_on()
    live.write("plant/times", numbered("d", 20))
    expected = [event for prefix in "abcd" for event in numbered(prefix, 20)]
    assert open_end.read_on().events() == expected


@pytest.mark.parametrize("kind", ["volumes", "s3"])
def test_tier_2_of_every_kind_is_followed_while_its_owner_writes_it(
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, str] = {}
    if kind == "s3":
        options["endpoint"] = request.getfixturevalue("moto_url")
        kind = f"s3://{request.getfixturevalue('bucket')}/store"
        monkeypatch.setenv("SEGMENTSTORE_S3_ENDPOINT_URL", options["endpoint"])
    with live_streams(tmp_path, tier2=kind) as live:
        live.create(STREAM, segments=2)
        live.write(STREAM, numbered("a", 40))
        live.flush()
        found = query(live, STREAM, mode="offline", maxRowsPerTrigger="15", **options)
        # A reader of volumes may be a second behind: it looks again, as a query does with every trigger.
        while len(found.events()) < 40:
            with suppress(StreamMissingError):
                found.read_on()
        live.write(STREAM, numbered("b", 40))
        live.flush()
        while len(found.events()) < 80:
            found.read_on()
    assert sorted(found.events()) == numbered("a", 40) + numbered("b", 40)


def test_the_service_may_die_between_two_batches_if_what_was_read_is_in_tier_2(
    tmp_path: Path,
) -> None:
    with live_streams(tmp_path) as live:
        live.create(STREAM, segments=2)
        live.write(STREAM, numbered("a", 60))
        live.flush()
        found = query(live, STREAM, maxRowsPerTrigger="25")
        reader = found.reader()
        found.positions.append(reader.initialOffset())
        end = reader.latestOffset(found.positions[0], reader.getDefaultReadLimit())
        found.batches.append(found.batch(found.positions[0], end))
        found.positions.append(end)
        reader.stop()
    found.options["mode"] = "offline"
    assert sorted(found.read_on().events()) == numbered("a", 60)
