"""The writers of topics over a real server, run as Spark runs them, in one process and without Spark."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from segmentstore.client import connect
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.topics import record_encoder, record_relay, topic_writer
from segmentstore.spark.topics.record_relay import RecordRelay, StagedBatch
from segmentstore.spark.topics.topic_service import TopicService
from segmentstore.spark.topics.topic_sink_options import parse_topic_sink_options
from segmentstore.spark.topics.topic_writer import (
    TopicStreamWriter,
    make_topic_batch_writer,
    make_topic_stream_writer,
    settled_version_of,
    staging_stream,
)
from tests.integration.spark.sink_runs import (
    KEYED,
    TaskFailedError,
    abort,
    batch_of,
    commit,
    failing,
    rows_named,
    task,
)
from tests.integration.spark.topic_process import TopicProcess, topic_process

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS = 400
QUERY = "a-query"


class DriverDiedError(Exception):
    """What happens to drivers."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicProcess]:
    with topic_process(tmp_path_factory.mktemp("topic-sink")) as process:
        yield process


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more of them than a partition remembers of a producer."""
    monkeypatch.setattr(record_encoder, "BATCH_BYTES", 400)


def options(store: TopicProcess, topic: str, **more: str) -> dict[str, str]:
    return {"controller": store.controller, "kafka": store.kafka, "topic": topic, **more}


def batch_writer(store: TopicProcess, topic: str, **more: str) -> DataSourceArrowWriter:
    return make_topic_batch_writer(options(store, topic, **more), KEYED, False)


class Query:
    """A streaming query, as Spark calls its writer."""

    def __init__(
        self, store: TopicProcess, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.options = options(store, topic)
        self.application_id = f"query:{name}"
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(topic_writer, "query_id_of_task", lambda: name)

    def stage(
        self, rows: Sequence[tuple[bytes | None, bytes]], batch_id: int
    ) -> WriterCommitMessage:
        self._monkeypatch.setattr(topic_writer, "batch_id_of_task", lambda: batch_id)
        copy: TopicStreamWriter = pickle.loads(pickle.dumps(self._writer()))
        return copy.write(iter([batch_of(rows)]))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        self._writer().commit(list(messages), batch_id)

    def run(self, batch_id: int, *names: str) -> None:
        self.commit([self.stage(rows_named(name, ROWS), batch_id) for name in names], batch_id)

    def _writer(self) -> DataSourceStreamArrowWriter:
        return make_topic_stream_writer(self.options, KEYED, False)

    def held_bytes(self) -> int:
        """What the staging stream holds."""

        async def work() -> int:
            async with connect(self.options["controller"]) as client:
                parsed = parse_topic_sink_options(self.options)
                stream = client.stream(staging_stream(parsed, self.application_id))
                infos = [await stream.segment_info(s.segment_id) for s in await stream.segments()]
                return sum(each.length - each.start_offset for each in infos)

        return asyncio.run(work())

    async def relaying(self) -> int:
        async with connect(self.options["controller"]) as client:
            parsed = parse_topic_sink_options(self.options)
            relay = RecordRelay(
                client.stream(staging_stream(parsed, self.application_id)),
                kafka=self.options["kafka"],
                application_id=self.application_id,
            )
            return await relay.relay()


def values_in(store: TopicProcess, topic: str) -> "Counter[bytes | None]":
    return Counter(each.value for some in store.consume(topic).values() for each in some)


def expected(*names: str) -> "Counter[bytes | None]":
    return Counter(value for name in names for _, value in rows_named(name, ROWS))


def dying_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies when so many batches of each segment are stored."""
    store_once = record_relay._store_once
    stored: Counter[int] = Counter()

    async def dying(service: TopicService, staged: StagedBatch, batch: bytes) -> None:
        if stored[id(service)] == count:
            raise DriverDiedError
        stored[id(service)] += 1
        await store_once(service, staged, batch)

    monkeypatch.setattr(record_relay, "_store_once", dying)


def test_what_tasks_wrote_is_there_behind_the_commit_in_the_order_of_each_task(
    store: TopicProcess,
) -> None:
    store.create("append", 3)
    writer = batch_writer(store, "append")
    messages = [task(writer, iter([batch_of(rows_named(name, ROWS))])) for name in ("a", "b")]
    messages.append(task(writer, iter([])))
    assert values_in(store, "append") == Counter()
    commit(writer, messages)
    assert values_in(store, "append") == expected("a", "b")
    for records in store.consume("append").values():
        for name in (b"a ", b"b "):
            numbers = [
                int((r.value or b"").split()[1])
                for r in records
                if (r.value or b"").startswith(name)
            ]
            assert numbers == sorted(numbers)
            assert numbers


