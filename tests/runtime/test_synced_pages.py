"""Single pages that are written past the system's cache and synced by one call."""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import PAGE_BYTES, SyncedPageWriter, SystemFile, SystemFileSystem

PAGES = 16


def open_descriptors(path: Path) -> int:
    """Of that file: others come and go with what else is in this process, and with its garbage."""
    return sum(each.resolve() == path.resolve() for each in Path("/proc/self/fd").iterdir())


class Writes:
    """The system's vectored writes and syncs: noted, and refused or cut short when they go past the cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.past_cache: list[int] = []
        """Flags of those that went past it."""
        self.through_cache = 0
        self.syncs = 0
        self.refusal = 0
        self.bytes_max = PAGE_BYTES
        self._write, self._sync = os.pwritev, os.fdatasync
        monkeypatch.setattr(os, "pwritev", self._note_write)
        monkeypatch.setattr(os, "fdatasync", self._note_sync)

    def _note_write(
        self, descriptor: int, buffers: Sequence[BufferView], offset: int, flags: int = 0
    ) -> int:
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            self.through_cache += 1
            return self._write(descriptor, buffers, offset, flags)
        self.past_cache.append(flags)
        if self.refusal:
            raise OSError(self.refusal, os.strerror(self.refusal))
        if self.bytes_max < PAGE_BYTES:
            # Through the cache: what fraction of a page goes past it depends on the disk.
            begun = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
            try:
                return os.pwrite(begun, buffers[0][: self.bytes_max], offset)
            finally:
                os.close(begun)
        return self._write(descriptor, buffers, offset, flags)

    def _note_sync(self, descriptor: int) -> None:
        self.syncs += 1
        self._sync(descriptor)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SystemFile]:
    file = SystemFileSystem().open(str(tmp_path / "file"), create=True)
    file.write_at(0, [bytes(PAGES * PAGE_BYTES)])
    file.sync_data()
    try:
        SyncedPageWriter(file._descriptor).close()
    except OSError as error:
        pytest.skip(f"no direct writes on the file system of {tmp_path}: {error}")
    yield file
    file.close()


def test_a_whole_page_goes_past_the_cache_and_is_synced_by_the_same_call(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(monkeypatch)
    page = Random(1).randbytes(PAGE_BYTES)
    file.write_synced(PAGE_BYTES, [page])
    assert writes.past_cache == [os.RWF_DSYNC]
    assert (writes.through_cache, writes.syncs) == (0, 0)
    assert file.read_at(0, 3 * PAGE_BYTES) == bytes(PAGE_BYTES) + page + bytes(PAGE_BYTES)


@pytest.mark.parametrize(
    ("offset", "lengths"),
    [
        (1, [PAGE_BYTES]),
        (0, [PAGE_BYTES - 1]),
        (0, [2 * PAGE_BYTES]),
        (0, [1, PAGE_BYTES - 1]),
        (0, []),
    ],
)
def test_nothing_else_goes_past_the_cache(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch, offset: int, lengths: list[int]
) -> None:
    writes = Writes(monkeypatch)
    file.write_synced(offset, [b"x" * length for length in lengths])
    assert not writes.past_cache
    assert file.read_at(offset, sum(lengths)) == b"x" * sum(lengths)


@pytest.mark.parametrize("seed", range(20))
def test_pages_past_the_cache_and_bytes_through_it_are_one_file(
    file: SystemFile, seed: int
) -> None:
    random = Random(seed)
    expected = bytearray(PAGES * PAGE_BYTES)
    for _ in range(60):
        page = random.randrange(PAGES)
        start = page * PAGE_BYTES
        length = PAGE_BYTES
        kind = random.randrange(4)
        if kind < 2:
            content = random.randbytes(PAGE_BYTES)
            file.write_synced(start, [content])
        elif kind == 2:
            start += random.randrange(PAGE_BYTES)
            length = random.randrange(1, len(expected) - start + 1)
            content = random.randbytes(length)
            file.write_at(start, [content])
        else:
            length = (random.randrange(PAGES - page) + 1) * PAGE_BYTES
            content = random.randbytes(length)
            file.write_direct(start, [content])
        expected[start : start + length] = content
        at = random.randrange(len(expected))
        assert file.read_at(at, 9000) == expected[at : at + 9000]
    file.sync_data()
    file.drop_page_cache()
    assert file.read_at(0, len(expected) + 1) == expected


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_such_writes_are_refused_the_cache_is_used_and_they_are_not_tried_again(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    writes = Writes(monkeypatch)
    writes.refusal = refusal
    for page in range(3):
        file.write_synced(page * PAGE_BYTES, [b"%d" % page * PAGE_BYTES])
    assert len(writes.past_cache) == 1
    assert writes.through_cache == 3
    assert file.read_at(PAGE_BYTES - 1, 2) == b"01"


def test_a_file_that_cannot_be_opened_for_such_writes_uses_the_cache(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0

    def refuse(*_: object) -> int:
        nonlocal opened
        opened += 1
        raise FileNotFoundError(errno.ENOENT, "no /proc")

    writes = Writes(monkeypatch)
    monkeypatch.setattr(os, "open", refuse)
    for page in range(2):
        file.write_synced(page * PAGE_BYTES, [b"%d" % page * PAGE_BYTES])
    assert opened == 1
    assert (len(writes.past_cache), writes.through_cache) == (0, 2)
    assert file.read_at(PAGE_BYTES - 1, 2) == b"01"


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC])
def test_h48_a_page_that_fails_is_not_written_another_way(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    writes = Writes(monkeypatch)
    writes.refusal = failure
    with pytest.raises(OSError, match=os.strerror(failure)):
        file.write_synced(0, [b"x" * PAGE_BYTES])
    assert (writes.through_cache, writes.syncs) == (0, 0)


def test_a_page_that_is_cut_short_is_completed_and_synced(
    file: SystemFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(monkeypatch)
    writes.bytes_max = PAGE_BYTES // 2
    page = Random(2).randbytes(PAGE_BYTES)
    synced: list[bytes] = []
    monkeypatch.setattr(
        SystemFile, "sync_data", lambda self: synced.append(self.read_at(0, PAGE_BYTES))
    )
    file.write_synced(0, [page])
    assert len(writes.past_cache) == 1
    assert synced == [page], "not synced, or not behind its last byte"
    assert file.read_at(0, PAGE_BYTES) == page


def test_pages_of_several_threads_do_not_mix(file: SystemFile) -> None:
    def write(number: int) -> None:
        for round_ in range(40):
            content = bytes([number * 40 + round_]) * PAGE_BYTES
            file.write_synced(number * PAGE_BYTES, [content])
            assert file.read_at(number * PAGE_BYTES, PAGE_BYTES) == content

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(write, range(6)))


@pytest.mark.parametrize("released", [False, True])
def test_closing_the_file_closes_what_such_writes_need(
    file: SystemFile, tmp_path: Path, *, released: bool
) -> None:
    path = tmp_path / "file"
    assert open_descriptors(path) == 1
    file.write_synced(0, [b"x" * PAGE_BYTES])
    assert open_descriptors(path) == 2
    if released:
        descriptor = file.release()
        assert open_descriptors(path) == 1
        os.close(descriptor)
    file.close()
    assert open_descriptors(path) == 0


def test_a_file_that_is_only_read_is_not_written_by_the_way_round(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE_BYTES))
    file = SystemFile(os.open(path, os.O_RDONLY))
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_synced(0, [b"x" * PAGE_BYTES])
    file.close()
    assert path.read_bytes() == bytes(PAGE_BYTES)
