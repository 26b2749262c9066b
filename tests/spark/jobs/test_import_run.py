"""An import, as far as it knows no Spark: what is planned, written, noted and refused."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jobs.file_import import (
    ImportPlan,
    ImportRun,
    ImportSettings,
    ImportSummary,
)


class Stream:
    """Rows, and the versions that it knows."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.versions: dict[str, int] = {}


class StepsWithoutSpark:
    """Files with one row each, which is their name; a plan for all that are new, a batch for each file."""

    def __init__(self, stream: Stream, files: Sequence[str]) -> None:
        self.stream = stream
        self.files = list(files)

    def found(self) -> Sequence[str]:
        return self.files

    def planned(self, files: Sequence[str], application: str) -> Sequence[ImportPlan]:
        return [ImportPlan(application, "", tuple((each,) for each in files), "")]

    def missing(self, files: Sequence[str]) -> Sequence[str]:
        return [each for each in files if each not in self.files]

    def last_version(self, application: str) -> int | None:
        return self.stream.versions.get(application)

    def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
        if version > self.stream.versions.get(plan.application, 0):
            self.stream.versions[plan.application] = version
            self.stream.rows += files
        return len(files)


def imported(
    steps: StepsWithoutSpark, state: Path, *, stream: str = "s/t", skip_missing: bool = False
) -> ImportSummary:
    return ImportRun(
        steps=steps,
        sink_options={"stream": stream, "controller": "tcp://here:1"},
        settings=ImportSettings(state_directory=state, inputs=("in",), skip_missing=skip_missing),
    ).run()


def test_a_later_run_takes_the_files_that_are_new(tmp_path: Path) -> None:
    steps = StepsWithoutSpark(Stream(), ["b", "c"])
    assert imported(steps, tmp_path).rows == 2
    steps.files.append("a")
    assert [each.version for each in imported(steps, tmp_path).batches] == [3]
    assert imported(steps, tmp_path).batches == []
    assert steps.stream.rows == ["b", "c", "a"]


def test_a_stream_that_does_not_know_what_was_imported_into_it_is_refused(tmp_path: Path) -> None:
    files = ["a", "b"]
    stream = Stream()
    imported(StepsWithoutSpark(stream, files), tmp_path)
    with pytest.raises(InvalidRequestError, match="imported=2 known=0"):
        imported(StepsWithoutSpark(Stream(), [*files, "c"]), tmp_path)
    # Also one that came back from an older copy: what came last is not in it.
    stream.versions = dict.fromkeys(stream.versions, 1)
    with pytest.raises(InvalidRequestError, match="imported=2 known=1"):
        imported(StepsWithoutSpark(stream, files), tmp_path)
    # Nothing was planned for a stream that is refused: the right one gets the new file.
    stream.versions = dict.fromkeys(stream.versions, 2)
    imported(StepsWithoutSpark(stream, [*files, "c"]), tmp_path)
    assert stream.rows == ["a", "b", "c"]


def test_the_state_of_another_stream_is_refused(tmp_path: Path) -> None:
    steps = StepsWithoutSpark(Stream(), ["a"])
    imported(steps, tmp_path)
    with pytest.raises(InvalidRequestError, match="another job"):
        imported(steps, tmp_path, stream="s/other")


def test_a_planned_file_that_is_gone_ends_the_run_until_it_is_passed_over_or_back(
    tmp_path: Path,
) -> None:
    steps = StepsWithoutSpark(Stream(), ["a", "b", "c"])

    class KilledError(Exception):
        pass

    class Killed(StepsWithoutSpark):
        def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
            raise KilledError

    with pytest.raises(KilledError):
        imported(Killed(steps.stream, steps.files), tmp_path)
    steps.files = ["c"]
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="--skip-missing files=a"):
            imported(steps, tmp_path)
    imported(steps, tmp_path, skip_missing=True)
    assert steps.stream.rows == ["c"]
    steps.files = ["b", "c"]
    imported(steps, tmp_path)
    assert steps.stream.rows == ["c", "b"]


def test_a_file_that_went_behind_its_commit_is_not_missed(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    class Killed(StepsWithoutSpark):
        def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
            super().write(version, plan, files)
            raise KilledError

    steps = StepsWithoutSpark(Stream(), ["a"])
    with pytest.raises(KilledError):
        imported(Killed(steps.stream, steps.files), tmp_path)
    steps.files = []
    imported(steps, tmp_path)
    steps.files = ["a"]
    imported(steps, tmp_path)
    assert steps.stream.rows == ["a"]


def test_the_state_of_an_older_version_goes_on(tmp_path: Path) -> None:
    identity = {"job": "import", "stream": "s/t", "format": "parquet", "key": "", "value": ""}
    plan = {"plan": [["a"], ["b"]], "application": "import-1", "schema": ""}
    for name, value in {
        "job.json": identity,
        "done-00000000": plan,
        "done-00000001": {"version": 1, "rows": 1, "files": 1},
    }.items():
        (tmp_path / name).write_text(json.dumps(value))
    stream = Stream()
    stream.versions["import-1"] = 1
    imported(StepsWithoutSpark(stream, ["a", "b"]), tmp_path)
    assert stream.rows == ["b"]
    assert stream.versions == {"import-1": 2}
