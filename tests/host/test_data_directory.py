import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from segmentstore.host.data_directory import (
    DataDirectory,
    DataDirectoryCorruptedError,
    DataDirectoryError,
    DataDirectoryInUseError,
    DirectoryIdentity,
    LogPlace,
    decode_identity,
    decode_log_place,
    encode_identity,
    encode_log_place,
)
from segmentstore.runtime.files import FileSystem, SystemFileSystem
from tests.sim.disk import Boundary, SimulatedDisk
from tests.sim.power_cuts import power_cut_images

GOLDEN = Path(__file__).parent / "golden" / "identity_v1.txt"


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def directory(path: Path, files: FileSystem | None = None) -> DataDirectory:
    return DataDirectory(
        str(path),
        files=files or SystemFileSystem(),
        executor=None,
        random=Random(7),
        wall_clock=FixedClock(),
        process_id=os.getpid(),
    )


async def open_once(path: Path, count: int | None = None) -> DirectoryIdentity:
    data = directory(path)
    try:
        return await data.open(container_count=count, default_count=4)
    finally:
        await data.close()


async def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    first = await open_once(path)
    assert first.container_count == 4
    assert len(first.store_id) == 16
    assert await open_once(path) == first


async def test_h62_another_container_count_is_refused_with_a_sentence(tmp_path: Path) -> None:
    await open_once(tmp_path / "data", 8)
    with pytest.raises(DataDirectoryError, match=r"fixed when it is created.*container_count=8"):
        await open_once(tmp_path / "data", 4)
    assert (await open_once(tmp_path / "data", 8)).container_count == 8


async def test_h62_who_asks_for_no_count_gets_the_one_that_is_fixed(tmp_path: Path) -> None:
    await open_once(tmp_path / "data", 8)
    assert (await open_once(tmp_path / "data")).container_count == 8


async def test_a_second_opening_is_refused_while_the_first_lasts(tmp_path: Path) -> None:
    holder = directory(tmp_path)
    await holder.open(container_count=None, default_count=4)
    with pytest.raises(DataDirectoryInUseError, match=f"process_id={os.getpid()}"):
        await open_once(tmp_path)
    await holder.close()
    await open_once(tmp_path)


async def test_a_refused_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    await open_once(tmp_path, 8)
    refused = directory(tmp_path)
    with pytest.raises(DataDirectoryError):
        await refused.open(container_count=3, default_count=4)
    await open_once(tmp_path)


async def test_a_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataDirectoryError, match=r"found=thesis\.tex"):
        await open_once(tmp_path)


async def test_a_store_that_lost_its_identity_is_not_given_a_new_one(tmp_path: Path) -> None:
    await open_once(tmp_path)
    (tmp_path / "tier1").mkdir()
    (tmp_path / "identity").unlink()
    with pytest.raises(DataDirectoryError, match="bring the identity file back"):
        await open_once(tmp_path)


async def test_a_path_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        await open_once(tmp_path / "data")


def test_the_identity_is_written_as_the_golden_sample() -> None:
    identity = DirectoryIdentity(bytes(range(16)), 4, 1_700_000_000_000)
    assert encode_identity(identity) == GOLDEN.read_bytes()
    assert decode_identity(GOLDEN.read_bytes(), "x") == identity


def test_a_flip_of_any_byte_of_the_identity_is_noticed() -> None:
    sound = GOLDEN.read_bytes()
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1
        with pytest.raises(DataDirectoryCorruptedError):
            decode_identity(bytes(damaged), "x")


def test_every_shortened_identity_is_noticed() -> None:
    sound = GOLDEN.read_bytes()
    for length in range(len(sound)):
        with pytest.raises(DataDirectoryCorruptedError):
            decode_identity(sound[:length], "x")


async def open_on(disk: SimulatedDisk) -> DirectoryIdentity:
    data = directory(Path("/data"), disk.mount("again"))
    identity = await data.open(container_count=5, default_count=4)
    await data.close()
    return identity


async def test_a_power_cut_at_any_moment_of_the_first_start_leaves_a_usable_directory() -> None:
    disk, random = SimulatedDisk(), Random(1)
    images: list[SimulatedDisk] = []

    def keep_images(_: Boundary) -> None:
        images.extend(image for _, image in power_cut_images(disk, random, subsets=5))

    disk.on_boundary = keep_images
    data = directory(Path("/data"), disk.mount("first"))
    await data.open(container_count=5, default_count=4)
    assert len(images) > 30
    for image in images:
        assert (await open_on(image)).container_count == 5


