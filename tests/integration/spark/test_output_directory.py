"""Results go to local files and to file systems of Hadoop alike."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from segmentstore.spark.jobs.export import ExportCommitLog, ExportedRange
from segmentstore.spark.jobs.output_directory import (
    HadoopDirectory,
    LocalDirectory,
    OutputDirectory,
    open_output,
)
from segmentstore.spark.jobs.run_lock import JobInUseError

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(params=["local", "hadoop"])
def directory(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> OutputDirectory:
    if request.param == "local":
        return LocalDirectory(tmp_path / "out")
    return HadoopDirectory(spark, (tmp_path / "out").as_uri())


def test_texts_are_made_once_and_files_are_moved_once(directory: OutputDirectory) -> None:
    assert directory.open() == isinstance(directory, LocalDirectory)
    assert directory.read_text("_batches/0.json") is None
    assert directory.files("_staging") == []
    directory.create_text("_batches/0.json", "één")
    with pytest.raises(FileExistsError):
        directory.create_text("_batches/0.json", "twee")
    assert directory.read_text("_batches/0.json") == "één"
    directory.create_text("_staging/0/date=a/part", "rows")
    assert [f for f in directory.files("_staging") if not f.endswith(".crc")] == [
        "_staging/0/date=a/part"
    ]
    directory.sync("_staging/0")
    for _ in range(2):
        directory.move("_staging/0/date=a/part", "date=a/batch-part")
        assert directory.read_text("date=a/batch-part") == "rows"
    # A move that was a copy, and was cut off before the removal.
    directory.create_text("_staging/0/date=a/part", "rows")
    directory.move("_staging/0/date=a/part", "date=a/batch-part")
    assert directory.read_text("date=a/batch-part") == "rows"
    assert directory.read_text("_staging/0/date=a/part") is None
    directory.remove("date=a")
    directory.move("_staging/0/date=a/part", "date=a/batch-part")
    for _ in range(2):
        directory.remove("_staging")
        assert directory.files("_staging") == []
    directory.close()


def test_a_batch_is_committed_and_found_again(
    directory: OutputDirectory, spark: SparkSession
) -> None:
    ledger = ExportCommitLog(directory, stream="s/t")
    ledger.open()
    meanwhile = ExportCommitLog(directory, stream="s/t")
    if isinstance(directory, HadoopDirectory):
        meanwhile.open()
    for number in range(2):
        frame = spark.range(number * 10, number * 10 + 10).selectExpr("id", "id % 2 AS date")
        frame.write.mode("overwrite").partitionBy("date").parquet(ledger.staging_url())
        ledger.commit(
            ranges=[ExportedRange(0, "s/t/0.#epoch.0", number, number + 1)],
            rows=10,
            ends={0: number + 1},
            finished=[],
        )
    if isinstance(directory, HadoopDirectory):
        spark.range(5).selectExpr("id", "id % 2 AS date").write.partitionBy("date").parquet(
            meanwhile.staging_url()
        )
        with pytest.raises(JobInUseError):
            meanwhile.commit(ranges=[], rows=5, ends={}, finished=[])
    ledger.close()
    again = ExportCommitLog(directory, stream="s/t")
    again.open()
    again.close()
    assert again.batches == ledger.batches
    assert sorted(row["id"] for row in spark.read.parquet(directory.url).collect()) == [*range(20)]


def test_the_words_of_a_person_choose_the_file_system(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(open_output(spark, str(tmp_path)), LocalDirectory)
    assert open_output(spark, tmp_path.as_uri()).url == str(tmp_path)
