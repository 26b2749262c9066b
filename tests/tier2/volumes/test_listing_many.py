"""Listings read what they show, a page at a time, however much lies in between."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index_database import Row


class CountingIndex(MemoryIndex):
    scans = 0

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        self.scans += 1
        return super().scan(first, before, limit)


@pytest.fixture
def index() -> CountingIndex:
    return CountingIndex()


@pytest.fixture
async def engine(tmp_path: Path, index: CountingIndex) -> AsyncIterator[VolumeEngine]:
    opened = await open_small(str(tmp_path), open_index=lambda _: index, settings=SMALL)
    yield opened.engine
    await opened.close()


async def test_a_few_objects_behind_many_markers_are_found_in_a_few_scans(
    engine: VolumeEngine, index: CountingIndex
) -> None:
    keys = [b"a%03d" % number for number in range(20)] + [b"z%03d" % number for number in range(3)]
    for key in keys:
        await engine.put(key, [key])
    for number in range(1000):
        await engine.delete(b"m%03d" % number, marker_id="1")
    for limit in (1, 20, 21, 22, 23, 24):
        index.scans = 0
        listed = await engine.list(b"", limit=limit)
        assert [one.key for one in listed] == keys[:limit]
        assert index.scans <= 10
    index.scans = 0
    assert [one.key for one in await engine.list(b"", start_after=b"b", limit=1)] == [b"z000"]
    assert index.scans <= 12
