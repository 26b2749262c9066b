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


class CoordinationWorld(Protocol):
    """What the stores of several processes share."""

    async def store(self) -> CoordinationSession: ...


class CoordinationStoreSuite:
    """The conformance tests."""

    async def test_what_was_created_is_read_by_all(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        assert await first.get("/logs/0001") is None
        version = await first.create("/logs/0001", b"value")
        for store in (first, second):
            assert await store.get("/logs/0001") == VersionedValue(b"value", version)

    async def test_a_value_may_be_empty_or_large(self, world: CoordinationWorld) -> None:
        store = await world.store()
        large = bytes(range(256)) * 2000
        version = await store.create("/value", b"")
        assert await store.get("/value") == VersionedValue(b"", version)
        version = await store.compare_and_set("/value", large, version=version)
        assert await store.get("/value") == VersionedValue(large, version)

    async def test_what_exists_is_not_created_again(self, world: CoordinationWorld) -> None:
        store = await world.store()
        version = await store.create("/value", b"first")
        with pytest.raises(ValueChangedError):
            await store.create("/value", b"second")
        assert await store.get("/value") == VersionedValue(b"first", version)

    async def test_every_change_has_a_version_of_its_own(self, world: CoordinationWorld) -> None:
        store = await world.store()
        versions = [await store.create("/value", b"0")]
        for number in range(1, 10):
            versions.append(
                await store.compare_and_set("/value", b"%d" % number, version=versions[-1])
            )
        assert len(set(versions)) == 10

    async def test_a_stale_version_changes_nothing(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        stale = await first.create("/value", b"a")
        current = await second.compare_and_set("/value", b"b", version=stale)
        for version in (stale, current + 1):
            with pytest.raises(ValueChangedError):
                await first.compare_and_set("/value", b"c", version=version)
        assert await first.get("/value") == VersionedValue(b"b", current)

    async def test_what_does_not_exist_is_not_set(self, world: CoordinationWorld) -> None:
        store = await world.store()
        with pytest.raises(ValueChangedError):
            await store.compare_and_set("/value", b"x", version=0)
        assert await store.get("/value") is None

    async def test_what_was_deleted_is_gone_and_a_stale_version_deletes_nothing(
        self, world: CoordinationWorld
    ) -> None:
        first, second = await world.store(), await world.store()
        stale = await first.create("/values/a", b"1")
        current = await second.compare_and_set("/values/a", b"2", version=stale)
        with pytest.raises(ValueChangedError):
            await first.delete("/values/a", version=stale)
        await second.delete("/values/a", version=current)
        assert await first.get("/values/a") is None
        assert await first.children("/values") == []
        with pytest.raises(ValueChangedError):
            await second.delete("/values/a", version=current)
        await first.create("/values/a", b"3")

    async def test_the_same_bytes_are_a_change(self, world: CoordinationWorld) -> None:
        store = await world.store()
        stale = await store.create("/value", b"a")
        await store.compare_and_set("/value", b"a", version=stale)
        with pytest.raises(ValueChangedError):
            await store.compare_and_set("/value", b"b", version=stale)

    async def test_of_several_with_one_version_one_succeeds(self, world: CoordinationWorld) -> None:
        stores = [await world.store() for _ in range(3)]
        version = await stores[0].create("/value", b"")
        for turn in range(10):
            found = await asyncio.gather(
                *(
                    store.compare_and_set("/value", b"%d by %d" % (turn, place), version=version)
                    for place, store in enumerate(stores * 2)
                ),
                return_exceptions=True,
            )
            winners = [place for place, each in enumerate(found) if isinstance(each, int)]
            assert len(winners) == 1, found
            losers = [each for each in found if not isinstance(each, int)]
            assert all(isinstance(each, ValueChangedError) for each in losers), losers
            read = await stores[turn % 3].get("/value")
            assert read is not None
            assert read.value == b"%d by %d" % (turn, winners[0])
            assert read.version == found[winners[0]]
            version = read.version

    async def test_of_several_that_create_one_succeeds(self, world: CoordinationWorld) -> None:
        stores = [await world.store() for _ in range(3)]
        found = await asyncio.gather(
            *(store.create("/deep/er/value", b"%d" % place) for place, store in enumerate(stores)),
            return_exceptions=True,
        )
        winners = [place for place, each in enumerate(found) if isinstance(each, int)]
        assert len(winners) == 1, found
        read = await stores[0].get("/deep/er/value")
        assert read is not None
        assert read.value == b"%d" % winners[0]

    async def test_a_change_is_seen_by_every_later_read(self, world: CoordinationWorld) -> None:
        first, second = await world.store(), await world.store()
        version = await first.create("/value", b"0")
        for number in range(1, 30):
            version = await first.compare_and_set("/value", b"%d" % number, version=version)
            assert await second.get("/value") == VersionedValue(b"%d" % number, version)
            first, second = second, first

    async def test_children_are_sorted_names(self, world: CoordinationWorld) -> None:
        store = await world.store()
        assert await store.children("/logs") == []
        for name in ("0003", "0001", "0002"):
            await store.create(f"/logs/{name}", b"")
        await store.create("/other", b"")
        assert await store.children("/logs") == ["0001", "0002", "0003"]
        assert await store.children("/logs/0001") == []

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

    async def test_close_may_be_called_again(self, world: CoordinationWorld) -> None:
        store = await world.store()
        await store.close()
        await store.close()
