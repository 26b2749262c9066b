"""What every store of values with versions must do. The suite of a kind of store derives from it.

A derived suite names the error of its kind for a stale version; a test class gives the fixture:

- `world`: a ValueWorld, empty; every store() is one of another process.
"""

import asyncio
from typing import ClassVar, Protocol

import pytest

from segmentstore.coordination.coordination_store import VersionedValue
from tier1.bookkeeper.metadata_store import MetadataStore


class ValueWorld(Protocol):
    """What the stores of several processes share."""

    async def store(self) -> MetadataStore: ...


class VersionedValueSuite:
    """The conformance tests."""

    changed_error: ClassVar[type[Exception]]
    """A value has another version than was named, it exists already, or it is gone."""

    async def test_what_was_created_is_read_by_all(self, world: ValueWorld) -> None:
        first, second = await world.store(), await world.store()
        assert await first.get("/logs/0001") is None
        version = await first.create("/logs/0001", b"value")
        for store in (first, second):
            assert await store.get("/logs/0001") == VersionedValue(b"value", version)

    async def test_a_value_may_be_empty_or_large(self, world: ValueWorld) -> None:
        store = await world.store()
        large = bytes(range(256)) * 2000
        version = await store.create("/value", b"")
        assert await store.get("/value") == VersionedValue(b"", version)
        version = await store.compare_and_set("/value", large, version=version)
        assert await store.get("/value") == VersionedValue(large, version)

    async def test_what_exists_is_not_created_again(self, world: ValueWorld) -> None:
        store = await world.store()
        version = await store.create("/value", b"first")
        with pytest.raises(self.changed_error):
            await store.create("/value", b"second")
        assert await store.get("/value") == VersionedValue(b"first", version)

    async def test_every_change_has_a_version_of_its_own(self, world: ValueWorld) -> None:
        store = await world.store()
        versions = [await store.create("/value", b"0")]
        for number in range(1, 10):
            versions.append(
                await store.compare_and_set("/value", b"%d" % number, version=versions[-1])
            )
        assert len(set(versions)) == 10

    async def test_a_stale_version_changes_nothing(self, world: ValueWorld) -> None:
        first, second = await world.store(), await world.store()
        stale = await first.create("/value", b"a")
        current = await second.compare_and_set("/value", b"b", version=stale)
        for version in (stale, current + 1):
            with pytest.raises(self.changed_error):
                await first.compare_and_set("/value", b"c", version=version)
        assert await first.get("/value") == VersionedValue(b"b", current)

    async def test_what_does_not_exist_is_not_set(self, world: ValueWorld) -> None:
        store = await world.store()
        with pytest.raises(self.changed_error):
            await store.compare_and_set("/value", b"x", version=0)
        assert await store.get("/value") is None

    async def test_what_was_deleted_is_gone_and_a_stale_version_deletes_nothing(
        self, world: ValueWorld
    ) -> None:
        first, second = await world.store(), await world.store()
        stale = await first.create("/values/a", b"1")
        current = await second.compare_and_set("/values/a", b"2", version=stale)
        with pytest.raises(self.changed_error):
            await first.delete("/values/a", version=stale)
        await second.delete("/values/a", version=current)
        assert await first.get("/values/a") is None
        assert await first.children("/values") == []
        with pytest.raises(self.changed_error):
            await second.delete("/values/a", version=current)
        await first.create("/values/a", b"3")

    async def test_the_same_bytes_are_a_change(self, world: ValueWorld) -> None:
        store = await world.store()
        stale = await store.create("/value", b"a")
        await store.compare_and_set("/value", b"a", version=stale)
        with pytest.raises(self.changed_error):
            await store.compare_and_set("/value", b"b", version=stale)

    async def test_of_several_with_one_version_one_succeeds(self, world: ValueWorld) -> None:
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
            assert all(isinstance(each, self.changed_error) for each in losers), losers
            read = await stores[turn % 3].get("/value")
            assert read is not None
            assert read.value == b"%d by %d" % (turn, winners[0])
            assert read.version == found[winners[0]]
            version = read.version

    async def test_of_several_that_create_one_succeeds(self, world: ValueWorld) -> None:
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

    async def test_a_change_is_seen_by_every_later_read(self, world: ValueWorld) -> None:
        first, second = await world.store(), await world.store()
        version = await first.create("/value", b"0")
        for number in range(1, 30):
            version = await first.compare_and_set("/value", b"%d" % number, version=version)
            assert await second.get("/value") == VersionedValue(b"%d" % number, version)
            first, second = second, first

    async def test_children_are_sorted_names(self, world: ValueWorld) -> None:
        store = await world.store()
        assert await store.children("/logs") == []
        for name in ("0003", "0001", "0002"):
            await store.create(f"/logs/{name}", b"")
        await store.create("/other", b"")
        assert await store.children("/logs") == ["0001", "0002", "0003"]
        assert await store.children("/logs/0001") == []

    async def test_close_may_be_called_again(self, world: ValueWorld) -> None:
        store = await world.store()
        await store.close()
        await store.close()