def test_a_task_that_failed_and_ran_again_is_written_once(store: TopicProcess) -> None:
    store.create("failed", 2)
    writer = batch_writer(store, "failed")
    batches = [batch_of(rows_named("a", ROWS))]
    with pytest.raises(TaskFailedError):
        task(writer, failing(batches))
    slower = task(writer, iter(batches))
    commit(writer, [task(writer, iter(batches)), None])
    abort(writer, [slower, None])
    assert values_in(store, "failed") == expected("a")


def test_a_version_of_an_application_is_written_once(store: TopicProcess) -> None:
    store.create("versions", 2)
    for version, name in ((1, "first"), (1, "again"), (2, "next"), (1, "late")):
        writer = batch_writer(store, "versions", txnAppId="job", txnVersion=str(version))
        commit(writer, [task(writer, iter([batch_of(rows_named(name, ROWS))]))])
    assert values_in(store, "versions") == expected("first", "next")


def test_a_version_of_an_application_is_of_one_topic_and_of_one_that_is_made_again_anew(
    store: TopicProcess,
) -> None:
    def write(topic: str) -> None:
        writer = batch_writer(store, topic, txnAppId="fan-out", txnVersion="7")
        commit(writer, [task(writer, iter([batch_of(rows_named(topic, ROWS))]))])

    # A batch of `foreachBatch` that goes to two topics, and is run again.
    for name in ("fan-a", "fan-b"):
        store.create(name, 2)
    for name in ("fan-a", "fan-b", "fan-a", "fan-b"):
        write(name)
    assert values_in(store, "fan-a") == expected("fan-a")
    assert values_in(store, "fan-b") == expected("fan-b")
    store.do(lambda topics: topics.delete("fan-a"))
    assert settled_version_of(options(store, "fan-a"), "fan-out") is None
    store.create("fan-a", 2)
    assert settled_version_of(options(store, "fan-a"), "fan-out") is None
    write("fan-a")
    assert values_in(store, "fan-a") == expected("fan-a")
    assert settled_version_of(options(store, "fan-b"), "fan-out") == 7


