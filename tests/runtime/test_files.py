"""The system's own files, where they do more than pass a call on."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import (
    LockHeldError,
    SystemFileSystem,
    create_whole,
    lock_file,
    remove_unfinished,
)
from tests.sim.disk import SimulatedDisk
from tests.sim.power_cuts import power_cut_images

PIECES: list[BufferView] = [b"one", memoryview(b"two"), b"three"]
JOINED = b"onetwothree"


def written(directory: Path, pieces: Sequence[BufferView] = PIECES) -> bytes:
    """What a file holds after a synced write at offset 2."""
    path = directory / "file"
    file = SystemFileSystem().open(str(path), create=True)
    file.write_at(0, [b"--"])
    file.write_synced(2, pieces)
    file.close()
    return path.read_bytes()


def test_a_synced_write_puts_all_buffers_at_its_offset(tmp_path: Path) -> None:
    assert written(tmp_path) == b"--" + JOINED


def test_a_synced_write_takes_more_buffers_than_one_call_of_the_system(tmp_path: Path) -> None:
    assert written(tmp_path, [b"%04d" % number for number in range(3000)])[2:] == b"".join(
        b"%04d" % number for number in range(3000)
    )


def test_a_file_is_read_into_given_memory_up_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(JOINED)
    file = SystemFileSystem().open(str(tmp_path / "file"))
    memory = bytearray(b"." * 20)
    assert file.read_into(3, memoryview(memory)[2:]) == len(JOINED) - 3
    assert bytes(memory[:11]) == b"..twothree."
    assert file.read_into(0, memoryview(memory)[:3]) == 3
    assert bytes(memory[:4]) == b"onew"
    file.close()


def test_a_short_read_into_memory_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(JOINED)
    whole = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda number, buffers, offset: whole(number, [buffers[0][:4]], offset)
    )
    file = SystemFileSystem().open(str(tmp_path / "file"))
    memory = bytearray(20)
    assert file.read_into(0, memoryview(memory)) == len(JOINED)
    assert memory[: len(JOINED)] == JOINED
    file.close()


class Descriptors:
    """The system's calls: counted, and the vectored write as asked for."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, refuses: int = 0, short: bool = False
    ) -> None:
        self.syncs = self.refusals = 0
        self._refuses = refuses
        self._short = short
        self._write, self._sync = os.pwritev, os.fdatasync
        monkeypatch.setattr(os, "pwritev", self.write)
        monkeypatch.setattr(os, "fdatasync", self.sync)

    def write(
        self, descriptor: int, buffers: Sequence[BufferView], offset: int, flags: int = 0
    ) -> int:
        if flags and self._refuses:
            self.refusals += 1
            raise OSError(self._refuses, os.strerror(self._refuses))
        if flags and self._short:
            return self._write(descriptor, [buffers[0][:2]], offset, flags)
        return self._write(descriptor, buffers, offset, flags)

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        self._sync(descriptor)


def test_where_the_system_refuses_synced_writes_two_calls_do_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Descriptors(monkeypatch, refuses=errno.EOPNOTSUPP)
    file = SystemFileSystem().open(str(tmp_path / "file"), create=True)
    file.write_synced(0, PIECES)
    file.write_synced(len(JOINED), PIECES)
    file.close()
    assert (tmp_path / "file").read_bytes() == 2 * JOINED
    assert calls.syncs == 2
    assert calls.refusals <= 1, "asked again although it was refused"


def test_a_short_synced_write_is_continued_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Descriptors(monkeypatch, short=True)
    assert written(tmp_path) == b"--" + JOINED
    assert calls.syncs == 1


def test_a_synced_write_that_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Descriptors(monkeypatch, refuses=errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        written(tmp_path)


def test_a_file_made_whole_outlives_a_power_cut_and_is_never_replaced() -> None:
    disk = SimulatedDisk()
    files = disk.mount("maker")
    files.make_directories("/d")
    create_whole(files, "/d/f", b"x" * 10_000, random=Random(1))
    with pytest.raises(FileExistsError):
        create_whole(files, "/d/f", b"other", random=Random(2))
    for kind, image in power_cut_images(disk, Random(3), subsets=10):
        left = image.mount("reader")
        remove_unfinished(left, "/d")
        assert left.list("/d") == ["f"], kind
        assert left.open("/d/f").read_at(0, 20_000) == b"x" * 10_000, kind


def test_a_lock_says_who_holds_it_and_is_free_when_its_file_is_closed(tmp_path: Path) -> None:
    files, path = SystemFileSystem(), str(tmp_path / "lock")
    first = lock_file(files, path, holder="the first one")
    with pytest.raises(LockHeldError) as caught:
        lock_file(files, path, holder="another")
    assert caught.value.holder == "the first one"
    first.close()
    lock_file(files, path, holder="another").close()
    assert (tmp_path / "lock").read_text() == "another\n"
