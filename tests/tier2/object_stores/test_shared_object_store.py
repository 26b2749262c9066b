"""A store that another process has: the conformance suite through a socket, and what happens when that process goes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from segmentstore.contracts.errors import (
    CorruptedDataError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectStore, VersionedObject
from tests.contracts.object_store_suite import ObjectStoreSuite
from tier2.object_stores.memory import MemoryObjectStore
from tier2.object_stores.shared_object_store import ObjectStoreServer, SharedObjectStore


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Names of sockets are short.
    return tmp_path_factory.mktemp("objects") / "objects"


class TestSharedObjectStore(ObjectStoreSuite):
    refuses_path_prefixes = False

    @pytest.fixture
    async def store(self, path: Path) -> AsyncIterator[ObjectStore]:
        server = ObjectStoreServer(MemoryObjectStore())
        await server.start(listening(path))
        store = SharedObjectStore(str(path))
        yield store
        await store.close()
        await server.close()

    @pytest.fixture
    async def second_store(self, store: ObjectStore, path: Path) -> AsyncIterator[ObjectStore]:
        assert store is not None
        second = SharedObjectStore(str(path))
        yield second
        await second.close()


class FailingStore(MemoryObjectStore):
    async def get(self, key: str) -> VersionedObject:
        match key:
            case "full":
                raise StorageFullError("no space")
            case "damaged":
                raise CorruptedDataError("a checksum")
        raise StorageUnavailableError("asleep", state="throttled")


async def test_errors_of_the_store_arrive_as_themselves(path: Path) -> None:
    server = ObjectStoreServer(FailingStore())
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    with pytest.raises(StorageFullError, match="no space"):
        await store.get("full")
    with pytest.raises(CorruptedDataError, match="a checksum"):
        await store.get("damaged")
    with pytest.raises(StorageUnavailableError, match="asleep") as caught:
        await store.get("other")
    assert caught.value.state == "throttled"
    await store.close()
    await server.close()


async def test_what_may_be_repeated_goes_on_behind_a_restart_of_the_server(path: Path) -> None:
    behind = MemoryObjectStore()
    listener = listening(path)
    server = ObjectStoreServer(behind)
    await server.start(listener.dup())
    store = SharedObjectStore(str(path))
    tag = await store.put_if_absent("a", b"1")
    await server.close()
    # The socket goes on listening, as that of a process whose parent has it.
    asking = asyncio.ensure_future(store.get("a"))
    restarted = ObjectStoreServer(behind)
    await restarted.start(listener.dup())
    assert (await asking).content == b"1"
    await restarted.close()
    with pytest.raises(StorageUnavailableError):
        await store.put_if_match("a", b"2", tag)
    again = ObjectStoreServer(behind)
    await again.start(listener)
    assert (await store.get("a")).content == b"1"
    await store.close()
    await again.close()


class StandingStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        self.reached.set()
        await asyncio.get_running_loop().create_future()
        return ""


async def test_a_call_that_was_left_does_not_give_its_answer_to_the_next_one(path: Path) -> None:
    behind = StandingStore()
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path), connections_max=1)
    left = asyncio.ensure_future(store.put_if_absent("a", b"1"))
    await behind.reached.wait()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    await store.put("b", [b"2"])
    assert await store.size("b") == 1
    await store.close()
    await server.close()
