"""Both indexes keep the promises of the door; the one in LMDB also through kill -9."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.volumes.index_database_suite import IndexDatabaseSuite
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index_database import BufferedIndex, IndexDatabase, LmdbIndex

_WRITER = """
import sys
from tier2.volumes.index_database import LmdbIndex
index = LmdbIndex(sys.argv[1])
number = 0
while True:
    number += 1
    index.apply([(b"count", b"%d" % number), (b"twin", b"%d" % number), (b"k%d" % number, b"x" * 500)])
    print(number, flush=True)
"""


class TestIndexInMemory(IndexDatabaseSuite):
    @pytest.fixture
    def index(self) -> IndexDatabase:
        return MemoryIndex()

    @pytest.fixture
    def reopened(self) -> Callable[[IndexDatabase], IndexDatabase]:
        return lambda index: index

    def test_d2_a_power_cut_takes_a_suffix_of_the_unsynced_batches(self) -> None:
        kept = set()
        for seed in range(40):
            index = MemoryIndex()
            index.apply([(b"a", b"0"), (b"b", b"0")])
            index.sync()
            for number in range(1, 4):
                index.apply([(b"a", b"%d" % number), (b"b", b"%d" % number)])
            index.lose_unsynced(Random(seed))
            assert index.get(b"a") == index.get(b"b")
            kept.add(index.get(b"a"))
        assert kept == {b"0", b"1", b"2", b"3"}


class TestBufferedIndex(IndexDatabaseSuite):
    @pytest.fixture
    def database(self) -> MemoryIndex:
        return MemoryIndex()

    @pytest.fixture
    def index(self, database: MemoryIndex) -> IndexDatabase:
        return BufferedIndex(database, rows_max=7, bytes_max=1 << 20)

    @pytest.fixture
    def reopened(self, database: MemoryIndex) -> Callable[[IndexDatabase], IndexDatabase]:
        return lambda index: database


class TestIndexInLmdb(IndexDatabaseSuite):
    @pytest.fixture
    def directory(self, tmp_path: Path) -> str:
        path = tmp_path / "index"
        path.mkdir()
        return str(path)

    @pytest.fixture
    def index(self, directory: str) -> Iterator[IndexDatabase]:
        index = LmdbIndex(directory)
        yield index
        index.close()

    @pytest.fixture
    def reopened(self, directory: str) -> Callable[[IndexDatabase], IndexDatabase]:
        def reopen(index: IndexDatabase) -> IndexDatabase:
            index.close()
            return LmdbIndex(directory)

        return reopen

    def test_d2_kill_9_loses_no_applied_batch(self, directory: str) -> None:
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, directory], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        applied = 0
        while applied < 300:
            applied = int(writer.stdout.readline())
        writer.kill()
        writer.stdout.close()
        writer.wait()
        index = LmdbIndex(directory)
        count = int(index.get(b"count") or b"0")
        assert count >= applied
        assert index.get(b"twin") == b"%d" % count
        assert index.get(b"k%d" % count) == b"x" * 500
        index.close()

    def test_a_file_that_is_no_database_is_reported_as_damage(self, tmp_path: Path) -> None:
        path = tmp_path / "bad"
        path.mkdir()
        (path / "data.mdb").write_bytes(b"nonsense" * 4000)
        with pytest.raises(CorruptedDataError):
            LmdbIndex(str(path))


def test_long_keys_with_one_front_are_scanned_in_order_and_in_little_memory(
    tmp_path: Path,
) -> None:
    random, front = Random(1), b"f" * 400
    keys = [front, front + b"\x00", front[:-1], b"g", *(b"a%d" % number for number in range(5))]
    keys += [front + random.randbytes(random.choice([1, 2, 40])) for _ in range(3000)]
    rows = [(key, b"%d" % number * 300) for number, key in enumerate(keys)]
    index, model = LmdbIndex(str(tmp_path)), MemoryIndex()
    for one in (index, model):
        one.apply(rows)
    bounds = [b"", front, front + b"\x7f", front + b"\x7f\x01", b"h"]
    for first in bounds:
        for before in bounds:
            for limit in (1, 2, 7, 100, 5000):
                found = index.scan(first, before, limit)
                assert found == list(model.scan(first, before, limit))
    tracemalloc.start()
    index.scan(b"", b"h", 20)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < sum(len(value) for _, value in rows) / 10
    index.close()