@pytest.mark.parametrize("count", [0, 1, 3, 8, 20])
def test_an_epoch_whose_driver_died_in_the_relay_is_run_twice_and_is_there_once(
    store: TopicProcess, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store.create(f"died-{count}", 2)
    query = Query(store, f"died-{count}", f"died {count}", monkeypatch)
    query.run(0, "before")
    with monkeypatch.context() as patched:
        dying_after(count, patched)
        with pytest.raises(DriverDiedError):
            query.run(1, "a", "b")
    found = values_in(store, f"died-{count}")
    assert expected("before") <= found < expected("before", "a", "b")
    # The replay has other rows, in other tasks: what the first run decided counts.
    query.run(1, "x", "y", "z")
    assert values_in(store, f"died-{count}") == expected("before", "a", "b")
    query.run(2, "after")
    assert values_in(store, f"died-{count}") == expected("before", "a", "b", "after")
    assert query.held_bytes() == 0


def test_an_epoch_is_there_once_although_the_server_was_killed_in_the_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with topic_process(tmp_path) as own:
        own.create("killed", 2)
        query = Query(own, "killed", "killed", monkeypatch)
        query.run(0, "before")
        with monkeypatch.context() as patched:
            dying_after(9, patched)
            with pytest.raises(DriverDiedError):
                query.run(1, "a")
        own.server.kill()
        own.server.start()
        again = Query(own, "killed", "killed", monkeypatch)
        again.run(1, "x")
        assert values_in(own, "killed") == expected("before", "a")


def test_a_driver_that_died_behind_the_relay_adds_nothing_when_the_epoch_is_run_again(
    store: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("behind", 2)
    query = Query(store, "behind", "behind", monkeypatch)

    async def die(*_: object) -> None:
        raise DriverDiedError

    with monkeypatch.context() as patched:
        patched.setattr("segmentstore.client.stream.Stream.truncate", die)
        with pytest.raises(DriverDiedError):
            query.run(0, "a")
    assert values_in(store, "behind") == expected("a")
    assert query.held_bytes() > 0
    query.run(0, "x")
    assert values_in(store, "behind") == expected("a")
    assert query.held_bytes() == 0


def test_what_a_job_asks_for_its_last_version_is_sent_on_first(
    store: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("settled", 2)
    words = {"txnAppId": "settled", "txnVersion": "4"}
    assert settled_version_of(options(store, "settled"), "settled") is None
    writer = batch_writer(store, "settled", **words)
    message = task(writer, iter([batch_of(rows_named("a", ROWS))]))
    with monkeypatch.context() as patched:
        dying_after(3, patched)
        with pytest.raises(DriverDiedError):
            commit(writer, [message])
    assert settled_version_of(options(store, "settled"), "settled") == 4
    assert values_in(store, "settled") == expected("a")


def test_two_drivers_that_relay_at_once_store_each_record_once(
    store: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("both", 2)
    query = Query(store, "both", "both", monkeypatch)
    with monkeypatch.context() as patched:
        dying_after(2, patched)
        with pytest.raises(DriverDiedError):
            query.run(0, "a", "b")

    async def both() -> Sequence[int]:
        return await asyncio.gather(query.relaying(), query.relaying())

    asyncio.run(both())
    query.run(0, "x")
    assert values_in(store, "both") == expected("a", "b")
    assert query.held_bytes() == 0


def test_versions_that_are_committed_at_once_are_there_once_each(
    store: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("overtaken", 1)
    query = Query(store, "overtaken", "overtaken", monkeypatch)
    for batch_id, name, count in ((0, "a", 9), (1, "b", 45)):
        message = query.stage(rows_named(name, ROWS), batch_id)
        with monkeypatch.context() as patched:
            # The second one finds the first one in the stream, and dies in the middle of its own batches.
            dying_after(count, patched)
            with pytest.raises(DriverDiedError):
                query.commit([message], batch_id)
    found = values_in(store, "overtaken")
    assert expected("a") < found < expected("a", "b")
    # A driver of the first version goes on where it had died: the partition has a later epoch by now.
    asyncio.run(query.relaying())
    assert values_in(store, "overtaken") == expected("a", "b")
    assert query.held_bytes() == 0


def test_without_its_sequences_a_relay_that_is_repeated_would_write_twice(
    store: TopicProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the tests above can fail."""
    store.create("planted", 1)
    query = Query(store, "planted", "planted", monkeypatch)
    with monkeypatch.context() as patched:
        dying_after(9, patched)
        patched.setattr(record_relay, "stamp_producer", lambda batch, **_: None)
        with pytest.raises(DriverDiedError):
            query.run(0, "a")
    query.run(0, "x")
    assert values_in(store, "planted") != expected("a")


def test_columns_say_where_rows_go_and_what_they_are(store: TopicProcess) -> None:
    store.create("left", 4, compression_type="zstd")
    store.create("right", 2)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.record_batch(
        {
            "topic": pa.array(["left", "right", "left", "left"]),
            "partition": pa.array([3, None, None, 0], pa.int32()),
            "key": pa.array(["k", "k", "anna", None]),
            "value": pa.array([b"1", None, b"3", b"4"], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": None}], None, [], None], headers),
            "offset": pa.array([9, 9, 9, 9]),
        }
    )
    schema = StructType([StructField("value", BinaryType()), StructField("topic", BinaryType())])
    words = options(store, "")
    del words["topic"]
    with pytest.raises(InvalidRequestError, match="column topic is string"):
        make_topic_batch_writer(words, schema, False)
    with pytest.raises(InvalidRequestError, match="give the option topic"):
        make_topic_batch_writer(words, KEYED, False)
    named = (
        StructType()
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("key", StringType())
        .add("value", BinaryType())
    )
    writer = make_topic_batch_writer(words, named, False)
    commit(writer, [task(writer, iter([rows]))])
    left, right = store.consume("left"), store.consume("right")
    assert [(r.key, r.value, r.headers) for r in left[3]][:1] == [(b"k", b"1", (("h", None),))]
    assert [r.value for r in left[0] if r.key is None] == [b"4"]
    assert sum(len(some) for some in left.values()) == 3
    assert [(r.key, r.value) for some in right.values() for r in some] == [(b"k", None)]


def test_what_cannot_be_written_fails_its_task_and_leaves_nothing(store: TopicProcess) -> None:
    store.create("refused", 1, max_message_bytes="1000")
    writer = batch_writer(store, "refused")
    with pytest.raises(InvalidRequestError, match="too large for its topic"):
        task(writer, iter([batch_of([(b"k", Random(1).randbytes(5000))])]))
    missing = batch_writer(store, "no-such-topic")
    with pytest.raises(Exception, match="topic does not exist"):
        task(missing, iter([batch_of(rows_named("a", 1))]))
    with pytest.raises(InvalidRequestError, match="controller=tcp://HOST:PORT is missing"):
        make_topic_batch_writer({"topic": "refused", "kafka": store.kafka}, KEYED, False)
    assert values_in(store, "refused") == Counter()