async def test_an_identity_that_was_given_out_survives_every_power_cut() -> None:
    disk = SimulatedDisk()
    first = directory(Path("/data"), disk.mount("first"))
    given = await first.open(container_count=5, default_count=4)
    for _, image in power_cut_images(disk, Random(2), subsets=20):
        assert await open_on(image) == given


async def test_a_restored_identity_survives_every_power_cut() -> None:
    disk = SimulatedDisk()
    given = DirectoryIdentity(bytes(range(16)), 5, 1)
    first = directory(Path("/data"), disk.mount("first"))
    await first.hold()
    await first.adopt(given, log_place=None)
    for _, image in power_cut_images(disk, Random(3), subsets=20):
        assert await open_on(image) == given


async def test_a_directory_is_not_restored_as_another_store(tmp_path: Path) -> None:
    await open_once(tmp_path)
    other = directory(tmp_path)
    await other.hold()
    with pytest.raises(DataDirectoryError, match="belongs to another store"):
        await other.adopt(DirectoryIdentity(bytes(16), 4, 1), log_place=None)
    await other.close()
    await open_once(tmp_path)


GIVEN = DirectoryIdentity(bytes(range(16)), 5, 1)
ELSEWHERE = LogPlace("bookkeeper://127.0.0.1:2181/ledgers", "/segmentstore")


async def test_a_directory_never_has_an_identity_without_the_place_of_its_logs() -> None:
    disk, random = SimulatedDisk(), Random(4)
    images: list[SimulatedDisk] = []

    def keep_images(_: Boundary) -> None:
        images.extend(image for _, image in power_cut_images(disk, random, subsets=5))

    disk.on_boundary = keep_images
    first = directory(Path("/data"), disk.mount("first"))
    await first.hold()
    await first.adopt(GIVEN, log_place=ELSEWHERE)
    with_place = 0
    for image in images:
        again = directory(Path("/data"), image.mount("again"))
        await again.hold()
        place, identity = await again.log_place(), await again.find_identity()
        assert (place, identity) in ((None, None), (ELSEWHERE, None), (ELSEWHERE, GIVEN))
        with_place += place is not None
        await again.adopt(GIVEN, log_place=ELSEWHERE)
        assert await again.find_identity() == GIVEN
        await again.close()
    assert with_place > 10


async def test_a_directory_with_nothing_but_a_tier_2_takes_an_identity_from_elsewhere(
    tmp_path: Path,
) -> None:
    (tmp_path / "tier2").mkdir()
    (tmp_path / "tier2" / "object").write_text("")
    data = directory(tmp_path)
    await data.hold()
    assert await data.find_identity() is None
    assert await data.has_tier2()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataDirectoryError, match=r"found=thesis\.tex"):
        await data.find_identity()
    await data.close()


async def test_the_place_of_the_logs_follows_a_cluster_that_moved(tmp_path: Path) -> None:
    data = directory(tmp_path)
    await data.hold()
    await data.adopt(GIVEN, log_place=ELSEWHERE)
    moved = LogPlace("bookkeeper://zk2:2181/ledgers", "/segmentstore")
    await data.adopt(GIVEN, log_place=moved)
    assert await data.log_place() == moved
    assert await data.find_identity() == GIVEN
    assert not await data.has_logs()
    await data.close()


def test_the_place_of_the_logs_is_written_as_the_golden_sample() -> None:
    golden = (GOLDEN.parent / "log_place_v1.txt").read_bytes()
    assert encode_log_place(ELSEWHERE) == golden
    assert decode_log_place(golden, "x") == ELSEWHERE
    for position in range(len(golden)):
        damaged = bytearray(golden)
        damaged[position] ^= 1
        with pytest.raises(DataDirectoryCorruptedError, match="the place of the logs is damaged"):
            decode_log_place(bytes(damaged), "x")


HOLD = """
import asyncio, os, sys
from random import Random
from segmentstore.host.data_directory import DataDirectory
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
data = DataDirectory(sys.argv[1], files=SystemFileSystem(), executor=None, random=Random(1),
                     wall_clock=SystemWallClock(), process_id=os.getpid())
asyncio.run(data.open(container_count=None, default_count=4))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.integration
async def test_another_process_holds_the_directory_also_when_it_is_stopped(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(DataDirectoryInUseError, match=f"process_id={process.pid}"):
            await open_once(tmp_path)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(DataDirectoryInUseError, match=f"process_id={process.pid}"):
            await open_once(tmp_path)
        process.send_signal(signal.SIGCONT)


@pytest.mark.integration
async def test_a_killed_process_leaves_the_directory_to_the_next(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        await open_once(tmp_path)
