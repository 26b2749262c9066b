"""What every object store must do. Subclass ObjectStoreSuite and give it two fixtures:

- `store`: an empty store, ready for use;
- `second_store`: another handle on the same objects, as another process would hold one (the same object is fine where
  there is no such thing).
"""

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

import pytest

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from tests.contracts.object_key_suite import ObjectKeySuite, listed
from tier2.object_stores.memory import MemoryObjectStore

Result = TypeVar("Result")

RACERS = 12

LONGEST_PART = "Aa" * 100

KEYS = (
    "a",
    "root",
    "c-0001/root",
    "c-0001/chunks/00000000000000000001-0",
    "c-0001/Chunks/00000000000000000001-0",
    "container=7/epoch.12/part_3",
    f"{LONGEST_PART}/{LONGEST_PART}",
    f"{LONGEST_PART}/{LONGEST_PART.swapcase()}",
    f"{LONGEST_PART.swapcase()}/x",
)


async def outcome_of(call: Awaitable[Result]) -> Result | type[Exception]:
    """What a call returned, or the class of what it raised."""
    try:
        return await call
    except SegmentStoreError as error:
        return type(error)


class ObjectStoreSuite(ObjectKeySuite):
    """The guarantees B1 to B5, and the manners of every call."""

    # --- put ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", KEYS)
    async def test_b1_an_object_reads_back(self, store: ObjectStore, key: str) -> None:
        await store.put(key, [b"first ", memoryview(b"-second-")[1:7], b"", b" third"])
        assert (await store.get(key)).content == b"first second third"
        assert await store.size(key) == 18
        assert await listed(store, "") == [ObjectInfo(key, 18)]

    async def test_b1_another_handle_sees_a_completed_put(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        await store.put("a/b", [b"content"])
        assert (await second_store.get("a/b")).content == b"content"
        assert await listed(second_store, "a/") == [ObjectInfo("a/b", 7)]

    async def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        await store.put("empty", [])
        assert (await store.get("empty")).content == b""
        assert await store.size("empty") == 0
        assert await store.get_range("empty", 0, 10) == b""

    async def test_a_large_object_of_many_buffers_reads_back(self, store: ObjectStore) -> None:
        buffers: list[BufferView] = [b"%07d-" % number for number in range(5000)]
        buffers.insert(2500, bytes(9 << 20))
        await store.put("large", buffers)
        whole = b"".join(buffers)
        assert await store.size("large") == len(whole)
        assert (await store.get("large")).content == whole
        assert await store.get_range("large", 19_990, 20) == whole[19_990:20_010]

    async def test_h2_a_retry_of_a_put_with_the_same_bytes_is_welcome(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        await store.put("a/1", [b"same ", b"bytes"])
        await store.put("a/1", [b"same bytes"])
        await second_store.put("a/1", [b"same", b" bytes"])
        assert (await store.get("a/1")).content == b"same bytes"

    @pytest.mark.parametrize("other", [b"other bytes", b"longer bytes!!", b"short", b""])
    async def test_h2_a_key_never_takes_other_bytes(self, store: ObjectStore, other: bytes) -> None:
        await store.put("a/1", [b"first bytes"])
        with pytest.raises(ObjectExistsError, match="a/1"):
            await store.put("a/1", [other])
        assert (await store.get("a/1")).content == b"first bytes"

    async def test_b2_a_reader_beside_a_put_sees_all_of_it_or_nothing(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        content = bytes(3 << 20)

        async def read_until_there() -> int:
            misses = 0
            while True:
                try:
                    found = await second_store.get("slow/object")
                except ObjectNotFoundError:
                    misses += 1
                    await asyncio.sleep(0)
                    continue
                assert found.content == content
                return misses

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_until_there())
            tasks.create_task(store.put("slow/object", [content]))

    # --- reading ------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 10, b"0123456789"), (3, 4, b"3456"), (8, 5, b"89"), (10, 1, b""), (4, 0, b"")],
    )
    async def test_a_range_is_exactly_those_bytes_or_fewer_at_the_end(
        self, store: ObjectStore, start: int, length: int, expected: bytes
    ) -> None:
        await store.put("digits", [b"0123456789"])
        assert await store.get_range("digits", start, length) == expected

    async def test_a_missing_object_is_not_found(self, store: ObjectStore) -> None:
        await store.put("a/b", [b"x"])
        for key in ("missing", "a/c", "b/c/d", "a"):
            with pytest.raises(ObjectNotFoundError):
                await store.get(key)
            with pytest.raises(ObjectNotFoundError):
                await store.get_range(key, 0, 1)
            with pytest.raises(ObjectNotFoundError):
                await store.size(key)

    @pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1)])
    async def test_a_range_that_cannot_be_is_invalid(
        self, store: ObjectStore, start: int, length: int
    ) -> None:
        await store.put("a", [b"x"])
        with pytest.raises(InvalidRequestError):
            await store.get_range("a", start, length)

    # --- conditional puts ---------------------------------------------------------------------

    async def test_put_if_absent_creates_once(self, store: ObjectStore) -> None:
        tag = await store.put_if_absent("root", b"one")
        found = await store.get("root")
        assert (found.content, found.tag) == (b"one", tag)
        with pytest.raises(ObjectExistsError):
            await store.put_if_absent("root", b"two")
        assert (await store.get("root")).content == b"one"

    async def test_put_if_match_replaces_only_the_version_it_names(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        first = await store.put_if_absent("root", b"one")
        second = await store.put_if_match("root", memoryview(b"two"), first)
        assert second != first
        with pytest.raises(ObjectChangedError):
            await second_store.put_if_match("root", b"three", first)
        found = await second_store.get("root")
        assert (found.content, found.tag) == (b"two", second)
        third = await second_store.put_if_match("root", b"a longer third", found.tag)
        assert (await store.get("root")).tag == third

    async def test_put_if_match_does_not_create(self, store: ObjectStore) -> None:
        tag = await store.put_if_absent("other", b"x")
        with pytest.raises(ObjectChangedError):
            await store.put_if_match("root", b"x", tag)
        await store.delete("other")
        with pytest.raises(ObjectChangedError):
            await store.put_if_match("other", b"y", tag)
        assert await listed(store, "") == []

    async def test_b3_one_of_many_racing_creators_wins(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        for attempt in range(5):
            key = f"race/{attempt}"
            results = await asyncio.gather(
                *(
                    (store, second_store)[racer % 2].put_if_absent(key, b"racer %d" % racer)
                    for racer in range(RACERS)
                ),
                return_exceptions=True,
            )
            winners = [racer for racer, result in enumerate(results) if isinstance(result, str)]
            losers = [result for result in results if isinstance(result, ObjectExistsError)]
            assert len(winners) == 1
            assert len(losers) == RACERS - 1
            found = await store.get(key)
            assert (found.content, found.tag) == (b"racer %d" % winners[0], results[winners[0]])

    async def test_b3_one_of_many_racing_replacements_wins(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        tag = await store.put_if_absent("root", b"start")
        for attempt in range(5):
            results = await asyncio.gather(
                *(
                    (store, second_store)[racer % 2].put_if_match(
                        "root", b"%d of racer %d" % (attempt, racer), tag
                    )
                    for racer in range(RACERS)
                ),
                return_exceptions=True,
            )
            winners = [racer for racer, result in enumerate(results) if isinstance(result, str)]
            losers = [result for result in results if isinstance(result, ObjectChangedError)]
            assert len(winners) == 1
            assert len(losers) == RACERS - 1
            found = await second_store.get("root")
            assert found.content == b"%d of racer %d" % (attempt, winners[0])
            tag = found.tag

    # --- delete -------------------------------------------------------------------------------

    async def test_b5_delete_may_be_repeated(
        self, store: ObjectStore, second_store: ObjectStore
    ) -> None:
        await store.put("a/b", [b"x"])
        await store.put("a/c", [b"y"])
        await store.delete("a/b")
        await second_store.delete("a/b")
        await store.delete("never/was")
        await store.delete("a/c/d")
        with pytest.raises(ObjectNotFoundError):
            await second_store.get("a/b")
        assert await listed(store, "") == [ObjectInfo("a/c", 1)]

    async def test_delete_removes_no_other_key(self, store: ObjectStore) -> None:
        await store.put("a/b", [b"x"])
        await store.delete("a")
        await store.delete("A/b")
        await store.delete("a/B")
        assert (await store.get("a/b")).content == b"x"

    # --- all together -------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(3))
    async def test_b1_a_long_history_equals_the_model(
        self, store: ObjectStore, second_store: ObjectStore, seed: int
    ) -> None:
        """Few keys, so that calls meet; each goes through either handle, and to the memory store as well."""
        random, model = Random(seed), MemoryObjectStore()
        handles = (store, second_store)
        tags: dict[str, tuple[str, str]] = {}
        for step in range(300):
            real = random.choice(handles)
            key = f"{random.choice('aA')}{random.choice('b-')}/{random.choice('xXyY')}"
            content = b"%d" % step * random.randrange(1, 400)
            match random.randrange(7):
                case 0:
                    found = await outcome_of(real.put(key, [content, b"!"]))
                    expected = await outcome_of(model.put(key, [content, b"!"]))
                    assert found == expected
                case 1 | 2:
                    versions = [
                        await outcome_of(one.put_if_absent(key, content)) for one in (real, model)
                    ]
                    assert isinstance(versions[0], str) == isinstance(versions[1], str)
                    if isinstance(versions[0], str) and isinstance(versions[1], str):
                        tags[key] = (versions[0], versions[1])
                case 3:
                    real_tag, model_tag = tags.get(key, ("none", "none"))
                    versions = [
                        await outcome_of(real.put_if_match(key, content, real_tag)),
                        await outcome_of(model.put_if_match(key, content, model_tag)),
                    ]
                    assert isinstance(versions[0], str) == isinstance(versions[1], str)
                    if random.random() < 0.7 and isinstance(versions[0], str):
                        tags[key] = (versions[0], str(versions[1]))
                case 4:
                    await real.delete(key)
                    await model.delete(key)
                case 5:
                    start, length = random.randrange(500), random.randrange(500)
                    assert await outcome_of(real.get_range(key, start, length)) == await outcome_of(
                        model.get_range(key, start, length)
                    )
                case _:
                    got, wanted = await outcome_of(real.get(key)), await outcome_of(model.get(key))
                    if isinstance(wanted, VersionedObject):
                        assert isinstance(got, VersionedObject)
                        assert got.content == wanted.content
                    else:
                        assert got == wanted
            if step % 20 == 0:
                assert await listed(real, "") == await listed(model, "")
        model.check()
