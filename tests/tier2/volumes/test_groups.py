"""What happens inside one group, and between groups and readers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
    ObjectNotFoundError,
)
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.volumes.engines import SMALL, SetClock, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index import current_key
from tier2.volumes.objects import Condition, RetentionMode

ABSENT = Condition(absent=True)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[VolumeEngine]:
    opened = await open_small(str(tmp_path))
    yield opened.engine
    await opened.engine.check()
    await opened.close()


async def test_of_two_conditional_puts_in_one_group_one_wins(engine: VolumeEngine) -> None:
    outcomes = await asyncio.gather(
        *(engine.put(b"key", [b"%d" % n], condition=ABSENT) for n in range(8)),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes[1:]] == [ObjectExistsError] * 7
    first = await engine.head(b"key")
    outcomes = await asyncio.gather(
        *(
            engine.put(b"key", [b"x%d" % n], condition=Condition(sequence=first.sequence))
            for n in range(8)
        ),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes[1:]] == [ObjectChangedError] * 7
    assert (await engine.get(b"key")).content == b"x0"


async def test_equal_contents_in_one_group_are_stored_once(
    engine: VolumeEngine, tmp_path: Path
) -> None:
    content = b"same" * 1000
    await asyncio.gather(*(engine.put(b"key/%d" % n, [content]) for n in range(10)))
    size = sum(path.stat().st_size for path in (tmp_path / "volumes").iterdir())
    assert size < 2 * len(content) + 10 * 200
    await asyncio.gather(*(engine.delete(b"key/%d" % n) for n in range(9)))
    assert (await engine.get(b"key/9")).content == content


async def test_a_put_and_the_delete_of_the_only_other_name_in_one_group_keep_the_bytes(
    engine: VolumeEngine,
) -> None:
    content = b"same" * 1000
    await engine.put(b"one", [content])
    await asyncio.gather(engine.delete(b"one"), engine.put(b"two", [content]))
    await asyncio.gather(engine.put(b"three", [content]), engine.delete(b"two"))
    await asyncio.gather(engine.put(b"three", [content]), engine.put(b"three", [content]))
    assert (await engine.get(b"three")).content == content


async def test_a_refused_change_leaves_nothing_behind(engine: VolumeEngine) -> None:
    await engine.put(b"key", [b"kept" * 300], legal_hold=True)
    before = await engine.head(b"key")
    outcomes = await asyncio.gather(
        engine.put(b"key", [b"other" * 300]),
        engine.delete(b"key"),
        engine.put(b"next", [b"other" * 300]),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes[:2]] == [ObjectLockedError] * 2
    after = await engine.head(b"next")
    assert after.sequence == before.sequence + 1, "refusals use no number"
    assert (await engine.head(b"key")) == before


async def test_retention_is_kept_until_its_date_and_only_extended(tmp_path: Path) -> None:
    clock = SetClock(1000)
    opened = await open_small(str(tmp_path), clock=clock)
    engine = opened.engine
    await engine.put(b"g", [b"x"], retention=(RetentionMode.GOVERNANCE, 5000))
    await engine.put(b"c", [b"x"], retention=(RetentionMode.COMPLIANCE, 5000))
    with pytest.raises(ObjectLockedError):
        await engine.delete(b"c", bypass_governance=True)
    with pytest.raises(ObjectLockedError):
        await engine.change_lock(b"c", retention=(RetentionMode.COMPLIANCE, 4000))
    with pytest.raises(ObjectLockedError):
        await engine.change_lock(b"g", retention=(None, 0))
    await engine.change_lock(b"g", retention=(None, 0), bypass_governance=True)
    await engine.delete(b"g")
    await engine.change_lock(b"c", retention=(RetentionMode.COMPLIANCE, 9000))
    clock.ms = 8999
    with pytest.raises(ObjectLockedError):
        await engine.put(b"c", [b"y"])
    clock.ms = 9000
    await engine.put(b"c", [b"y"])
    await engine.check()
    await opened.close()


async def test_markers_of_the_empty_id_take_the_place_of_the_version_without_an_id(
    engine: VolumeEngine,
) -> None:
    await engine.put(b"key", [b"null"])
    await engine.put(b"key", [b"one"], version_id="1")
    await engine.delete(b"key", marker_id="")
    with pytest.raises(ObjectNotFoundError):
        await engine.get(b"key")
    assert [one.version_id for one in await engine.list_versions(b"key")] == ["", "1"]
    await engine.delete(b"key", version_id="")
    assert (await engine.get(b"key")).content == b"one"


async def test_what_can_never_be_stored_is_refused_in_words(engine: VolumeEngine) -> None:
    for key in (b"", b"a\0b", b"x" * 5000):
        with pytest.raises(InvalidRequestError):
            await engine.put(key, [b""])
    for bad in ({"etag": "e" * 70_000}, {"version_id": ""}, {"metadata": {"a": "\ud800"}}):
        with pytest.raises(InvalidRequestError):
            await engine.put(b"key", [b""], **bad)
    with pytest.raises(InvalidRequestError):
        await engine.put(b"key", [b""], retention=(RetentionMode.COMPLIANCE, -1))
    with pytest.raises(InvalidRequestError):
        await engine.delete(b"key", marker_id="x" * 5000)
    assert list(await engine.list(b"", limit=10)) == []


@pytest.mark.parametrize("seed", range(3))
def test_readers_never_miss_a_version_while_others_come_and_go(seed: int) -> None:
    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        opened = await open_small(
            "/machine/engine", files=disk.mount("one"), open_index=lambda _: index
        )
        engine = opened.engine
        await engine.put(b"key", [b"kept" * 300], version_id="kept")
        done = False

        async def change() -> None:
            nonlocal done
            for number in range(60):
                await engine.put(b"key", [b"%d" % number * 300], version_id=f"v{number}")
                if number % 2:
                    await engine.delete(b"key", version_id=f"v{number}")
                    await engine.delete(b"key", version_id=f"v{number - 1}")
                await engine.put(b"same", [b"ab"[number % 2 : number % 2 + 1] * 1000])
            done = True

        async def read() -> None:
            await engine.put(b"same", [b"a" * 1000])
            while not done:
                assert (await engine.get(b"key", version_id="kept")).content == b"kept" * 300
                assert (await engine.list_versions(b"key"))[-1].version_id == "kept"
                assert (await engine.get(b"same")).content in (b"a" * 1000, b"b" * 1000)
                await asyncio.sleep(0.0003)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change())
            for _ in range(3):
                tasks.create_task(read())
        await engine.check()
        await opened.close()

    run_simulation(seed, main)


def test_the_database_has_what_was_committed_although_the_line_is_never_empty() -> None:
    async def main(loop: SimLoop) -> None:
        disk, database = SimulatedDisk(), MemoryIndex()
        settings = replace(SMALL, index_buffer_rows=1_000_000, index_delay_seconds=0.25)
        opened = await open_small(
            "/machine/volumes",
            files=disk.mount("writer"),
            open_index=lambda _: database,
            settings=settings,
        )
        engine = opened.engine
        await engine.put(b"root", [b"1"])
        stop = asyncio.Event()
        loop.executor_delay = lambda random: 0.005 + 0.005 * random.random()

        async def change(random: Random) -> None:
            while not stop.is_set():
                # At any time: so some always join while a group is under way.
                await asyncio.sleep(random.random() * 0.01)
                await engine.delete(b"nothing")

        async with asyncio.TaskGroup() as tasks:
            for seed in range(100):
                tasks.create_task(change(Random(seed)))
            begin = loop.time()
            while database.get(current_key(b"root")) is None:
                assert loop.time() < begin + 2.0, "nobody beside the process has ever seen it"
                await asyncio.sleep(0.05)
            stop.set()
        await opened.close()

    run_simulation(1, main)
