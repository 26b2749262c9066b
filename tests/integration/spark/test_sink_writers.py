"""The sink's writers over a real server, run as Spark runs them, in one process and without Spark."""

import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.client.settings import ClientSettings
from segmentstore.client.store import Store
from segmentstore.client.stream_config import RetentionPolicy, ScalingPolicy
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.spark.options import RECORD_TAG
from segmentstore.spark.service_connection import ServiceAddress, connect_service
from segmentstore.spark.sink import writer as sink_writer
from segmentstore.spark.streams.segment_graph import StreamMissingError
from tests.integration.pravega_clients.store_process import StoreProcess
from tests.integration.spark.sink_runs import (
    TaskFailedError,
    abort,
    batch_of,
    commit,
    events_in,
    failing,
    make_stream,
    rows_named,
    scale_to,
    stream_config,
    task,
    writer_for,
)
from tier2.format.records import decode_records

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS = 3000
KILLS = 4
TASKS = 60
FRAMES = re.compile(r"^segmentstore_container_frames_total\{[^}]*\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("sink") / "data") as server:
        yield server


def expected(*names: str) -> "Counter[bytes]":
    return Counter(value for name in names for _, value in rows_named(name, ROWS))


def frames(server: StoreProcess) -> float:
    """What was synced to the logs of all containers so far."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as answer:
        return sum(map(float, FRAMES.findall(answer.read().decode())))


def options(server: StoreProcess, stream: str, **more: str) -> dict[str, str]:
    return {"controller": server.uri, "stream": f"s/{stream}", **more}


def test_what_tasks_wrote_appears_with_the_commit_and_not_before(server: StoreProcess) -> None:
    make_stream(server.uri, "s/append", segments=3)
    writer = writer_for(options(server, "append"))
    messages = [task(writer, iter([batch_of(rows_named(name, ROWS))])) for name in ("a", "b")]
    messages.append(task(writer, iter([])))
    assert events_in(server.uri, "s/append") == Counter()
    commit(writer, messages)
    assert events_in(server.uri, "s/append") == expected("a", "b")
    # Spark aborts what it does not know to be committed.
    abort(writer, messages)
    commit(writer, messages)
    assert events_in(server.uri, "s/append") == expected("a", "b")


def test_a_version_of_an_application_is_written_once(server: StoreProcess) -> None:
    make_stream(server.uri, "s/versions", segments=2)
    for version, name in ((1, "first"), (1, "again"), (2, "next"), (1, "late")):
        writer = writer_for(options(server, "versions", txnAppId="job", txnVersion=str(version)))
        commit(writer, [task(writer, iter([batch_of(rows_named(name, ROWS))]))])
    assert events_in(server.uri, "s/versions") == expected("first", "next")


def test_a_task_that_failed_and_ran_again_is_written_once(server: StoreProcess) -> None:
    make_stream(server.uri, "s/failed", segments=2)
    writer = writer_for(options(server, "failed"))
    batches = [batch_of(rows_named("a", ROWS))]
    with pytest.raises(TaskFailedError):
        task(writer, failing(batches))
    slower = task(writer, iter(batches))
    commit(writer, [task(writer, iter(batches)), None])
    assert events_in(server.uri, "s/failed") == expected("a")
    # The attempt that lost is thrown away, and cannot be committed any more.
    abort(writer, [slower, None])
    other = writer_for(options(server, "failed"))
    with pytest.raises(SegmentStoreError):
        commit(other, [slower])
    assert events_in(server.uri, "s/failed") == expected("a")


def test_the_commit_of_many_tasks_waits_for_few_frames(server: StoreProcess) -> None:
    make_stream(server.uri, "s/many", segments=4)
    writer = writer_for(options(server, "many"))
    names = [f"task {number}" for number in range(TASKS)]
    messages = [task(writer, iter([batch_of(rows_named(name, 50))])) for name in names]
    before = frames(server)
    commit(writer, messages)
    # A frame for each task and segment would be four times as many as there are tasks.
    assert frames(server) - before < TASKS
    written = Counter(value for name in names for _, value in rows_named(name, 50))
    assert events_in(server.uri, "s/many") == written


def test_a_stream_that_scales_between_tasks_gets_every_row_once(server: StoreProcess) -> None:
    make_stream(server.uri, "s/scaled", segments=1)
    writer = writer_for(options(server, "scaled"))
    messages = [task(writer, iter([batch_of(rows_named("a", ROWS))]))]
    scale_to(server.uri, "s/scaled", 3)
    messages.append(task(writer, iter([batch_of(rows_named("b", ROWS))])))
    scale_to(server.uri, "s/scaled", 2)
    commit(writer, messages)
    assert events_in(server.uri, "s/scaled") == expected("a", "b")


def test_an_event_larger_than_an_append_is_staged_too(server: StoreProcess) -> None:
    make_stream(server.uri, "s/large", segments=2)
    writer = writer_for(options(server, "large"))
    large = b"large" * 1_900_000
    rows = [(b"k", b"before"), (b"k", large), (b"k", b"behind")]
    commit(writer, [task(writer, iter([batch_of(rows)]))])
    assert events_in(server.uri, "s/large") == Counter([b"before", large, b"behind"])


def test_a_stream_is_created_as_the_options_say(server: StoreProcess) -> None:
    with pytest.raises(StreamMissingError, match="createIfMissing=true"):
        writer_for(options(server, "new"))
    creating = options(
        server,
        "new",
        createIfMissing="true",
        segments="3",
        scaling="kilobytes",
        scalingRate="500",
        retentionBytes="1g",
        content="record",
    )
    for name in ("a", "b"):
        # The second finds it; without content= the stream's tag decides.
        writer = writer_for(creating if name == "a" else options(server, "new"))
        commit(writer, [task(writer, iter([batch_of(rows_named(name, ROWS))]))])
    config = stream_config(server.uri, "s/new")
    assert config.scaling == ScalingPolicy.by_data_rate(500, segments_min=3)
    assert config.retention == RetentionPolicy.by_size(1 << 30)
    assert config.tags == (RECORD_TAG,)
    events = events_in(server.uri, "s/new")
    records = [record for event in events for record in decode_records(event)]
    assert Counter(record.value for record in records) == expected("a", "b")
    assert all(
        (record.key or b"").startswith(b"key ") and record.timestamp_ms > 0 for record in records
    )
    with pytest.raises(InvalidRequestError, match="holds records"):
        writer_for(options(server, "new", content="raw"))


def test_a_commit_that_a_kill_interrupts_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connected(where: ServiceAddress, settings: ClientSettings | None = None) -> Store:
        """Without settings a call is given up after half a minute, which a start on a busy machine may take."""
        return connect_service(where, settings or ClientSettings(request_seconds=300.0))

    monkeypatch.setattr(sink_writer, "connect_service", connected)
    with StoreProcess(tmp_path / "data") as server:
        make_stream(server.uri, "s/killed", segments=4)
        for kill in range(KILLS):
            writer = writer_for(options(server, "killed", txnAppId="job", txnVersion=str(kill)))
            messages = [
                task(writer, iter([batch_of(rows_named(f"{kill} {number}", 200))]))
                for number in range(6)
            ]
            committing = threading.Thread(target=commit, args=(writer, messages))
            committing.start()
            # Anywhere between the call and the last merge; each time a little later.
            time.sleep(0.012 * kill)
            server.kill()
            server.start()
            committing.join()
            # The driver died as well, and its next life writes the batch anew.
            again = writer_for(options(server, "killed", txnAppId="job", txnVersion=str(kill)))
            commit(again, [task(again, iter([batch_of(rows_named("again", 10))]))])
        written = Counter(
            value
            for kill in range(KILLS)
            for number in range(6)
            for _, value in rows_named(f"{kill} {number}", 200)
        )
        assert events_in(server.uri, "s/killed") == written
