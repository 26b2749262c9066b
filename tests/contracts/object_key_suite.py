"""What every object store must do with keys: which ones it takes, and how it lists them. A part of ObjectStoreSuite."""

from contextlib import aclosing

import pytest

from segmentstore.contracts.errors import InvalidRequestError, StorageError
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore

BAD_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".hidden",
    "a/.hidden",
    "a/..",
    "a b",
    "a~1",
    "a\n",
    "ä",
    "a" * 201,
    "/".join(["a" * 200] * 6),
)


async def listed(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    async with aclosing(store.list(prefix)) as cursor:
        return [info async for info in cursor]


class ObjectKeySuite:
    """Needs the fixture `store`: an empty store, ready for use."""

    refuses_path_prefixes = True
    """Whether a key that is a path prefix of another is refused; some real stores allow it."""

    # --- list ---------------------------------------------------------------------------------

    async def test_b5_a_listing_is_in_key_order(self, store: ObjectStore) -> None:
        keys = [
            "a-b/1",
            "a/1",
            "a/10",
            "a/2",
            "a/B/c",
            "a/b/c",
            "a0",
            "A/1",
            "Z",
            "_",
            "a=b",
            "a.b",
        ]
        for key in keys:
            await store.put(key, [key.encode()])
        assert await listed(store, "") == [ObjectInfo(key, len(key)) for key in sorted(keys)]

    @pytest.mark.parametrize(
        "prefix", ["", "a", "a/", "a/1", "a/b", "a/b/", "A", "b", "a/1/", "a/10/x", "c/d/e"]
    )
    async def test_a_listing_shows_exactly_the_keys_with_the_prefix(
        self, store: ObjectStore, prefix: str
    ) -> None:
        keys = ["a/1", "a/10", "a/b/c", "a/bc", "ab", "A/b/c", "b/1"]
        for key in keys:
            await store.put(key, [b"x"])
        assert await listed(store, prefix) == [
            ObjectInfo(key, 1) for key in sorted(keys) if key.startswith(prefix)
        ]

    async def test_a_listing_may_be_left_early(self, store: ObjectStore) -> None:
        for number in range(5):
            await store.put(f"n/{number}", [b"x"])
        async with aclosing(store.list("n/")) as cursor:
            async for info in cursor:
                assert info.key == "n/0"
                break
        assert len(await listed(store, "n/")) == 5

    async def test_objects_may_be_deleted_while_they_are_listed(self, store: ObjectStore) -> None:
        for number in range(20):
            await store.put(f"n/{number:02}", [b"x"])
        seen = []
        async with aclosing(store.list("n/")) as cursor:
            async for info in cursor:
                seen.append(info.key)
                await store.delete(info.key)
        assert seen == [f"n/{number:02}" for number in range(20)]
        assert await listed(store, "") == []

    # --- keys ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", BAD_KEYS)
    async def test_a_bad_key_is_refused_by_every_call(self, store: ObjectStore, key: str) -> None:
        with pytest.raises(InvalidRequestError):
            await store.put(key, [b"x"])
        with pytest.raises(InvalidRequestError):
            await store.put_if_absent(key, b"x")
        with pytest.raises(InvalidRequestError):
            await store.put_if_match(key, b"x", "tag")
        with pytest.raises(InvalidRequestError):
            await store.get(key)
        with pytest.raises(InvalidRequestError):
            await store.get_range(key, 0, 1)
        with pytest.raises(InvalidRequestError):
            await store.size(key)
        with pytest.raises(InvalidRequestError):
            await store.delete(key)

    @pytest.mark.parametrize("prefix", ["/", ".", "a//", "a/.b", "a~", "a" * 201])
    async def test_a_prefix_that_no_key_can_have_is_refused(
        self, store: ObjectStore, prefix: str
    ) -> None:
        with pytest.raises(InvalidRequestError):
            await listed(store, prefix)

    async def test_h11_keys_that_differ_in_case_alone_are_two_keys(
        self, store: ObjectStore
    ) -> None:
        keys = ["a/key", "a/Key", "a/KEY", "A/key", "A/kEy"]
        for key in keys:
            await store.put(key, [key.encode()])
        for key in keys:
            assert (await store.get(key)).content == key.encode()
        await store.delete("a/Key")
        assert [info.key for info in await listed(store, "")] == sorted({*keys} - {"a/Key"})

    async def test_a_key_that_is_a_path_prefix_of_another_is_refused(
        self, store: ObjectStore
    ) -> None:
        if not self.refuses_path_prefixes:
            await store.put("a", [b"x"])
            return
        await store.put("a/b/c", [b"x"])
        for key in ("a", "a/b", "a/b/c/d", "a/b/c/d/e"):
            with pytest.raises((InvalidRequestError, StorageError)):
                await store.put(key, [b"y"])
            with pytest.raises((InvalidRequestError, StorageError)):
                await store.put_if_absent(key, b"y")
        assert await listed(store, "") == [ObjectInfo("a/b/c", 1)]
