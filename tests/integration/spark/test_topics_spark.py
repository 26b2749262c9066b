"""Topics through real Spark: the rows are the records, wherever they lie."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from segmentstore.client.topics import NewRecord
from tests.integration.spark.test_streaming_spark import ended
from tests.integration.spark.topic_process import WITHOUT_FILES, TopicProcess, topic_process

pytestmark = [pytest.mark.integration, pytest.mark.slow]

START_MS = 1_700_000_000_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicProcess]:
    with topic_process(tmp_path_factory.mktemp("topics"), options=WITHOUT_FILES) as process:
        yield process


def records(random: Random, count: int, *, time: int = START_MS) -> list[NewRecord]:
    return [
        NewRecord(
            value=random.choice([None, b"", random.randbytes(20)]),
            key=random.choice([None, random.randbytes(4)]),
            headers=((("h", b"1"), ("h", None)) if number % 5 == 0 else ()),
            timestamp_ms=time + number,
        )
        for number in range(count)
    ]


def read(spark: SparkSession, store: TopicProcess, **options: str) -> DataFrame:
    words = {"tier2": store.tier2, "kafka": store.kafka} | options
    return spark.read.format("segmentstore").options(**words).load()


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    """In the order of topic, partition and offset, headers as plain values."""
    rows = frame.selectExpr(
        "topic",
        "partition",
        "offset",
        "unix_millis(timestamp)",
        "timestampType",
        "key",
        "value",
        "headers",
    ).collect()
    return sorted(
        (
            *row[:5],
            None if row[5] is None else bytes(row[5]),
            None if row[6] is None else bytes(row[6]),
            tuple((h.key, None if h.value is None else bytes(h.value)) for h in row[7] or ()),
        )
        for row in rows
    )


def served_rows(store: TopicProcess, topic: str) -> list[tuple[object, ...]]:
    return [
        (topic, partition, each.offset, each.timestamp_ms, 0, each.key, each.value, each.headers)
        for partition, some in store.consume(topic).items()
        for each in some
    ]


def test_rows_are_the_records_from_the_service_from_tier2_and_from_both(
    spark: SparkSession, store: TopicProcess
) -> None:
    random = Random(1)
    store.create("read", PARTITIONS)
    for number in range(12):
        store.produce("read", number % PARTITIONS, records(random, 50))
    store.flush()
    flushed = served_rows(store, "read")
    for number in range(4):
        store.produce("read", number % PARTITIONS, records(random, 10))
    whole = served_rows(store, "read")
    words = {"topic": "read", "includeHeaders": "true"}
    assert rows_of(read(spark, store, **words)) == whole
    assert rows_of(read(spark, store, **words, mode="offline")) == flushed
    served = {"kafka.bootstrap.servers": store.kafka, "subscribe": "read", "includeHeaders": "true"}
    frame = spark.read.format("segmentstore").options(**served, minPartitions="7").load()
    assert frame.rdd.getNumPartitions() >= 7
    assert rows_of(frame) == whole
    columns = read(spark, store, topic="read").schema.simpleString()
    assert columns == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )


def test_starts_and_ends_choose_records(spark: SparkSession, store: TopicProcess) -> None:
    random = Random(2)
    store.create("ends", 2)
    for number in range(4):
        time = START_MS + 100_000 * number
        for partition in range(2):
            store.produce("ends", partition, records(random, 10, time=time))
        if number == 1:
            store.flush()

    def found(**options: str) -> dict[int, list[int]]:
        rows = read(spark, store, topic="ends", **options).select("partition", "offset").collect()
        offsets: dict[int, list[int]] = {0: [], 1: []}
        for row in sorted(rows):
            offsets[row.partition].append(row.offset)
        return offsets

    assert found(startingOffsets='{"ends": {"0": 15, "1": -1}}') == {0: list(range(15, 40)), 1: []}
    assert found(startingOffsets='{"0": 38}', endingOffsets='{"ends": {"1": 3}}') == {
        0: [38, 39],
        1: [0, 1, 2],
    }
    third = str(START_MS + 200_000)
    assert found(startingTimestamp=third) == {each: list(range(20, 40)) for each in (0, 1)}
    assert found(endingTimestamp=third) == {each: list(range(20)) for each in (0, 1)}
    second = str(START_MS + 100_005)
    assert found(startingTimestamp=second, mode="offline") == {
        each: list(range(15, 20)) for each in (0, 1)
    }
    assert found(startingOffsets="latest") == {0: [], 1: []}


def test_filters_give_the_same_rows_pushed_or_not(spark: SparkSession, store: TopicProcess) -> None:
    random = Random(3)
    store.create("filters", 4)
    for number in range(8):
        store.produce("filters", number % 4, records(random, 30, time=START_MS + 1000 * number))
        if number == 5:
            store.flush()
    filters = [
        "partition = 2",
        "partition IN (0, 3) AND offset >= 10 AND offset < 45",
        "timestamp >= timestamp_millis(1700000004010)",
        "timestamp < timestamp_millis(1700000001005) AND offset != 3 AND topic = 'filters'",
    ]
    found: dict[str, list[list[tuple[object, ...]]]] = {}
    partitions: dict[str, int] = {}
    for enabled in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            frames = [read(spark, store, topic="filters").where(each) for each in filters]
            partitions[enabled] = frames[0].rdd.getNumPartitions()
            found[enabled] = [
                sorted(map(tuple, each.select("partition", "offset").collect())) for each in frames
            ]
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found["true"] == found["false"]
    assert all(found["true"])
    assert partitions["true"] < partitions["false"]


def test_what_is_not_there_is_said(spark: SparkSession, store: TopicProcess) -> None:
    store.create("said", 1)
    store.produce("said", 0, records(Random(4), 5))

    def refused(match: str, **options: str) -> None:
        with pytest.raises(PySparkException, match=match):
            read(spark, store, **options).collect()

    refused("does not exist", topic="no-such-topic")
    refused("unknown option maxrowspertrigger", topic="said", maxRowsPerTrigger="5")
    refused("data is lost", topic="said", startingOffsets='{"said": {"0": 9}}')
    refused("no such partition", topic="said", startingOffsets='{"said": {"4": 0}}')
    refused("cannot be the earliest", topic="said", endingOffsets="earliest")
    kept = read(spark, store, topic="said", startingOffsets='{"0": 9}', failOnDataLoss="false")
    assert kept.count() == 0


class TopicQuery:
    """A streaming query that reads topics into files."""

    def __init__(self, spark: SparkSession, store: TopicProcess, directory: Path) -> None:
        self.spark = spark
        self.store = store
        self.directory = directory

    def run(self, **options: str) -> list[int]:
        """Rows of each micro-batch of this run."""
        frame = (
            self.spark.readStream.format("segmentstore")
            .options(tier2=self.store.tier2, kafka=self.store.kafka, **options)
            .load()
        )
        places = frame.select("topic", "partition", "offset").writeStream.format("json")
        query = ended(
            places.option("path", str(self.directory / "out")), self.directory / "checkpoint"
        )
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    def found(self) -> list[tuple[object, ...]]:
        rows = self.spark.read.json(str(self.directory / "out"))
        return sorted(map(tuple, rows.select("topic", "partition", "offset").collect()))


def test_a_stream_of_topics_goes_on_from_its_checkpoint_in_bounded_batches(
    spark: SparkSession, store: TopicProcess, tmp_path: Path
) -> None:
    random = Random(5)
    store.create("one", 2)
    store.create("two", 1)
    sizes: Mapping[tuple[str, int], int] = {("one", 0): 40, ("one", 1): 10, ("two", 0): 25}
    for (topic, partition), count in sizes.items():
        store.produce(topic, partition, records(random, count))
    store.flush()
    query = TopicQuery(spark, store, tmp_path)
    words = {"topic": "one, two", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    assert query.run(**words) == [30, 30, 15]
    store.produce("one", 1, records(random, 5))
    assert query.run(**words) == [5]
    assert query.run(**words) == []
    expected = {**sizes, ("one", 1): 15}
    assert query.found() == sorted(
        (topic, partition, offset)
        for (topic, partition), count in expected.items()
        for offset in range(count)
    )


def test_a_topic_is_copied_once_although_an_epoch_is_run_twice(
    spark: SparkSession, store: TopicProcess, tmp_path: Path
) -> None:
    random = Random(6)
    store.create("from", 2)
    store.create("to", 3)
    for partition in range(2):
        store.produce("from", partition, records(random, 60))
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        frame = (
            spark.readStream.format("segmentstore")
            .options(tier2=store.tier2, kafka=store.kafka, topic="from", includeHeaders="true")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "50")
            .load()
        )
        copies = frame.drop("partition").writeStream.format("segmentstore")
        ended(
            copies.options(kafka=store.kafka, controller=store.controller, topic="to"), checkpoint
        )

    run()
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        # As if the driver had died between the sink's commit and Spark's.
        (commits / name).unlink(missing_ok=True)
    store.produce("from", 0, records(random, 10))
    run()

    def contents(topic: str) -> list[tuple[object, ...]]:
        found = [
            (
                each.timestamp_ms,
                each.key or b"-",
                each.key is None,
                each.value or b"-",
                each.headers,
            )
            for some in store.consume(topic).values()
            for each in some
        ]
        return sorted(found, key=repr)

    assert contents("to") == contents("from")
    assert len(contents("to")) == 130


def test_rows_are_written_with_their_headers_and_a_topic_of_their_own(
    spark: SparkSession, store: TopicProcess
) -> None:
    store.create("evens", 2)
    store.create("odds", 1)
    rows = spark.range(0, 100, 1, 3).selectExpr(
        "if(id % 2 = 0, 'evens', 'odds') AS topic",
        "concat('key ', id) AS key",
        "concat('value ', id) AS value",
        "array(named_struct('key', 'id', 'value', cast(string(id) AS binary))) AS headers",
    )
    rows.write.format("segmentstore").mode("append").options(
        kafka=store.kafka, controller=store.controller
    ).save()
    found = {
        topic: sorted(
            (each.value or b"", each.headers)
            for some in store.consume(topic).values()
            for each in some
        )
        for topic in ("evens", "odds")
    }
    for remainder, topic in enumerate(("evens", "odds")):
        numbers = [b"%d" % number for number in range(100) if number % 2 == remainder]
        assert found[topic] == sorted((b"value " + n, (("id", n),)) for n in numbers)
    with pytest.raises(PySparkException, match="only appended to"):
        rows.write.format("segmentstore").mode("overwrite").options(
            kafka=store.kafka, controller=store.controller, topic="evens"
        ).save()
