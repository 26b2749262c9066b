"""Goal: the metadata tables say what is true of a real store, from its Tier 2 after it died and from the service."""

import asyncio

import pytest

from segmentstore.client.store import Store
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.metadata_tables.metadata_reader import MetadataReader
from segmentstore.spark.options import SourceOptions, parse_options
from segmentstore.spark.streaming import progress_publisher
from segmentstore.spark.streaming.progress_publisher import ProgressPublisher
from segmentstore.spark.streams.segment_graph import StreamMissingError
from tests.integration.spark.live_streams import LiveStreams, live_streams

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EVENTS = [f"{number:06d}".encode() * 40 for number in range(2_000)]
COMMITTED_EVENTS = 25


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> LiveStreams:
    """A store with two scopes, a scaled stream, transactions in three states and a group; it was flushed and died."""
    with live_streams(tmp_path_factory.mktemp("metadata")) as live:
        live.create("plant/readings", segments=2, tags=("hot",))
        live.write("plant/readings", EVENTS)
        live.flush()
        live.scale("plant/readings", 1)
        live.create("office/mail")
        live.seal("office/mail")

        async def work(store: Store) -> None:
            stream = store.stream("plant/readings")
            async with stream.transaction() as transaction:
                for number in range(COMMITTED_EVENTS):
                    await transaction.write(b"committed", key=str(number))
            aborted = await stream.begin_transaction(lease_seconds=600)
            await stream.abort_transaction(aborted)
            # That it will be aborted is what the call says; it is when it is listed.
            while aborted not in await stream.completed_transactions():
                await asyncio.sleep(0.05)
            await stream.begin_transaction(lease_seconds=600)
            publisher = ProgressPublisher.at(
                SourceOptions(controller=live.controller), scope="plant", group="readers"
            )
            assert await publisher.publish({"plant/readings": {0: 336, 1: 0}})
            await publisher.close()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(progress_publisher, "_ANSWER_SECONDS", 60.0)
            live.run(work)
        live.flush()
    return live


def rows(live: LiveStreams, table: str, **options: str) -> list[dict[str, object]]:
    words = {"tier2": live.place, "mode": "offline", "metadata": table} | options
    reader = MetadataReader(parse_options(words))
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def test_h78_streams_are_listed_from_tier_2_alone(dead: LiveStreams) -> None:
    found = {(row["scope"], row["stream"]): row for row in rows(dead, "streams")}
    assert set(found) == {("plant", "readings"), ("office", "mail")}
    readings = found["plant", "readings"]
    assert readings["state"] == "ACTIVE"
    assert readings["tags"] == ["hot"]
    assert readings["segment_count_total"] == 3
    assert readings["bytes"] == sum(8 + len(each) for each in EVENTS) + 17 * COMMITTED_EVENTS
    assert readings["head"] == '{"0": 0, "1": 0}'
    assert found["office", "mail"]["state"] == "SEALED"


def test_segments_are_those_of_streams_and_behind_them_all_others(dead: LiveStreams) -> None:
    found = rows(dead, "segments", stream="plant/readings")
    assert [row["segment_id"] for row in found] == [0, 1, 1 << 32 | 2]
    assert [row["is_sealed"] for row in found] == [True, True, False]
    assert found[2]["predecessors"] == [0, 1]
    everything = {row["segment"]: row for row in rows(dead, "segments")}
    assert {row["segment"] for row in found} <= set(everything)
    assert everything["_system/_tables/scopes"]["stream"] is None
    one = rows(dead, "segments", segment="plant/readings/0.#epoch.0")
    assert [row["segment"] for row in one] == ["plant/readings/0.#epoch.0"]


def test_chunks_cover_every_published_byte_once_and_say_which_events_they_hold(
    dead: LiveStreams,
) -> None:
    segments = {row["segment"]: row for row in rows(dead, "segments", scope="plant")}
    chunks = rows(dead, "chunks", scope="plant", stream="readings")
    ends = dict.fromkeys((row["segment"] for row in chunks), 0)
    for row in chunks:
        assert row["start_offset"] == ends[row["segment"]]
        assert row["end_offset"] > row["start_offset"]  # type: ignore[operator]  # numbers, as the schema says
        assert row["first_event_number"] is not None
        assert row["lowest_time"] is not None
        ends[row["segment"]] = row["end_offset"]  # type: ignore[assignment]  # as above
    published = {name: row["published_end"] for name, row in segments.items() if name in ends}
    assert ends == published
    one = rows(dead, "chunks", segment="plant/readings/1.#epoch.0")
    assert one == [row for row in chunks if row["segment"] == "plant/readings/1.#epoch.0"]
    assert len(rows(dead, "chunks")) > len(chunks)


def test_transactions_are_shown_with_their_ends(dead: LiveStreams) -> None:
    found = rows(dead, "transactions")
    assert sorted(str(row["state"]) for row in found) == ["ABORTED", "COMMITTED", "OPEN"]
    assert {row["stream"] for row in found} == {"readings"}
    assert all((row["completed"] is None) == (row["state"] == "OPEN") for row in found)
    assert rows(dead, "transactions", scope="office") == []


def test_reader_groups_are_shown_with_their_streams(dead: LiveStreams) -> None:
    (row,) = rows(dead, "readerGroups")
    assert (row["scope"], row["reader_group"], row["stream"]) == ("plant", "readers", "readings")
    assert (row["stream_scope"], row["state"], row["retention"]) == ("plant", "ACTIVE", "MANUAL")
    assert row["starting_offsets"] == row["consumed_offsets"] == '{"0": 336, "1": 0}'
    assert rows(dead, "readerGroups", scope="office") == []


def test_what_is_only_in_the_service_is_shown_if_it_is_asked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with live_streams(tmp_path_factory.mktemp("served")) as live:
        live.create("plant/readings", segments=2)
        live.write("plant/readings", EVENTS[:20])
        words = {"mode": "auto", "controller": live.controller, "tier2": ""}
        (stream,) = rows(live, "streams", **words)
        assert stream["bytes"] == sum(8 + len(each) for each in EVENTS[:20])
        segments = rows(live, "segments", **words)
        assert [row["published_end"] for row in segments] == [0, 0]


@pytest.mark.parametrize("table", ["chunks", "transactions", "readerGroups"])
def test_what_lies_in_tier_2_alone_needs_to_know_where_that_is(table: str) -> None:
    options = parse_options({"controller": "tcp://127.0.0.1:1", "metadata": table})
    with pytest.raises(InvalidRequestError, match="say with tier2"):
        MetadataReader(options)


def test_a_stream_that_there_is_not_is_an_error(dead: LiveStreams) -> None:
    with pytest.raises(StreamMissingError, match="plant/nothing"):
        rows(dead, "segments", stream="plant/nothing")
