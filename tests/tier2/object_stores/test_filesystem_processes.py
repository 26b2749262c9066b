"""Real processes that share one directory."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from random import Random

import pytest

from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.object_key_suite import listed
from tier2.object_stores.filesystem import FilesystemObjectStore

PROJECT = Path(__file__).parents[3]
PROCESSES = 4

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def started(root: Path) -> FilesystemObjectStore:
    store = FilesystemObjectStore(
        str(root), files=SystemFileSystem(), executor=None, random=Random(99)
    )
    await store.start()
    return store


async def spawned(root: Path, seed: int, verb: str, count: int) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.tier2.object_stores.racing_process",
        str(root),
        str(seed),
        verb,
        str(count),
        stdout=PIPE,
        cwd=PROJECT,
    )


async def outputs(root: Path, verb: str, count: int) -> list[list[str]]:
    processes = [await spawned(root, seed, verb, count) for seed in range(PROCESSES)]
    lines = []
    for process in processes:
        output, _ = await process.communicate()
        assert process.returncode == 0
        lines.append(output.decode().split())
    return lines


async def test_b3_of_racing_processes_one_creates_each_object(tmp_path: Path) -> None:
    created = await outputs(tmp_path / "store", "create", 200)
    store = await started(tmp_path / "store")
    for number in range(200):
        winners = [seed for seed, numbers in enumerate(created) if str(number) in numbers]
        assert len(winners) == 1
        assert (await store.get(f"race/{number}")).content == b"process %d" % winners[0]
    await store.close()


async def test_h11_no_update_of_racing_processes_is_lost(tmp_path: Path) -> None:
    store = await started(tmp_path / "store")
    await store.put_if_absent("counter", b"0")
    won = await outputs(tmp_path / "store", "count", 60)
    assert won == [["60"]] * PROCESSES
    assert (await store.get("counter")).content == b"%d" % (60 * PROCESSES)
    await store.close()


async def test_h11_a_killed_process_leaves_whole_objects_and_no_temporary_file(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    done: list[str] = []
    for seed in range(6):
        process = await spawned(root, seed, "put", 100_000)
        assert process.stdout is not None
        said = b""
        for _ in range(3 + seed):
            said += await process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        said += await process.stdout.read()
        done += said.decode().split()
        await process.wait()
    store = await started(root)
    found = [info.key for info in await listed(store, "objects/")]
    assert set(done) <= set(found)
    for key in found:
        content = (await store.get(key)).content
        assert content == key[-6:].encode() * 50_000, f"{key} is not whole"
    assert [path.name for path in (root / "temporary").iterdir() if "-" in path.name] == []
    await store.close()
