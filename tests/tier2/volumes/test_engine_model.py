"""Goal: whatever is done to an engine, in any order, it holds what a dictionary would hold.

Method: seeded random puts, deletes, markers, locks, compactions, reopenings and rebuilds; contents repeat often, so
that most of them share their bytes; after some steps all is compared, and every invariant of the index is checked.
"""

import shutil
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import ObjectLockedError
from tests.tier2.volumes.engines import Model, open_small, require
from tier2.volumes.opening import OpenEngine

KEYS = [b"key/%02d" % number for number in range(12)] + [
    b"long/" + b"x" * 450 + b"%d" % n for n in (1, 2)
]


def content_of(random: Random) -> bytes:
    return bytes([random.randrange(6)]) * random.choice((0, 10, 199, 201, 1000, 2500, 4001))


class Walk:
    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.random = Random(seed)
        self.model = Model()
        self.versions_given = 0
        self.opened: OpenEngine | None = None

    async def open(self) -> None:
        self.opened = await open_small(str(self.directory))

    async def close(self) -> None:
        assert self.opened is not None
        await self.opened.close()

    def version_id(self) -> str:
        self.versions_given += 1
        return f"v{self.versions_given:05d}"

    async def step(self) -> None:
        assert self.opened is not None
        engine, random, model = self.opened.engine, self.random, self.model
        key = random.choice(KEYS)
        versions = model.keys.get(key, [])
        kind = random.randrange(100)
        if kind < 50:
            version_id = self.version_id() if random.random() < 0.4 else None
            content, hold = content_of(random), random.random() < 0.1
            locked = any(one.legal_hold for one in versions if one.version_id == (version_id or ""))
            try:
                record = await engine.put(key, [content], version_id=version_id, legal_hold=hold)
            except ObjectLockedError:
                assert locked
            else:
                assert not locked
                model.put(key, version_id or "", content, record, hold)
        elif kind < 70:
            wanted = random.choice(versions).version_id if versions and kind < 60 else None
            await self.delete(key, wanted)
        elif kind < 80:
            marker_id = self.version_id() if kind < 77 else ""
            locked = any(one.legal_hold for one in versions if one.version_id == marker_id)
            try:
                marker = await engine.delete(key, marker_id=marker_id)
            except ObjectLockedError:
                assert locked
            else:
                assert marker is not None
                model.put(key, marker_id, None, marker, False)
        elif kind < 90:
            held = [one for one in versions if one.content is not None]
            if held:
                one = random.choice(held)
                one.legal_hold = not one.legal_hold
                await engine.change_lock(key, version_id=one.version_id, legal_hold=one.legal_hold)
        elif kind < 94:
            await engine.compact()
        elif kind < 97:
            await self.close()
            if kind == 96:
                shutil.rmtree(self.directory / "index")
            await self.open()
        else:
            await require(engine, model)

    async def delete(self, key: bytes, version_id: str | None) -> None:
        assert self.opened is not None
        versions = self.model.keys.get(key, [])
        named = [one for one in versions if version_id in (None, one.version_id)][:1]
        try:
            removed = await self.opened.engine.delete(key, version_id=version_id)
        except ObjectLockedError:
            assert named[0].legal_hold
            return
        assert (removed is None) == (not named)
        if named:
            assert not named[0].legal_hold
            self.model.remove(key, named[0].version_id)


@pytest.mark.parametrize("seed", range(6))
async def test_h68_an_engine_holds_what_a_dictionary_would_hold(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path / "engine", seed)
    await walk.open()
    for _ in range(350):
        await walk.step()
    assert walk.opened is not None
    await require(walk.opened.engine, walk.model)
    await walk.opened.engine.compact()
    await walk.close()
    shutil.rmtree(walk.directory / "index")
    await walk.open()
    assert walk.opened.replay.rebuilt
    await require(walk.opened.engine, walk.model)
    await walk.close()
