"""The filesystem store when calls fail, and when other stores hold the lock."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import (
    ErrorKind,
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.object_key_suite import listed
from tests.tier2.object_stores.failing_store import SMALL_SETTINGS, World
from tier2.object_stores.filesystem import FilesystemObjectStore


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.store.start()
    return world


# --- a full disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_said_and_leaves_nothing(world: World, number: int) -> None:
    store, log = world.store, world.log
    await store.put("old", [b"old"])
    tag = await store.put_if_absent("root", b"one")
    log.fail_verb, log.error_number = "write_at", number
    with pytest.raises(StorageFullError) as full:
        await store.put("new", [b"new"])
    assert full.value.kind is ErrorKind.FULL
    with pytest.raises(StorageFullError):
        await store.put_if_absent("new", b"new")
    with pytest.raises(StorageFullError):
        await store.put_if_match("root", b"two", tag)
    await store.delete("old")
    log.reset()
    assert world.temporary_files() == []
    assert [info.key for info in await listed(store, "")] == ["root"]
    await store.put_if_match("root", b"two", tag)
    await store.put("new", [b"new"])


# --- any call fails ------------------------------------------------------------------------------

Verb = Callable[[FilesystemObjectStore, str], Awaitable[object]]


async def put(store: FilesystemObjectStore, tag: str) -> None:
    await store.put("new/object", [b"content"] * 300)


async def put_if_absent(store: FilesystemObjectStore, tag: str) -> None:
    with suppress(ObjectExistsError):  # an earlier attempt may have come that far (B4)
        await store.put_if_absent("new/object", b"content" * 300)


async def put_if_match(store: FilesystemObjectStore, tag: str) -> None:
    try:
        await store.put_if_match("root", b"two", tag)
    except ObjectChangedError:
        assert (await store.get("root")).content == b"two"


async def delete(store: FilesystemObjectStore, tag: str) -> None:
    await store.delete("old/object")


async def get(store: FilesystemObjectStore, tag: str) -> None:
    assert (await store.get("old/object")).content == b"old"


async def get_range(store: FilesystemObjectStore, tag: str) -> None:
    assert await store.get_range("old/object", 1, 1) == b"l"


async def list_all(store: FilesystemObjectStore, tag: str) -> None:
    assert len(await listed(store, "")) >= 2


@pytest.mark.parametrize(
    "verb", [put, put_if_absent, put_if_match, delete, get, get_range, list_all]
)
async def test_h11_whichever_call_fails_the_verb_can_be_repeated(
    tmp_path: Path, verb: Verb
) -> None:
    failures = 0
    for fail_at in range(100):
        world = World(tmp_path / str(fail_at))
        store, log = world.store, world.log
        await store.start()
        await store.put("old/object", [b"old"])
        tag = await store.put_if_absent("root", b"one")
        open_before = log.open_files
        log.reset()
        log.fail_at = fail_at
        (outcome,) = await asyncio.gather(verb(store, tag), return_exceptions=True)
        if outcome is not None:
            assert isinstance(outcome, StorageError)
            assert outcome.kind is ErrorKind.UNAVAILABLE
            assert isinstance(outcome.__cause__, OSError)
            failures += 1
        finished = len(log.calls) <= fail_at
        log.reset()
        assert log.open_files == open_before
        root = (await store.get("root")).content
        assert root in ((b"one", b"two") if verb is put_if_match else (b"one",))
        await verb(store, tag)
        if verb in (put, put_if_absent):
            assert (await store.get("new/object")).content == b"content" * 300
        elif verb is put_if_match:
            assert (await store.get("root")).content == b"two"
        elif verb is delete:
            with pytest.raises(ObjectNotFoundError):
                await store.get("old/object")
        await store.close()
        if finished:
            break
    else:
        pytest.fail("the verb never ran to its end")
    assert failures >= 1


async def test_start_can_be_repeated_whichever_call_fails(tmp_path: Path) -> None:
    for fail_at in range(100):
        world = World(tmp_path / str(fail_at))
        world.log.fail_at = fail_at
        with suppress(StorageError):
            await world.store.start()
            break
        world.log.reset()
        again = World(tmp_path / str(fail_at))
        await again.store.start()
        await again.store.put("a", [b"x"])
    else:
        pytest.fail("start never ran to its end")
    assert fail_at > 5


# --- names in doubt ------------------------------------------------------------------------------


async def test_h48_a_root_whose_directory_sync_failed_is_not_shown_until_it_is_safe(
    world: World,
) -> None:
    store, log = world.store, world.log
    tag = await store.put_if_absent("root", b"one")
    log.fail_verb = "sync_directory"
    with pytest.raises(StorageError):
        await store.put_if_match("root", b"two", tag)
    with pytest.raises(StorageError):
        await store.get("root")
    log.reset()
    assert (await store.get("root")).content == b"two"
    assert log.verbs().index("sync_data") < log.verbs().index("rename")
    assert log.verbs().index("rename") < log.verbs().index("sync_directory")
    log.reset()
    assert (await store.get("root")).content == b"two"
    assert "rename" not in log.verbs()


async def test_h48_a_put_whose_directory_sync_failed_writes_the_name_anew(world: World) -> None:
    store, log = world.store, world.log
    log.fail_verb = "sync_directory"
    with pytest.raises(StorageError):
        await store.put("object", [b"bytes"])
    log.reset()
    await store.put("object", [b"bytes"])
    assert log.verbs().index("rename") < log.verbs().index("sync_directory")


async def test_h11_each_directory_on_the_way_is_synced_before_a_put_returns(world: World) -> None:
    await world.store.put("a/b/c", [b"x"])
    objects = f"{world.root}/objects"
    made = [path for verb, path in world.log.calls if verb == "make_directories"]
    assert made[-2:] == [f"{objects}/a", f"{objects}/a/b"]
    assert world.log.calls[-2:] == [
        ("sync_directory", f"{objects}/a/b"),
        ("remove", world.log.calls[-1][1]),
    ]


async def test_h11_a_directory_that_exists_already_is_synced_once_by_each_store(
    world: World,
) -> None:
    await world.store.put("a/b/1", [b"x"])
    other = World(world.root.parent)
    await other.store.start()
    other.log.reset()
    await other.store.put("a/b/2", [b"x"])
    objects = f"{world.root}/objects"
    synced = [path for verb, path in other.log.calls if verb == "sync_directory"]
    assert synced == [objects, f"{objects}/a", f"{objects}/a/b"]
    other.log.reset()
    await other.store.put("a/b/3", [b"x"])
    synced = [path for verb, path in other.log.calls if verb == "sync_directory"]
    assert synced == [f"{objects}/a/b"]


async def test_a_directory_that_somebody_removed_is_made_again(world: World) -> None:
    await world.store.put("a/b/c", [b"x"])
    await world.store.delete("a/b/c")
    (world.root / "objects/a/b").rmdir()
    (world.root / "objects/a").rmdir()
    await world.store.put("a/b/d", [b"y"])
    assert (await world.store.get("a/b/d")).content == b"y"


# --- the lock ------------------------------------------------------------------------------------


async def test_h11_a_conditional_put_waits_for_the_lock_and_gives_up_at_its_bound(
    world: World,
) -> None:
    store = world.store
    tag = await store.put_if_absent("root", b"one")
    other = SystemFileSystem().open(f"{world.root}/lock", create=True)
    assert other.lock_exclusive()
    with pytest.raises(StorageError, match="lock"):
        await store.put_if_match("root", b"two", tag)
    assert (await store.get("root")).content == b"one"
    assert world.log.verbs().count("lock_exclusive") >= SMALL_SETTINGS.lock_attempts_max
    other.close()
    await store.put_if_match("root", b"two", tag)


async def test_puts_and_reads_do_not_wait_for_the_lock(world: World) -> None:
    other = SystemFileSystem().open(f"{world.root}/lock", create=True)
    assert other.lock_exclusive()
    await world.store.put("a", [b"x"])
    await world.store.put_if_absent("b", b"y")
    assert [info.key for info in await listed(world.store, "")] == ["a", "b"]
    other.close()


# --- what dead stores leave ----------------------------------------------------------------------


async def test_start_removes_the_temporary_files_of_dead_stores_only(tmp_path: Path) -> None:
    alive = World(tmp_path)
    await alive.store.start()
    temporary = alive.root / "temporary"
    names = [path.name for path in temporary.iterdir()]
    assert len(names) == 1
    token = names[0].removesuffix(".owner")
    (temporary / f"{token}-99").write_bytes(b"being written")
    (temporary / "dead.owner").write_bytes(b"")
    (temporary / "dead-1").write_bytes(b"half")
    (temporary / "dead-2").write_bytes(b"half")
    (temporary / "lost-1").write_bytes(b"its owner file did not survive the power cut")
    starter = FilesystemObjectStore(
        str(alive.root), files=SystemFileSystem(), executor=None, random=Random(8)
    )
    assert await starter.start() == 3
    left = [path.name for path in temporary.iterdir()]
    assert len(left) == 3
    assert f"{token}-99" in left
    assert not [name for name in left if name.startswith(("dead", "lost"))]
    await starter.close()
    assert len([*temporary.iterdir()]) == 2
    await alive.store.close()


async def test_no_verb_leaves_a_temporary_file(world: World) -> None:
    store = world.store
    await store.put("a", [b"x"])
    await store.put("a", [b"x"])
    with pytest.raises(ObjectExistsError):
        await store.put("a", [b"y"])
    tag = await store.put_if_absent("root", b"one")
    with pytest.raises(ObjectExistsError):
        await store.put_if_absent("root", b"one")
    await store.put_if_match("root", b"two", tag)
    with pytest.raises(ObjectChangedError):
        await store.put_if_match("root", b"three", tag)
    assert world.temporary_files() == []


@pytest.mark.parametrize("root", ["relative/path", "", "/ends/with/"])
def test_a_root_that_is_not_absolute_is_refused(root: str) -> None:
    with pytest.raises(InvalidRequestError):
        FilesystemObjectStore(root, files=SystemFileSystem(), executor=None, random=Random(1))


async def test_files_that_are_no_objects_are_not_listed(world: World) -> None:
    await world.store.put("a/b", [b"x"])
    (world.root / "objects/.nfs0001").write_bytes(b"")
    (world.root / "objects/Upper").write_bytes(b"")
    assert [info.key for info in await listed(world.store, "")] == ["a/b"]
