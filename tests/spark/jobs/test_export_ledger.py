"""Batches of an export: there once, whatever moment the job is killed at."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.codec.stream_names import segment_id_of
from segmentstore.contracts.errors import CorruptedDataError, InvalidRequestError, StorageError
from segmentstore.spark.jobs.export import (
    ExportBatch,
    ExportCommitLog,
    ExportedRange,
    PlannedBatch,
    batches_of,
    ends_behind,
    finished_at,
    never_seen,
    starts_of,
)
from segmentstore.spark.jobs.output_directory import LocalDirectory
from segmentstore.spark.jobs.run_lock import JobInUseError
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.streams.segment_graph import StreamMetadata, StreamSegmentMetadata


class KilledError(Exception):
    """The process's end."""


class DirectoryWithoutLock(LocalDirectory):
    """As a file system of Hadoop: other runs may be there."""

    def open(self) -> bool:
        return False


class KillingDirectory(LocalDirectory):
    """Ends the job before the nth change."""

    def __init__(self, path: Path, changes: int) -> None:
        super().__init__(path)
        self._left = changes

    def _count(self) -> None:
        if self._left == 0:
            raise KilledError
        self._left -= 1

    def create_text(self, place: str, text: str) -> None:
        self._count()
        super().create_text(place, text)

    def move(self, source: str, target: str) -> None:
        self._count()
        super().move(source, target)

    def remove(self, place: str) -> None:
        self._count()
        super().remove(place)


def stage(ledger: ExportCommitLog, files: dict[str, str]) -> None:
    """What Spark writes."""
    staging = Path(ledger.staging_url())
    for name, content in files.items():
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (staging / "_SUCCESS").touch()


def export_once(directory: LocalDirectory, number: int) -> None:
    """What the job does for one batch, unless it is there already."""
    ledger = ExportCommitLog(directory, stream="s/t")
    try:
        ledger.open()
        while len(ledger.batches) <= number:
            stage_next(ledger)
            commit_next(ledger)
    finally:
        ledger.close()


def stage_next(ledger: ExportCommitLog) -> None:
    batch = len(ledger.batches)
    stage(ledger, {"date=a/part-0": f"{batch}a", "date=b/part-1": f"{batch}b"})


def commit_next(ledger: ExportCommitLog) -> None:
    batch = len(ledger.batches)
    ledger.commit(
        ranges=[ExportedRange(0, "s/t/0.#epoch.0", batch, batch + 1)],
        rows=2,
        ends={0: batch + 1},
        finished=[],
    )


def visible(path: Path) -> list[str]:
    """What a reader of Parquet finds: nothing below a name that begins with _ or a dot."""
    found = [file for file in path.rglob("*") if file.is_file()]
    inside = [file.relative_to(path) for file in found]
    return sorted(
        (path / file).read_text()
        for file in inside
        if not any(part.startswith(("_", ".")) for part in file.parts)
    )


@pytest.mark.parametrize("changes", range(14))
def test_a_job_killed_at_any_change_and_started_again_has_every_batch_once(
    tmp_path: Path, changes: int
) -> None:
    with pytest.raises(KilledError):
        export_once(KillingDirectory(tmp_path, changes), 3)
    seen = visible(tmp_path)
    assert len(seen) == len(set(seen))
    export_once(LocalDirectory(tmp_path), 3)
    assert visible(tmp_path) == sorted(f"{batch}{day}" for batch in range(4) for day in "ab")
    assert not (tmp_path / "_staging").exists()


def test_a_second_run_is_refused_and_takes_nothing_from_the_first(tmp_path: Path) -> None:
    first = ExportCommitLog(LocalDirectory(tmp_path), stream="s/t")
    first.open()
    stage_next(first)
    second = ExportCommitLog(LocalDirectory(tmp_path), stream="s/t")
    with pytest.raises(JobInUseError, match=f"process_id={os.getpid()}"):
        second.open()
    second.close()
    commit_next(first)
    first.close()
    assert visible(tmp_path) == ["0a", "0b"]


def test_of_two_runs_without_a_lock_one_commits_a_batch_and_the_other_one_says_so(
    tmp_path: Path,
) -> None:
    first, second = (
        ExportCommitLog(DirectoryWithoutLock(tmp_path), stream="s/t") for _ in range(2)
    )
    first.open()
    stage_next(first)
    second.open()  # what the first one staged stays
    stage_next(second)
    commit_next(first)
    with pytest.raises((JobInUseError, StorageError)):
        commit_next(second)
    assert visible(tmp_path) == ["0a", "0b"]


def test_a_batch_whose_files_are_gone_is_not_committed(tmp_path: Path) -> None:
    ledger = ExportCommitLog(LocalDirectory(tmp_path), stream="s/t")
    ledger.open()
    stage_next(ledger)
    LocalDirectory(tmp_path).remove("_staging")
    with pytest.raises(StorageError, match="nothing was committed"):
        commit_next(ledger)
    ledger.close()
    export_once(LocalDirectory(tmp_path), 0)
    assert visible(tmp_path) == ["0a", "0b"]


def test_files_that_were_taken_away_are_not_missed(tmp_path: Path) -> None:
    export_once(LocalDirectory(tmp_path), 0)
    for file in tmp_path.glob("date=*/*"):
        file.unlink()
    export_once(LocalDirectory(tmp_path), 1)
    assert visible(tmp_path) == ["1a", "1b"]


