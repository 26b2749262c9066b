"""Goal: whatever way runs of one job meet, and wherever they are killed, each row is there once in the end.

Method: runs of a job work side by side on a simulated disk, in an order of calls that a seed chooses; each may be
killed before any call, and between rounds the power may fail. Then the job is run alone to its end, twice, and the rows
are compared. Locks hold in half of the seeds; in the others nothing keeps the runs apart but what they never replace,
as on file systems of Hadoop.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import cast

import pytest

from segmentstore.runtime.files import FileSystem
from segmentstore.spark.jobs.export import ExportCommitLog, ExportedRange
from segmentstore.spark.jobs.file_import import ImportPlan, ImportRun, ImportSettings
from segmentstore.spark.jobs.output_directory import LocalDirectory
from tests.sim.disk import SimulatedDisk
from tests.spark.jobs.side_by_side import FilesWithoutLocks, Work, run_side_by_side

SEEDS = 120
ROUNDS = 4
KILL_CHANCE = 0.004
IMPORT_ROUNDS = 8
IMPORT_KILL_CHANCE = 0.015
BATCH_EVENTS = 3


class DirectoryWithoutLock(LocalDirectory):
    """As a file system of Hadoop: other runs may be there."""

    def open(self) -> bool:
        return False


class ExportedStream:
    """A stream of numbers, and a directory that they are exported to and loaded from."""

    def __init__(self, random: Random) -> None:
        self.disk = SimulatedDisk()
        self.events = 0
        self.loaded: list[str] = []
        """What somebody has loaded and taken away."""
        self.is_locked = random.random() < 0.5
        self._kind = LocalDirectory if self.is_locked else DirectoryWithoutLock

    def export(self) -> Work:
        """A run of what is there by now."""
        events = self.events

        def work(files: FileSystem, _step: object) -> None:
            log = ExportCommitLog(self._kind(Path("/out"), files=files), stream="s/t")
            try:
                log.open()
                start = log.ends.get(0, 0)
                while start < events:
                    end = min(start + BATCH_EVENTS, events)
                    stage(files, log.staging_url(), range(start, end))
                    log.commit(
                        ranges=[ExportedRange(0, "s/t/0.#epoch.0", start, end)],
                        rows=end - start,
                        ends={0: end},
                        finished=[],
                    )
                    start = end
            finally:
                log.close()

        return work

    def visible(self) -> dict[str, str]:
        """What readers of Parquet find, by path."""
        files = self.disk.mount("reader")
        found: dict[str, str] = {}
        for folder in files.list("/out") if files.exists("/out") else ():
            if not folder.startswith(("_", ".")):
                for name in files.list(f"/out/{folder}"):
                    path = f"/out/{folder}/{name}"
                    found[path] = files.open(path).read_at(0, 1 << 20).decode()
        return found

    def load(self) -> None:
        """Take all of it away."""
        files = self.disk.mount("loader")
        for path, text in self.visible().items():
            self.loaded += text.split()
            files.remove(path)
            files.sync_directory(path.rpartition("/")[0])

    def rows(self) -> list[int]:
        """Loaded or to be loaded."""
        some = [word for text in self.visible().values() for word in text.split()]
        return sorted(int(word) for word in [*self.loaded, *some])


def stage(files: FileSystem, url: str, numbers: range) -> None:
    """What Spark writes: files with a name that no other write uses, and nothing of it is synced."""
    name = f"part-0-{Random(f'{url} {numbers}').randbytes(8).hex()}"
    for day in ("a", "b"):
        some = [str(number) for number in numbers if number % 2 == (day == "b")]
        if some:
            files.make_directories(f"{url}/date={day}")
            file = files.open(f"{url}/date={day}/{name}", create=True)
            file.write_at(0, [" ".join(some).encode()])
            file.close()
    files.open(f"{url}/_SUCCESS", create=True).close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_exports_that_meet_and_are_killed_have_every_event_once(seed: int) -> None:
    random = Random(seed)
    stream = ExportedStream(random)
    for _ in range(ROUNDS):
        stream.events += random.randrange(8)
        works = [stream.export() for _ in range(random.randrange(1, 4))]
        outcomes = run_side_by_side(stream.disk, works, random, kill_chance=KILL_CHANCE)
        assert "failed" not in outcomes or not stream.is_locked
        if random.random() < 0.3:
            stream.disk.lose_power(random)
        if random.random() < 0.5:
            assert run_side_by_side(stream.disk, [stream.export()], random, kill_chance=0) == [
                "ended"
            ]
            assert stream.rows() == [*range(stream.events)]
            stream.load()
    for _ in range(2):
        assert run_side_by_side(stream.disk, [stream.export()], random, kill_chance=0) == ["ended"]
        assert stream.rows() == [*range(stream.events)]


class ImportedStream:
    """Input files, each with rows of its own, a stream that they are imported to, and the state of the import."""

    def __init__(self, random: Random) -> None:
        self.disk = SimulatedDisk()
        self.is_locked = random.random() < 0.5
        self.inputs: dict[str, list[str]] = {}
        self.gone: dict[str, list[str]] = {}
        self.imported: list[str] = []
        self.versions: dict[str, int] = {}
        """What the stream knows of each application."""
        self._random = random
        self._made = 0

    def add_files(self) -> None:
        """Somewhere in the order of names."""
        for _ in range(self._random.randrange(4)):
            name = f"{self._random.randrange(100):02d}-{self._made:04d}"
            self.inputs[name] = [f"{name} {row}" for row in range(2)]
            self._made += 1

    def lose_and_find_files(self) -> None:
        """Some that were there are gone, or back again."""
        for here, there in ((self.inputs, self.gone), (self.gone, self.inputs)):
            for name in sorted(here):
                if self._random.random() < 0.2:
                    there[name] = here.pop(name)

    def run_import(self) -> Work:
        def work(files: FileSystem, step: Callable[[], None]) -> None:
            if not self.is_locked:
                files = cast("FileSystem", FilesWithoutLocks(files))
            ImportRun(
                steps=StepsOfImport(self, step),
                sink_options={"stream": "s/t", "controller": "tcp://here:1"},
                settings=ImportSettings(
                    state_directory=Path("/state"), inputs=("/in",), skip_missing=True
                ),
                files=files,
            ).run()

        return work


class StepsOfImport:
    """What Spark and the store do; others may come between."""

    def __init__(self, stream: ImportedStream, step: Callable[[], None]) -> None:
        self._stream = stream
        self._step = step

    def found(self) -> Sequence[str]:
        self._step()
        return sorted(self._stream.inputs)

    def planned(self, files: Sequence[str], application: str) -> Sequence[ImportPlan]:
        self._step()
        half = len(files) // 2
        groups = [files[:half], files[half:]]
        return [ImportPlan(application, "", tuple((each,) for each in group)) for group in groups]

    def missing(self, files: Sequence[str]) -> Sequence[str]:
        self._step()
        return [each for each in files if each not in self._stream.inputs]

    def last_version(self, application: str) -> int | None:
        self._step()
        return self._stream.versions.get(application)

    def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
        self._step()
        rows = [row for each in files for row in self._stream.inputs[each]]
        if version > self._stream.versions.get(plan.application, 0):
            self._stream.versions[plan.application] = version
            self._stream.imported += rows
        self._step()
        return len(rows)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_imports_that_meet_and_are_killed_have_every_row_once(seed: int) -> None:
    random = Random(seed)
    stream = ImportedStream(random)
    for _ in range(IMPORT_ROUNDS):
        stream.add_files()
        stream.lose_and_find_files()
        works = [stream.run_import() for _ in range(random.randrange(1, 4))]
        outcomes = run_side_by_side(stream.disk, works, random, kill_chance=IMPORT_KILL_CHANCE)
        assert "failed" not in outcomes or not stream.is_locked
        if random.random() < 0.3:
            stream.disk.lose_power(random)
    for _ in range(2):
        assert run_side_by_side(stream.disk, [stream.run_import()], random, kill_chance=0) == [
            "ended"
        ]
        there = sorted(row for rows in stream.inputs.values() for row in rows)
        gone = {row for rows in stream.gone.values() for row in rows}
        assert sorted(row for row in stream.imported if row not in gone) == there
        assert len(set(stream.imported)) == len(stream.imported)


class KilledError(Exception):
    """The run ends here."""


class StepsThatEndBehindTheCommit(StepsOfImport):
    """The rows are in the stream, and nothing more is done."""

    def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
        super().write(version, plan, files)
        raise KilledError


@pytest.mark.parametrize("comes_back_in_between", [False, True])
def test_a_file_that_was_passed_over_by_a_run_that_died_behind_its_commit_is_imported_when_it_is_back(
    comes_back_in_between: bool,
) -> None:
    stream = ImportedStream(Random(1))
    stream.inputs = {name: [f"{name} 0"] for name in ("a", "b", "c", "d")}

    def run(steps: type[StepsOfImport]) -> None:
        ImportRun(
            steps=steps(stream, lambda: None),
            sink_options={"stream": "s/t", "controller": "tcp://here:1"},
            settings=ImportSettings(
                state_directory=Path("/state"), inputs=("/in",), skip_missing=True
            ),
            files=stream.disk.mount("run"),
        ).run()

    class StepsThatEndBeforeTheCommit(StepsOfImport):
        def write(self, version: int, plan: ImportPlan, files: Sequence[str]) -> int:
            raise KilledError

    with pytest.raises(KilledError):
        run(StepsThatEndBeforeTheCommit)
    stream.gone["a"] = stream.inputs.pop("a")
    if comes_back_in_between:
        # What was to be passed over is not any more: the batch has it, and it may not come twice.
        with pytest.raises(KilledError):
            run(StepsThatEndBeforeTheCommit)
        stream.inputs["a"] = stream.gone.pop("a")
    with pytest.raises(KilledError):
        run(StepsThatEndBehindTheCommit)
    stream.inputs |= stream.gone
    for _ in range(2):
        run(StepsOfImport)
        assert sorted(stream.imported) == ["a 0", "b 0", "c 0", "d 0"]
