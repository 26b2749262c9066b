"""Small chunks become large ones in zstd, through an owner that checks: H7, H9."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.offline_owner import OfflineOwner
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.spark.jobs.compact import CompactJob, CompactSettings, CompactSummary
from segmentstore.spark.jobs.job_execution import LocalTaskRunner
from segmentstore.spark.jobs.swap_owners import ClaimingOwner
from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, open_for_reading
from tests.spark.jobs.damaged_way import flip_once_on_the_way
from tests.spark.jobs.failing_tasks import FailingTasks, KilledError
from tests.spark.jobs.generated_store import CONTAINERS, LOG_ID, GeneratedStore
from tier1.file_log.directory import LogIdentity, encode_identity
from tier1.file_log.log import FileDurableDataLog
from tier2.settings import StorageSettings
from tier2.store_reader import StoreReader

T = TypeVar("T")
R = TypeVar("R")

SETTINGS = CompactSettings(chunk_bytes=100_000, window_bytes_min=1)


def make_logs(data: Path, epoch_floor: int) -> None:
    """Tier 1 of the store, as its service left it."""

    async def run() -> None:
        for number in range(CONTAINERS):
            path = data / "tier1" / f"container-{number:04d}"
            path.mkdir(parents=True)
            (path / "identity").write_bytes(encode_identity(LogIdentity(LOG_ID)))
            log = FileDurableDataLog(
                str(path),
                files=SystemFileSystem(),
                executor=None,
                random=system_random(),
                epoch_floor=epoch_floor,
            )
            await log.initialize()
            await log.close()

    asyncio.run(run())


@pytest.fixture
def data(store: GeneratedStore, tmp_path: Path) -> Path:
    make_logs(tmp_path / "data", epoch_floor=store.epoch)
    return tmp_path / "data"


@pytest.fixture
def owner(store: GeneratedStore, data: Path) -> Iterator[ClaimingOwner]:
    with LoopRunner() as runner:
        claiming = ClaimingOwner(
            place=Tier2Location(place=store.place),
            open_owners=partial(OfflineOwner, data_directory=data),
            runner=runner,
        )
        yield claiming
        claiming.close()


def compacted(
    store: GeneratedStore,
    owner: ClaimingOwner,
    tasks: LocalTaskRunner | None = None,
    settings: CompactSettings = SETTINGS,
) -> CompactSummary:
    return CompactJob(
        place=Tier2Location(place=store.place),
        tasks=tasks or LocalTaskRunner(),
        owner=owner,
        settings=settings,
    ).run()


def contents(store: GeneratedStore) -> dict[str, bytes]:
    """Every segment, read without any owner."""

    async def read(runner: LoopRunner) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        async with open_for_reading(Tier2Location(place=store.place), runner.executor) as objects:
            reader = StoreReader(object_store=objects, settings=StorageSettings(), executor=None)
            for number in range(CONTAINERS):
                container = await reader.open(ContainerId(number))
                for name, segment in store.segments.items():
                    if segment.container == number:
                        async with aclosing(container.cat(name)) as pieces:
                            found[name] = b"".join([bytes(piece) async for piece in pieces])
        return found

    with LoopRunner() as runner:
        return runner.run(read(runner))


def require_sound(store: GeneratedStore) -> None:
    summary = VerifyJob(
        place=Tier2Location(place=store.place), tasks=LocalTaskRunner(), settings=VerifySettings()
    ).run()
    assert summary.sound, summary.damages
    assert contents(store) == {name: segment.content for name, segment in store.segments.items()}


def test_h7_h9_with_the_service_off_an_epoch_is_claimed_and_the_owner_publishes_the_swaps(
    store: GeneratedStore, owner: ClaimingOwner
) -> None:
    summary = compacted(store, owner)
    assert summary.refusals == []
    rows = list(summary.segments.values())
    assert sum(row.swapped for row in rows) == sum(row.windows for row in rows) > 0
    assert sum(row.chunks_after for row in rows) < sum(row.chunks_before for row in rows)
    assert sum(row.stored_bytes_after for row in rows) < sum(
        row.stored_bytes_before for row in rows
    )
    require_sound(store)


def test_a_second_run_finds_nothing_to_do(store: GeneratedStore, owner: ClaimingOwner) -> None:
    compacted(store, owner)
    files = store.chunk_files()
    again = compacted(store, owner)
    assert again.swapped == 0
    assert all(row.kept == row.windows for row in again.segments.values())
    assert store.chunk_files() == files


def test_a_killed_run_is_started_again_and_ends_as_one_that_was_not(
    store: GeneratedStore, owner: ClaimingOwner
) -> None:
    with pytest.raises(KilledError):
        compacted(store, owner, FailingTasks(2))
    require_sound(store)
    resumed = compacted(store, owner)
    assert resumed.swapped > 0
    assert any(row.kept for row in resumed.segments.values())
    assert compacted(store, owner).swapped == 0
    require_sound(store)


def test_a_run_whose_tasks_fail_gives_back_every_key_that_it_did_not_use(
    store: GeneratedStore, owner: ClaimingOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(LocalTaskRunner):
        """What the tasks of a wave made is lost with one of them."""

        def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
            super().run(work, tasks)
            raise KilledError

    given: set[str] = set()
    reserve, release = owner.reserve, owner.release

    def reserve_noted(container_id: int, count: int) -> list[str]:
        keys = reserve(container_id, count)
        given.update(keys)
        return keys

    def release_noted(container_id: int, keys: Sequence[str]) -> None:
        given.difference_update(keys)
        release(container_id, keys)

    monkeypatch.setattr(owner, "reserve", reserve_noted)
    monkeypatch.setattr(owner, "release", release_noted)
    with pytest.raises(KilledError):
        compacted(store, owner, Failing())
    assert not given


def test_h9_a_segment_that_changed_meanwhile_is_refused_and_stays_as_it_is(
    store: GeneratedStore, owner: ClaimingOwner
) -> None:
    class Interrupted(LocalTaskRunner):
        """After the work of the first wave another job does all of it."""

        done = False

        def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
            results = super().run(work, tasks)
            if not self.done:
                self.done = True
                assert compacted(store, owner).refusals == []
            return results

    once = replace(SETTINGS, rounds_max=1)
    summary = compacted(store, owner, Interrupted(), once)
    assert summary.swapped == 0
    assert len(summary.refusals) == sum(row.windows for row in summary.segments.values())
    assert all("other chunks there by now" in refusal for refusal in summary.refusals)
    require_sound(store)


def test_what_was_refused_is_planned_again(store: GeneratedStore, owner: ClaimingOwner) -> None:
    class Interrupted(LocalTaskRunner):
        done = False

        def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
            results = super().run(work, tasks)
            if not self.done:
                self.done = True
                compacted(store, owner)
            return results

    summary = compacted(store, owner, Interrupted())
    assert summary.refusals == []
    assert all(row.kept == row.windows for row in summary.segments.values())


def test_h7_without_the_logs_of_the_store_nothing_is_claimed(
    store: GeneratedStore, tmp_path: Path
) -> None:
    with LoopRunner() as runner:
        owner = ClaimingOwner(
            place=Tier2Location(place=store.place),
            open_owners=partial(OfflineOwner, data_directory=tmp_path / "none"),
            runner=runner,
        )
        with pytest.raises(InvalidRequestError, match="--data"):
            compacted(store, owner)
        owner.close()
    require_sound(store)


def test_a_damaged_chunk_is_never_copied(store: GeneratedStore, owner: ClaimingOwner) -> None:
    path = store.chunk_files()[0]
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    summary = compacted(store, owner)
    assert any("it is damaged" in refusal for refusal in summary.refusals)
    assert path.read_bytes() == bytes(content)


def test_a_bit_that_flips_on_the_way_keeps_nothing_from_being_copied(
    store: GeneratedStore, owner: ClaimingOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    flips = flip_once_on_the_way(monkeypatch)
    assert compacted(store, owner).refusals == []
    assert flips


def test_a_dry_run_changes_nothing(store: GeneratedStore, owner: ClaimingOwner) -> None:
    files = store.chunk_files()
    summary = compacted(store, owner, settings=CompactSettings(dry_run=True, window_bytes_min=1))
    assert sum(row.windows for row in summary.segments.values()) > 0
    assert store.chunk_files() == files
