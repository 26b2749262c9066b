"""The jobs over a store with topics in it: files of records are proved, and exported each record once."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from segmentstore.client.topics import NewRecord
from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jobs.export import ExportSettings, ExportSummary
from segmentstore.spark.jobs.file_import import ImportJob, ImportSettings, ImportSummary
from segmentstore.spark.jobs.job_execution import Entry, JobCheckpoint, LocalTaskRunner
from segmentstore.spark.jobs.output_directory import open_output
from segmentstore.spark.jobs.record_file_scrub import ScrubFile, scrub_files
from segmentstore.spark.jobs.stats import StatsJob, StatsSettings
from segmentstore.spark.jobs.topic_export import TopicExportJob
from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings, VerifySummary
from segmentstore.spark.tier2_access import Tier2Location
from tests.integration.spark.topic_process import TopicProcess, topic_process
from tests.spark.jobs.failing_tasks import FailingTasks, KilledError
from tier2.format.record_file import open_record_file

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OPTIONS = ["--tier2=filesystem", "--set=kafka.file_seconds=0.2"]
FILES = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicProcess]:
    """Of a topic `logs` of two partitions, each of two files and some batches."""
    with topic_process(tmp_path_factory.mktemp("jobs"), options=OPTIONS) as process:
        process.create("logs", 2)
        random = Random(1)
        for number in range(2):
            for partition in range(2):
                process.produce("logs", partition, records(random, 200))
            while len(files_of(process)) < 2 * (number + 1):
                asyncio.run(asyncio.sleep(0.1))
        process.flush()
        # A file is there a little before the partition names it.
        while sum(row.files for row in verified(process).containers.values()) < FILES:
            asyncio.run(asyncio.sleep(0.1))
            process.flush()
        yield process


class DriverDiedError(Exception):
    """What happens to drivers."""


def records(random: Random, count: int) -> list[NewRecord]:
    return [
        NewRecord(
            value=random.randbytes(100),
            key=random.randbytes(2),
            timestamp_ms=1_700_000_000_000 + random.randrange(3 * 86_400_000),
        )
        for _ in range(count)
    ]


def files_of(store: TopicProcess) -> list[Path]:
    return sorted(store.server.data_directory.rglob("topics/logs/**/*.seg"))


def verified(store: TopicProcess, state: Path | None = None) -> VerifySummary:
    return VerifyJob(
        place=Tier2Location(place=store.tier2),
        tasks=LocalTaskRunner(),
        settings=VerifySettings(task_bytes=1, state_directory=state),
    ).run()


def test_registered_files_are_proved_and_counted(store: TopicProcess) -> None:
    summary = verified(store)
    assert summary.damages == []
    assert sum(row.files for row in summary.containers.values()) == FILES
    stored = sum(row.stored_bytes for row in summary.containers.values())
    assert summary.scrubbed_bytes == stored > sum(each.stat().st_size for each in files_of(store))


def test_topics_are_counted_from_their_registrations(store: TopicProcess) -> None:
    summary = StatsJob(
        place=Tier2Location(place=store.tier2), tasks=LocalTaskRunner(), settings=StatsSettings()
    ).run()
    (topic,) = summary.topics
    assert (topic.name, topic.files, topic.offsets) == ("logs", FILES, 800)
    assert topic.file_bytes == sum(each.stat().st_size for each in files_of(store))
    assert sorted(each.index for each in topic.partitions) == [0, 1]
    times = [each.timestamp_ms for some in store.consume("logs").values() for each in some]
    assert min(each.lowest_ms or 0 for each in topic.partitions) == min(times)
    assert max(each.highest_ms or 0 for each in topic.partitions) == max(times)
    assert topic.skew == 1.0


@pytest.mark.parametrize("place", [3, 200, -300, -3])
def test_a_flipped_bit_in_a_file_is_found(store: TopicProcess, place: int) -> None:
    path = files_of(store)[1]
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[place] ^= 0x10
    path.write_bytes(damaged)
    try:
        summary = verified(store)
    finally:
        path.write_bytes(sound)
    assert not summary.sound
    assert all(path.name in damage for damage in summary.damages)


def test_a_file_that_is_missing_cut_or_of_another_range_is_found(store: TopicProcess) -> None:
    path, other = files_of(store)[:2]
    sound = path.read_bytes()
    try:
        path.unlink()
        assert "a registered file is missing" in verified(store).damages[0]
        path.write_bytes(other.read_bytes())
        assert not verified(store).sound
        path.write_bytes(sound[:-1])
        assert any("another size" in each for each in verified(store).damages)
    finally:
        path.write_bytes(sound)
    assert verified(store).sound


def test_a_sound_file_that_is_registered_otherwise_is_found(store: TopicProcess) -> None:
    path = files_of(store)[0]
    key = str(path)[str(path).index("topics/") :]
    opened = open_record_file(path.read_bytes())
    times = [entry.events for entry in opened.index.entries if entry.events is not None]
    file = RegisteredFile(
        first_offset=opened.header.start_offset,
        end_offset=opened.header.end_offset,
        size=path.stat().st_size,
        record_count=opened.header.record_count,
        lowest_ms=min(each.lowest_time_ms for each in times),
        highest_ms=max(each.highest_time_ms for each in times),
        highest_ms_until_end=max(each.highest_time_ms for each in times),
    )
    place = Tier2Location(place=store.tier2)
    for registered, damages in ((file, 0), (replace(file, record_count=1), 1)):
        (found,) = scrub_files(
            place, [ScrubFile(0, "a partition", 1, key, registered, may_be_gone=False)]
        )
        assert len(found.damages) == damages, found.damages


def test_a_run_that_was_killed_goes_on_with_the_files_that_are_left(
    store: TopicProcess, tmp_path: Path
) -> None:
    whole = verified(store)
    chunks = sum(row.chunks for row in whole.containers.values())
    job = VerifyJob(
        place=Tier2Location(place=store.tier2),
        tasks=FailingTasks(waves=chunks + 2),
        settings=VerifySettings(task_bytes=1, state_directory=tmp_path),
    )
    with pytest.raises(KilledError):
        job.run()
    summary = verified(store, tmp_path)
    assert summary.sound
    assert summary.resumed_chunks > chunks
    assert summary.scrubbed_bytes < whole.scrubbed_bytes


def exported(
    spark: SparkSession, store: TopicProcess, out: Path, *, topic: str = "logs", batch_bytes: int
) -> ExportSummary:
    return TopicExportJob(
        spark=spark,
        source_options={"topic": topic, "tier2": store.tier2, "kafka": store.kafka},
        directory=open_output(spark, str(out)),
        settings=ExportSettings(batch_bytes=batch_bytes),
    ).run()


def test_an_export_has_each_record_once_and_adds_what_is_new(
    spark: SparkSession, store: TopicProcess, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = exported(spark, store, out, batch_bytes=20_000)
    assert len(first.batches) > 1
    assert exported(spark, store, out, batch_bytes=20_000).batches == []
    random = Random(2)
    store.produce("logs", 1, records(random, 30))
    later = exported(spark, store, out, batch_bytes=20_000)
    assert (later.rows, later.earlier_rows) == (30, first.rows)
    rows = spark.read.parquet(str(out)).select("partition", "offset", "value", "date").collect()
    assert Counter((row.partition, row.offset, bytes(row.value)) for row in rows) == Counter(
        (partition, each.offset, each.value)
        for partition, some in store.consume("logs").items()
        for each in some
    )
    assert {str(row.date) for row in rows} == {f"2023-11-{day}" for day in (14, 15, 16, 17)}
    store.create("other", 1)
    with pytest.raises(InvalidRequestError, match="another stream was exported there"):
        exported(spark, store, out, topic="other", batch_bytes=20_000)


def imported(spark: SparkSession, store: TopicProcess, inputs: Path, state: Path) -> ImportSummary:
    return ImportJob(
        spark=spark,
        sink_options={"topic": "loaded", "kafka": store.kafka, "controller": store.controller},
        settings=ImportSettings(
            state_directory=state, inputs=(str(inputs),), format="json", batch_files=1
        ),
    ).run()


def test_an_import_that_was_killed_behind_its_commit_has_each_row_once(
    spark: SparkSession, store: TopicProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("loaded", 2)
    inputs, state = tmp_path / "in", tmp_path / "state"
    inputs.mkdir()
    for name in ("a", "b"):
        rows = [json.dumps({"key": f"{name}{n % 7}", "value": f"{name} {n}"}) for n in range(50)]
        (inputs / f"{name}.json").write_text("\n".join(rows))
    add = JobCheckpoint.add

    def die_before_the_note(ledger: JobCheckpoint, entry: Entry) -> None:
        if "version" in entry:
            raise DriverDiedError
        add(ledger, entry)

    with monkeypatch.context() as patched:
        patched.setattr(JobCheckpoint, "add", die_before_the_note)
        with pytest.raises(DriverDiedError):
            imported(spark, store, inputs, state)
    assert imported(spark, store, inputs, state).rows == 100
    assert imported(spark, store, inputs, state).batches == []
    found = Counter(each.value for some in store.consume("loaded").values() for each in some)
    assert found == Counter(f"{name} {n}".encode() for name in "ab" for n in range(50))


def test_files_and_batches_are_read_from_tier2_alone_when_the_service_is_dead(
    spark: SparkSession, tmp_path: Path
) -> None:
    with topic_process(tmp_path, options=OPTIONS) as own:
        own.create("logs", 1)
        random = Random(3)
        own.produce("logs", 0, records(random, 300))
        while not files_of(own):
            asyncio.run(asyncio.sleep(0.1))
        own.produce("logs", 0, records(random, 50))
        own.flush()
        expected = [(each.offset, each.key, each.value) for each in own.consume("logs")[0]]
        own.server.kill()
        frame = spark.read.format("segmentstore").options(
            tier2=own.tier2, topic="logs", mode="offline", maxBytesPerPartition="8k"
        )
        rows = frame.load().select("offset", "key", "value").collect()
        assert sorted((row[0], bytes(row[1]), bytes(row[2])) for row in rows) == expected
        own.server.start()
