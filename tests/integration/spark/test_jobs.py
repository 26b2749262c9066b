"""The jobs on real Spark over a real store, each killed half-way and started again."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from segmentstore.host.offline_owner import OfflineOwner
from segmentstore.spark.jobs.compact import CompactJob, CompactSettings, CompactSummary
from segmentstore.spark.jobs.export import ExportJob, ExportSettings, ExportSummary
from segmentstore.spark.jobs.file_import import ImportJob, ImportSettings, ImportSummary
from segmentstore.spark.jobs.job_execution import Progress, SparkTaskRunner
from segmentstore.spark.jobs.output_directory import open_output
from segmentstore.spark.jobs.stats import StatsJob, StatsSettings
from segmentstore.spark.jobs.swap_owners import open_owner
from segmentstore.spark.jobs.verify import (
    ContainerSummary,
    VerifyJob,
    VerifySettings,
    VerifySummary,
)
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import (
    Tier2Location,
    open_containers,
    open_for_reading,
)
from tests.integration.spark.job_store import LINES, ROUNDS, JobStore, job_store, lines
from tests.integration.spark.sink_runs import events_in
from tests.spark.jobs.failing_tasks import KilledError
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url
from tier2.container_objects import ObjectKind

__all__ = ["bucket", "credentials", "moto_url"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class KilledAt:
    """A progress that ends the job when a share of it is done."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __call__(self, done: int, total: int) -> None:
        if total * self._share <= done < total:
            raise KilledError


def goes_on(_done: int, _total: int) -> None:
    """A progress that lets the job end by itself."""


@pytest.fixture(scope="module", params=["filesystem", "volumes"])
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JobStore]:
    directory = tmp_path_factory.mktemp("jobs")
    with job_store(directory, tier2=request.param) as live:
        yield live


def exported(
    spark: SparkSession, live: JobStore, stream: str, out: Path, progress: Progress = goes_on
) -> ExportSummary:
    return ExportJob(
        spark=spark,
        source_options={"tier2": live.place.place, "controller": live.uri, "stream": stream},
        directory=open_output(spark, str(out)),
        settings=ExportSettings(batch_bytes=100_000),
        progress=progress,
    ).run()


def rows_of(spark: SparkSession, out: Path) -> "Counter[bytes]":
    rows = spark.read.parquet(str(out)).select("value").collect()
    return Counter(bytes(row["value"]) for row in rows)


def imported(
    spark: SparkSession, live: JobStore, inputs: Path, state: Path, progress: Progress = goes_on
) -> ImportSummary:
    return ImportJob(
        spark=spark,
        sink_options={
            "controller": live.uri,
            "stream": "jobs/imported",
            "createIfMissing": "true",
            "segments": "2",
        },
        settings=ImportSettings(state_directory=state, inputs=(str(inputs),), batch_files=2),
        progress=progress,
    ).run()


def verified(
    spark: SparkSession,
    place: Tier2Location,
    state: Path | None = None,
    progress: Progress = goes_on,
) -> VerifySummary:
    return VerifyJob(
        place=place,
        tasks=SparkTaskRunner(spark),
        settings=VerifySettings(task_bytes=50_000, state_directory=state),
        progress=progress,
    ).run()


def rows_of_any_root(summary: VerifySummary) -> Mapping[int, ContainerSummary]:
    """Its rows but for the versions of the roots: the service runs, and may publish one between two runs."""
    return {number: replace(row, root_version=0) for number, row in summary.containers.items()}


def compacted(
    spark: SparkSession, live: JobStore, *, online: bool, progress: Progress = goes_on
) -> CompactSummary:
    server = live.address if online else ""
    owners = None if online else partial(OfflineOwner, data_directory=live.data_directory)
    with open_owner(live.place, server=server, open_owners=owners) as owner:
        return CompactJob(
            place=live.place,
            tasks=SparkTaskRunner(spark),
            owner=owner,
            settings=CompactSettings(chunk_bytes=50_000, window_bytes_min=1),
            progress=progress,
        ).run()


def test_an_export_that_was_killed_goes_on_adds_what_is_new_and_comes_back_by_import(
    spark: SparkSession, live: JobStore, tmp_path: Path
) -> None:
    stream, out = "jobs/exported", tmp_path / "out"
    expected = live.fill(stream)
    with pytest.raises(KilledError):
        exported(spark, live, stream, out, KilledAt(0.3))
    some = rows_of(spark, out)
    assert 0 < some.total() < expected.total()
    assert some <= expected
    resumed = exported(spark, live, stream, out)
    assert rows_of(spark, out) == expected
    assert resumed.rows == expected.total() - some.total()
    assert exported(spark, live, stream, out).batches == []
    more = [line + b" again" for line in lines(0)]
    live.write(stream, more)
    assert exported(spark, live, stream, out).rows == len(more)
    expected += Counter(more)
    assert rows_of(spark, out) == expected

    state = tmp_path / "import"
    with pytest.raises(KilledError):
        imported(spark, live, out, state, KilledAt(0.2))
    # Killed once more, between the commit of a batch and the note of it.
    max(state.glob("done-*")).unlink()
    imported(spark, live, out, state)
    assert events_in(live.uri, "jobs/imported") == expected
    assert imported(spark, live, out, state).batches == []


