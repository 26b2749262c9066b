"""Verification beside whoever writes: what is not whole yet is no damage."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from segmentstore.runtime.files import SystemFileSystem
from tests.tier2.volumes.engines import open_small, small_engine
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index import CURRENT
from tier2.volumes.index_database import Row
from tier2.volumes.verification import Verification
from tier2.volumes.volume_files import VolumeFiles, engine_identity


class PausingIndex(MemoryIndex):
    """Holds whoever begins to look at all objects, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = threading.Event()
        self.go_on = threading.Event()

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        if first == CURRENT:
            self.looking.set()
            assert self.go_on.wait(60)
        return super().scan(first, before, limit)


async def test_a_volume_that_grows_while_it_is_verified_is_not_damaged(tmp_path: Path) -> None:
    index = PausingIndex()
    with ThreadPoolExecutor(4) as executor:
        opened = await open_small(str(tmp_path), open_index=lambda _: index, executor=executor)
        await opened.engine.put(b"before", [b"x" * 1000])
        verifying = asyncio.create_task(opened.engine.verify(deep=True))
        await asyncio.to_thread(index.looking.wait, 60)
        await opened.engine.put(b"meanwhile", [b"y" * 1000])
        index.go_on.set()
        report = await verifying
        assert report.problems == []
        assert report.blobs == 2
        await opened.close()


async def test_a_verification_that_is_cancelled_ends_behind_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C: it takes hours in large volumes, and the index is closed behind it."""
    monkeypatch.setattr("tier2.volumes.engine._VERIFIED_PIECE_BYTES", 1000, raising=False)
    looked_at: list[bytes] = []
    monkeypatch.setattr(Verification, "_look_at_blob", lambda _, key, __: looked_at.append(key))
    index = PausingIndex()
    with ThreadPoolExecutor(4) as executor:
        opened = await open_small(str(tmp_path), open_index=lambda _: index, executor=executor)
        for number in range(40):
            await opened.engine.put(b"key %d" % number, [bytes([number]) * 1000])
        verifying = asyncio.create_task(opened.engine.verify(deep=True))
        await asyncio.to_thread(index.looking.wait, 60)
        verifying.cancel()
        index.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await verifying
        await opened.close()
    assert looked_at == []


async def test_a_volume_that_is_being_written_for_the_first_time_is_not_damaged(
    tmp_path: Path,
) -> None:
    files, random = SystemFileSystem(), Random(5)
    async with small_engine(str(tmp_path)) as engine:
        await engine.put(b"key", [b"x" * 1000])
        # As a large upload, or compaction, that has written the first of many slices.
        volumes = VolumeFiles(
            f"{tmp_path}/volumes",
            files=files,
            random=random,
            engine_id=engine_identity(str(tmp_path), files, random),
        )
        volume = volumes.create(now_ms=0, sequence_first=1)
        volume.write_unsynced([b"a part of a record"], 18)
        report = await engine.verify(deep=True)
        assert report.problems == []
        assert report.volumes == 2
        volume.close()