def test_a_batch_that_an_older_version_staged_is_published(tmp_path: Path) -> None:
    staged = tmp_path / "_staging" / "000000" / "date=a"
    staged.mkdir(parents=True)
    (staged / "part-0").write_text("0a")
    batch = ExportBatch(
        number=0,
        stream="s/t",
        ranges=(ExportedRange(0, "s/t/0.#epoch.0", 0, 1),),
        rows=1,
        ends={0: 1},
        files={"_staging/000000/date=a/part-0": "date=a/batch-000000-part-0"},
    )
    (tmp_path / "_batches").mkdir()
    (tmp_path / "_batches" / "000000.json").write_text(batch.to_json())
    export_once(LocalDirectory(tmp_path), 0)
    assert visible(tmp_path) == ["0a"]


def test_a_manifest_is_read_as_it_was_written() -> None:
    batch = ExportBatch(
        number=3,
        stream="s/t",
        ranges=(ExportedRange(1 << 32, "s/t/0.#epoch.1", 5, 9),),
        rows=7,
        ends={1 << 32: 9},
        finished=(0,),
        files={"_staging/000003/x": "batch-000003-x"},
    )
    assert ExportBatch.of_json(batch.to_json(), "here") == batch
    with pytest.raises(CorruptedDataError, match="place=here"):
        ExportBatch.of_json("{}", "here")


def test_a_directory_with_another_stream_is_refused(tmp_path: Path) -> None:
    export_once(LocalDirectory(tmp_path), 0)
    with pytest.raises(InvalidRequestError, match="another stream"):
        ExportCommitLog(LocalDirectory(tmp_path), stream="s/other").open()


def mapped(segment_id: int, start: int, end: int) -> StreamSegmentMetadata:
    return StreamSegmentMetadata(
        segment_id=segment_id,
        name=f"s/t/{segment_id}.#epoch.0",
        epoch=0,
        low=0.0,
        high=1.0,
        start_offset=start,
        end_offset=end,
        published_end=end,
        is_sealed=False,
        container_id=0,
    )


def stream_of(*segments: StreamSegmentMetadata) -> StreamMetadata:
    return StreamMetadata(scope="s", stream="t", segments=segments, head={})


def test_an_export_goes_on_where_the_last_one_ended() -> None:
    stream = stream_of(mapped(0, 10, 50), mapped(1, 0, 9))
    starts: Callable[[dict[int, int]], dict[int, int]] = lambda ends: starts_of(  # noqa: E731
        stream, ends=ends, finished=frozenset(), fail_on_data_loss=True
    )
    assert starts({}) == {0: 10, 1: 0}
    assert starts({0: 20}) == {0: 20, 1: 0}


def test_what_went_before_it_was_exported_is_a_loss() -> None:
    stream = stream_of(mapped(5, 10, 50))
    with pytest.raises(DataLossError):
        starts_of(stream, ends={4: 7}, finished=frozenset(), fail_on_data_loss=True)
    for ends, finished in (({4: 7}, {4}), ({5: 3}, set[int]())):
        starts = starts_of(stream, ends=ends, finished=frozenset(finished), fail_on_data_loss=True)
        # Below the head of the segment: whoever reads from there is told what is lost.
        assert starts[5] < 10
        assert starts_of(
            stream, ends=ends, finished=frozenset(finished), fail_on_data_loss=False
        ) == {5: 10}


def test_a_segment_without_new_events_keeps_its_place_in_the_manifest() -> None:
    stream = stream_of(mapped(0, 0, 50), mapped(1, 9, 9), mapped(2, 4, 8))
    starts = starts_of(stream, ends={}, finished=frozenset(), fail_on_data_loss=True)
    batch = PlannedBatch((ExportedRange(0, "s/t/0", 0, 50),))
    ends = ends_behind(batch, ends={}, starts=starts)
    # The second one was truncated to its end before the first run, and the third one waits for the next batch.
    assert ends == {0: 50, 1: 9, 2: 4}
    grown = stream_of(mapped(0, 0, 50), mapped(1, 9, 20), mapped(2, 4, 8), mapped(3, 0, 5))
    again = starts_of(grown, ends=ends, finished=frozenset(), fail_on_data_loss=True)
    assert again == {0: 50, 1: 9, 2: 4, 3: 0}
    assert ends_behind(PlannedBatch(()), ends=ends, starts=again) == {**ends, 3: 0}


def test_a_segment_is_finished_when_it_is_sealed_and_not_when_others_follow_it() -> None:
    followed = replace(mapped(0, 0, 50), successors=(1 << 32,))
    child = replace(mapped(1 << 32, 0, 0), predecessors=(0,))
    assert finished_at({0: 50}, stream_of(followed, child)) == frozenset()
    sealed = replace(followed, is_sealed=True)
    assert finished_at({0: 50}, stream_of(sealed, child)) == {0}
    assert finished_at({0: 49}, stream_of(sealed, child)) == frozenset()


def test_segments_that_came_and_went_between_two_runs_are_seen_to_be_missing() -> None:
    gone = {0: SealedSegmentRecord(replacing_epoch=1, length=50)}
    assert never_seen(gone, head=[segment_id_of(number=1, creation_epoch=1)]) == []
    late = segment_id_of(number=2, creation_epoch=2)
    assert never_seen(gone, head=[late]) == [late]
    assert never_seen({}, head=[late]) == []


def test_batches_are_bounded_and_ranges_that_meet_are_one() -> None:
    ranges = [
        ExportedRange(0, "a", 0, 40),
        ExportedRange(0, "a", 40, 60),
        ExportedRange(1, "b", 0, 30),
        ExportedRange(1, "b", 30, 500),
    ]
    batches = [batch.ranges for batch in batches_of(ranges, 100)]
    assert batches == [
        (ExportedRange(0, "a", 0, 60), ExportedRange(1, "b", 0, 30)),
        (ExportedRange(1, "b", 30, 500),),
    ]