def test_h9_compaction_beside_the_service_is_checked_by_the_owner_and_resumed_after_a_kill(
    spark: SparkSession, live: JobStore, tmp_path: Path
) -> None:
    stream = "jobs/compacted"
    expected = live.fill(stream)
    live.flush()
    before = verified(spark, live.place)
    with pytest.raises(KilledError):
        compacted(spark, live, online=True, progress=KilledAt(0.2))
    summary = compacted(spark, live, online=True)
    assert summary.refusals == []
    assert summary.swapped > 0
    assert compacted(spark, live, online=True).swapped == 0
    after = verified(spark, live.place)
    assert before.sound
    assert after.sound, after.damages
    assert sum(row.chunks for row in after.containers.values()) < sum(
        row.chunks for row in before.containers.values()
    )
    assert events_in(live.uri, stream) == expected


def test_h7_compaction_with_the_service_off_claims_an_epoch_and_the_service_starts_again(
    spark: SparkSession, live: JobStore, tmp_path: Path
) -> None:
    stream = "jobs/cold"
    expected = live.fill(stream)
    live.kill()
    with pytest.raises(KilledError):
        compacted(spark, live, online=False, progress=KilledAt(0.2))
    assert compacted(spark, live, online=False).swapped > 0
    assert compacted(spark, live, online=False).swapped == 0
    assert verified(spark, live.place).sound
    live.start()
    # The unflushed tail was in the logs that the job held meanwhile.
    assert events_in(live.uri, stream) == expected
    live.write(stream, lines(50))
    live.flush()
    assert events_in(live.uri, stream) == expected + Counter(lines(50))


def test_verify_finds_damage_and_goes_on_after_a_kill(
    spark: SparkSession, live: JobStore, tmp_path: Path
) -> None:
    live.fill("jobs/verified")
    live.flush()
    state = tmp_path / "state"
    with pytest.raises(KilledError):
        verified(spark, live.place, state, KilledAt(0.2))
    resumed = verified(spark, live.place, state)
    whole = verified(spark, live.place)
    assert resumed.sound
    assert 0 < resumed.scrubbed_bytes < whole.scrubbed_bytes
    assert rows_of_any_root(resumed) == rows_of_any_root(whole)
    assert sum(row.events for row in whole.containers.values()) >= ROUNDS * LINES

    copy = tmp_path / "copy"
    shutil.copytree(live.data_directory / "tier2", copy)
    damage(copy, "jobs/verified/")
    damaged = verified(spark, Tier2Location(place=str(copy)))
    assert not damaged.sound


def test_h9_workers_upload_to_a_bucket_and_the_owner_publishes(
    spark: SparkSession,
    moto_url: str,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEGMENTSTORE_S3_ENDPOINT_URL", moto_url)
    with job_store(tmp_path, tier2=f"s3://{bucket}/store", endpoint=moto_url) as live:
        expected = live.fill("jobs/bucket")
        assert compacted(spark, live, online=True).swapped > 0
        assert verified(spark, live.place).sound
        live.flush()
        live.kill()
        assert compacted(spark, live, online=False).swapped > 0
        assert verified(spark, live.place).sound
        live.start()
        assert events_in(live.uri, "jobs/bucket") == expected


def damage(tier2: Path, prefix: str) -> None:
    """A bit of one chunk of a segment whose name begins so, wherever its bytes lie in files."""

    async def stored_bytes(runner: LoopRunner) -> bytes:
        async with open_for_reading(Tier2Location(place=str(tier2)), runner.executor) as store:
            for reader in await open_containers(store, runner.executor, place=str(tier2)):
                async with aclosing(reader.scan_layouts()) as layouts:
                    async for layout in layouts:
                        if layout.record.name.startswith(prefix) and layout.entries:
                            entry = layout.entries[0]
                            key = reader.components.names.key(ObjectKind.CHUNKS, entry.identity)
                            return await store.get_range(key, entry.position + 100, 100)
        raise AssertionError(f"nothing of it is in Tier 2 prefix={prefix}")

    with LoopRunner() as runner:
        wanted = runner.run(stored_bytes(runner))
    found = 0
    for path in tier2.rglob("*"):
        if path.is_file() and wanted in (content := path.read_bytes()):
            # Wherever they are: equal bytes lie in chunks that nothing names any more as well.
            other = wanted[:50] + bytes([wanted[50] ^ 1]) + wanted[51:]
            path.write_bytes(content.replace(wanted, other))
            found += 1
    assert found, "the bytes are in no file"


def test_stats_count_the_events_of_a_live_stream_and_draw_them(
    spark: SparkSession, live: JobStore, tmp_path: Path
) -> None:
    expected = live.fill("jobs/counted")
    live.flush()
    report, state = tmp_path / "stats.html", tmp_path / "state"

    def run(progress: Progress) -> int:
        summary = StatsJob(
            place=live.place,
            tasks=SparkTaskRunner(spark),
            settings=StatsSettings(
                report=report, prefix="jobs/counted/", stretch_chunks=1, state_directory=state
            ),
            progress=progress,
        ).run()
        (stream,) = summary.streams
        assert stream.events == expected.total()
        return summary.chunks_read

    with pytest.raises(KilledError):
        run(KilledAt(0.2))
    assert not report.exists()
    assert run(goes_on) > 0
    assert "jobs/counted" in report.read_text()
    assert run(goes_on) == 0
