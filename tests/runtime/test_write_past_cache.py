"""Long stretches of a file that go past the system's cache."""

import errno
import fcntl
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import PAGE_BYTES, DirectWriter, SystemFile, SystemFileSystem

CONTENT = Random(1).randbytes(5 << 20)


class RefusedWriter(DirectWriter):
    """As on a file system that only writes through its cache."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def write(self, descriptor: int, offset: int, buffers: Sequence[BufferView]) -> None:
        self.calls += 1
        raise OSError(errno.EINVAL, "no direct writes here")


def new_file(tmp_path: Path) -> SystemFile:
    return SystemFileSystem().open(str(tmp_path / "file"), create=True)


def cut(content: bytes, random: Random) -> list[BufferView]:
    """The content in pieces, some of them empty, some of them views."""
    places = sorted(random.randrange(len(content) + 1) for _ in range(random.randrange(6)))
    bounds = [0, *places, len(content)]
    pieces = [content[a:b] for a, b in itertools.pairwise(bounds)]
    return [memoryview(piece) if random.random() < 0.5 else piece for piece in pieces]


@pytest.mark.parametrize("seed", range(30))
def test_any_stretch_reads_back_between_its_neighbours(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    file = new_file(tmp_path)
    before = CONTENT[: random.choice([0, 1, PAGE_BYTES, random.randrange(3 * PAGE_BYTES)])]
    length = random.choice([0, 1, PAGE_BYTES, random.randrange(20_000), random.randrange(5 << 20)])
    stretch = CONTENT[-length:] if length else b""
    file.write_at(0, [before])
    file.write_direct(len(before), cut(stretch, random))
    file.write_at(len(before) + length, [b"after"])
    file.write_direct(len(before) + length + 5, cut(CONTENT[:9000], random))
    file.sync_data()
    whole = before + stretch + b"after" + CONTENT[:9000]
    assert file.size() == len(whole)
    assert file.read_at(0, len(whole) + 1) == whole
    file.drop_page_cache()
    assert file.read_at(0, len(whole) + 1) == whole
    file.close()


def test_the_file_writes_through_the_cache_again_afterwards(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.write_direct(0, [CONTENT])
    descriptor = file.release()
    assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
    os.close(descriptor)
    file.close()


def test_a_file_system_without_direct_writes_is_asked_once(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    writer = file.direct = RefusedWriter()
    for start in (0, len(CONTENT)):
        file.write_direct(start, [CONTENT])
    assert file.read_at(0, 3 * len(CONTENT)) == 2 * CONTENT
    assert writer.calls == 1
    file.close()


def test_an_error_of_the_disk_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    file = SystemFile(os.open(path, os.O_RDONLY))
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_direct(0, [CONTENT])
    file.close()
