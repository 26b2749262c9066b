import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.identifiers import BufferView
from segmentstore.host.data_directory import (
    DataDirectory,
    DataDirectoryCorruptedError,
    DataDirectoryError,
    DataDirectoryInUseError,
    DirectoryIdentity,
    decode_identity,
    encode_identity,
)
from segmentstore.runtime.files import File, FileSystem, SystemFileSystem

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


class KilledError(BaseException):
    """The process ends here."""


class DyingFileSystem(SystemFileSystem):
    """Ends the process before its n-th call."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def _count(self) -> None:
        self._calls -= 1
        if self._calls < 0:
            raise KilledError

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> File:  # type: ignore[override] # a wrapped file
        self._count()
        return DyingFile(super().open(path, create=create, exclusive=exclusive), self)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)


class DyingFile:
    def __init__(self, file: File, files: DyingFileSystem) -> None:
        self._file = file
        self._files = files
        self.size = file.size
        self.read_at = file.read_at
        self.lock_exclusive = file.lock_exclusive
        self.close = file.close

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._files._count()
        self._file.write_at(offset, buffers)

    def truncate(self, size: int) -> None:
        self._files._count()
        self._file.truncate(size)

    def sync_data(self) -> None:
        self._files._count()
        self._file.sync_data()


async def test_a_process_killed_at_any_call_of_the_first_start_leaves_a_usable_directory(
    tmp_path: Path,
) -> None:
    deaths = 0
    for calls in range(100):
        path = tmp_path / str(calls)
        dying = directory(path, DyingFileSystem(calls))
        try:
            await dying.open(container_count=5, default_count=4)
        except KilledError:
            deaths += 1
        else:
            await dying.close()
            break
        assert (await open_once(path, 5)).container_count == 5
    assert deaths >= 8


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
