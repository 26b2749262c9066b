"""What every CoordinationSession must do. Subclass CoordinationStoreSuite and give it one fixture:

- `world`: a CoordinationWorld, empty; every store() is one of another process.
"""

import asyncio
from typing import Protocol

import pytest

from segmentstore.coordination.coordination_store import (
    CheckVersion,
    CoordinationSession,
    CreateValue,
    DeleteValue,
    SetValue,
    ValueChangedError,
    VersionedValue,
)
from tests.contracts.versioned_value_suite import VersionedValueSuite


class CoordinationWorld(Protocol):
    """What the stores of several processes share."""

    async def store(self) -> CoordinationSession: ...


class CoordinationStoreSuite(VersionedValueSuite):
    """The conformance tests."""

    changed_error = ValueChangedError

    async def test_a_commit_makes_all_of_its_changes(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        for name in ("epoch", "map", "old"):
            await first.create(f"/cluster/{name}", b"1")
        await first.commit(
            [
                CheckVersion("/cluster/epoch", 0),
                SetValue("/cluster/map", b"2", 0),
                CreateValue("/cluster/new", b"3"),
                DeleteValue("/cluster/old", 0),
            ]
        )
        assert await second.children("/cluster") == ["epoch", "map", "new"]
        assert await second.get("/cluster/epoch") == VersionedValue(b"1", 0)
        assert await second.get("/cluster/map") == VersionedValue(b"2", 1)
        assert await second.get("/cluster/new") == VersionedValue(b"3", 0)

    async def test_a_commit_with_one_stale_version_makes_none_of_its_changes(
        self, world: CoordinationWorld
    ) -> None:
        store = await world.store()
        for name in ("epoch", "map"):
            await store.create(f"/cluster/{name}", b"1")
        await store.compare_and_set("/cluster/epoch", b"2", version=0)
        change = SetValue("/cluster/map", b"2", 0)
        for wrong in (
            CheckVersion("/cluster/epoch", 0),
            CheckVersion("/cluster/none", 0),
            CreateValue("/cluster/epoch", b""),
            SetValue("/cluster/epoch", b"", 0),
            DeleteValue("/cluster/epoch", 0),
        ):
            for commit in ([wrong, change], [change, wrong]):
                with pytest.raises(ValueChangedError):
                    await store.commit(commit)
        assert await store.get("/cluster/map") == VersionedValue(b"1", 0)
        assert await store.get("/cluster/epoch") == VersionedValue(b"2", 1)

    async def test_an_ephemeral_value_goes_with_its_session(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        await first.create("/nodes/a", b"1", ephemeral=True)
        await second.create("/nodes/b", b"2", ephemeral=True)
        await first.create("/stays", b"3")
        assert await first.compare_and_set("/nodes/a", b"4", version=0) == 1
        changed = asyncio.Event()
        assert await second.children("/nodes", changed=changed) == ["a", "b"]
        assert not changed.is_set()
        await first.close()
        await changed.wait()
        assert await second.children("/nodes") == ["b"]
        assert await second.get("/stays") == VersionedValue(b"3", 0)
        await second.create("/nodes/a", b"5", ephemeral=True)

    async def test_a_change_of_what_was_read_is_told(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        changed = asyncio.Event()
        assert await first.get("/map", changed=changed) is None
        version = await second.create("/map", b"0")
        await changed.wait()
        for number in range(1, 4):
            changed.clear()
            found = await first.get("/map", changed=changed)
            assert found == VersionedValue(b"%d" % (number - 1), version)
            version = await second.compare_and_set("/map", b"%d" % number, version=version)
            await changed.wait()
        changed.clear()
        await first.get("/map", changed=changed)
        await second.delete("/map", version=version)
        await changed.wait()

    async def test_names_that_come_and_go_are_told(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        changed = asyncio.Event()
        assert await first.children("/nodes", changed=changed) == []
        await second.create("/nodes/a", b"")
        await changed.wait()
        changed.clear()
        assert await first.children("/nodes", changed=changed) == ["a"]
        await second.create("/nodes/b", b"")
        await changed.wait()
        changed.clear()
        assert await first.children("/nodes", changed=changed) == ["a", "b"]
        await second.delete("/nodes/a", version=0)
        await changed.wait()

    async def test_a_heartbeat_says_when_it_was_sent(self, world: CoordinationWorld) -> None:
        store = await world.store()
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert before <= await store.heartbeat() <= loop.time()
        assert store.session_seconds > 0
        assert not store.ended.is_set()
