"""A store that another process has: the conformance suite through a socket, and what happens when that process goes."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import uvloop
from typing_extensions import override

from segmentstore.contracts.errors import (
    CorruptedDataError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from tests.contracts.object_store_suite import ObjectStoreSuite
from tests.reference.loop_turns import WorkOfTurns, work_of_turns
from tests.reference.steady_loop import SteadyLoop
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


async def test_what_is_read_does_not_wait_for_what_is_written(path: Path) -> None:
    behind = StandingStore()
    await behind.put("a", [b"123"])
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path), connections_max=2)
    writing = [asyncio.ensure_future(store.put_if_absent(f"b/{n}", b"")) for n in range(3)]
    await behind.reached.wait()
    async with asyncio.timeout(30.0):
        assert (await store.get("a")).content == b"123"
        assert await store.get_range("a", 1, 1) == b"2"
        assert await store.size("a") == 3
    for each in writing:
        each.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    await store.close()
    await server.close()


class StandingStoreOfBodies(MemoryObjectStore):
    """Its puts stand; it knows how many do."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = self.standing = 0

    @override
    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self.begun += 1
        self.standing += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.standing -= 1


async def test_a_put_whose_caller_has_gone_is_not_held_until_the_store_answers(path: Path) -> None:
    behind = StandingStoreOfBodies()
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    async with asyncio.timeout(30.0):
        for number in range(5):
            left = asyncio.ensure_future(store.put("a", [bytes(1 << 20)]))
            while behind.begun == number:
                await asyncio.sleep(0.001)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            while behind.standing:
                await asyncio.sleep(0.001)
        stays = asyncio.ensure_future(store.put("b", [b"1"]))
        while not behind.standing:
            await asyncio.sleep(0.001)
        assert not stays.done()
    stays.cancel()
    await asyncio.gather(stays, return_exceptions=True)
    await store.close()
    await server.close()


class StoreOfMany(MemoryObjectStore):
    """Shows very many objects, and counts how many it has shown."""

    COUNT = 200_000

    def __init__(self) -> None:
        super().__init__()
        self.shown = self.listings = 0
        self.break_at = 0
        """The first listing fails in front of so many, as a connection does whose other end has gone."""

    @override
    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        self.listings += 1
        for number in range(self.COUNT):
            if number == self.break_at > 0 and self.listings == 1:
                raise ConnectionResetError
            self.shown += 1
            yield ObjectInfo(f"{prefix}{number:08d}", number)


async def test_a_listing_comes_by_the_page_and_is_never_held_as_a_whole(path: Path) -> None:
    behind = StoreOfMany()
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    async with aclosing(store.list("many/")) as listing:
        async for info in listing:
            assert info == ObjectInfo("many/00000000", 0)
            break
    assert behind.shown < behind.COUNT / 2, "what is shown is on its way, and not all of it"
    async with aclosing(store.list("many/")) as listing:
        assert [info.size async for info in listing] == list(range(behind.COUNT))
    await store.close()
    await server.close()


async def test_listings_keep_no_place_from_what_is_asked_between_two_of_their_objects(
    path: Path,
) -> None:
    behind = MemoryObjectStore()
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path), connections_max=2)
    for number in range(10):
        await store.put(f"a/{number}", [b"%d" % number])

    async def read_all() -> list[bytes]:
        async with aclosing(store.list("a/")) as listing:
            return [(await store.get(info.key)).content async for info in listing]

    async with asyncio.timeout(30.0):
        found = await asyncio.gather(*(read_all() for _ in range(20)))
    assert found == [[b"%d" % number for number in range(10)]] * 20
    await store.close()
    await server.close()


async def test_a_listing_whose_connection_breaks_goes_on_behind_the_last_object_shown(
    path: Path,
) -> None:
    behind = StoreOfMany()
    behind.break_at = 150_000
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    async with aclosing(store.list("many/")) as listing:
        assert [info.size async for info in listing] == list(range(behind.COUNT))
    assert behind.listings == 2
    await store.close()
    await server.close()


async def test_a_refusal_in_the_middle_of_a_listing_arrives_as_itself(path: Path) -> None:
    class Damaged(StoreOfMany):
        @override
        async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
            for number in range(5_000):
                yield ObjectInfo(f"{prefix}{number:08d}", number)
            raise CorruptedDataError("a page of the index")

    server = ObjectStoreServer(Damaged())
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    async with aclosing(store.list("many/")) as listing:
        with pytest.raises(CorruptedDataError, match="a page of the index"):
            assert not [info async for info in listing]
    await store.put("a", [b"1"])
    await store.close()
    await server.close()


class SlowStore(MemoryObjectStore):
    """Each of its changes takes as long."""

    SECONDS = 1.0

    @override
    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        await asyncio.sleep(self.SECONDS)
        await super().put(key, content)

    @override
    async def put_if_absent(self, key: str, content: BufferView) -> str:
        await asyncio.sleep(self.SECONDS)
        return await super().put_if_absent(key, content)

    @override
    async def delete(self, key: str) -> None:
        await asyncio.sleep(self.SECONDS)
        await super().delete(key)


def test_a_change_may_take_longer_than_a_store_may_be_silent(path: Path) -> None:
    """Store and server are in one process: where that stands still, nothing is silence."""

    async def change() -> None:
        behind = SlowStore()
        server = ObjectStoreServer(behind, sign_seconds=0.05)
        await server.start(listening(path))
        store = SharedObjectStore(str(path), silence_seconds_max=0.5)
        async with asyncio.timeout(30.0):
            await asyncio.gather(
                store.put("a", [b"1" * 3_000_000]),
                store.put("empty", []),
                store.put_if_absent("b", b"2"),
                store.delete("c"),
            )
            assert await store.size("a") == 3_000_000
            assert (await store.get("b")).content == b"2"
        await store.close()
        await server.close()

    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        runner.run(change())


async def test_a_store_that_is_silent_counts_as_one_that_does_not_answer(path: Path) -> None:
    listener = listening(path)
    store = SharedObjectStore(str(path), silence_seconds_max=0.1)
    async with asyncio.timeout(30.0):
        for asking in (store.put("a", [b"1" * 3_000_000]), store.delete("a"), store.size("a")):
            with pytest.raises(StorageUnavailableError, match="does not answer"):
                await asking
    await store.close()
    listener.close()


class CountingStore(MemoryObjectStore):
    """Its puts stand until they are let go; it knows what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()
        self.held = self.most_held = 0

    @override
    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        size = sum(memoryview(each).nbytes for each in content)
        self.held += size
        self.most_held = max(self.held, self.most_held)
        try:
            await self.let_go.wait()
            await super().put(key, content)
        finally:
            self.held -= size


MIB = 1 << 20


async def test_bodies_of_all_clients_together_hold_no_more_than_they_may(path: Path) -> None:
    behind = CountingStore()
    server = ObjectStoreServer(behind, bodies_bytes_max=3 * MIB, sign_seconds=0.01)
    await server.start(listening(path))
    stores = [SharedObjectStore(str(path)) for _ in range(3)]
    async with asyncio.timeout(30.0):
        putting = [
            asyncio.ensure_future(store.put(f"{index}/{number}", [bytes(MIB)]))
            for number in range(8)
            for index, store in enumerate(stores)
        ]
        while behind.held < 3 * MIB:
            await asyncio.sleep(0.001)
        leaving = asyncio.ensure_future(stores[0].put("left", [bytes(MIB)]))
        await asyncio.sleep(0.1)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert behind.most_held == 3 * MIB
        assert not any(each.done() for each in putting)
        behind.let_go.set()
        await asyncio.gather(*putting)
        await stores[0].put("long", [bytes(5 * MIB)])
        assert await stores[0].size("long") == 5 * MIB, "longer than all room, and alone in it"
    assert behind.most_held == 5 * MIB
    for store in stores:
        await store.close()
    await server.close()


async def test_a_client_that_stands_still_does_not_keep_the_room_of_others(path: Path) -> None:
    behind = MemoryObjectStore()
    server = ObjectStoreServer(behind, bodies_bytes_max=MIB, body_seconds_max=0.2)
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    async with asyncio.timeout(30.0):
        reader, writer = await asyncio.open_unix_connection(str(path))
        header = b'{"verb":"put","key":"a"}'
        writer.write(len(header).to_bytes(4, "big") + MIB.to_bytes(8, "big") + header)
        await reader.readexactly(1)
        await store.put("b", [bytes(MIB)])
        await reader.read()
        writer.close()
    assert [info.key async for info in behind.list("")] == ["b"]
    await store.close()
    await server.close()


def test_an_answer_to_a_client_that_has_gone_is_no_fault_of_ours(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the loop of the processes, which refuses to write to a connection that a sign of life has found closed."""

    async def leave() -> None:
        behind = SlowStore()
        server = ObjectStoreServer(behind, sign_seconds=0.02)
        await server.start(listening(path))
        store = SharedObjectStore(str(path))
        for leaving in (store.delete("a"), store.put("b", []), store.put("c", [b"1"])):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await leaving
        await asyncio.sleep(behind.SECONDS + 0.5)
        await store.close()
        await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(leave())
    assert not caplog.records


class NotedPieces(list[bytes]):
    def __init__(self, pieces: Sequence[bytes], taken: WorkOfTurns) -> None:
        super().__init__(pieces)
        self._taken = taken

    @override
    def __iter__(self) -> Iterator[bytes]:
        for piece in super().__iter__():
            self._taken.note()
            yield piece


async def test_a_body_of_many_pieces_is_sent_in_many_turns_of_the_loop(path: Path) -> None:
    behind = MemoryObjectStore()
    server = ObjectStoreServer(behind)
    await server.start(listening(path))
    store = SharedObjectStore(str(path))
    pieces = [bytes([number]) * (MIB // 4) for number in range(32)]
    async with work_of_turns() as taken:
        await store.put("a", NotedPieces(pieces, taken))
    assert (await store.get("a")).content == b"".join(pieces)
    assert taken.total == 2 * len(pieces)
    measured, *sent = sorted(taken.each_turn, reverse=True)
    assert measured == len(pieces), "one turn adds their lengths"
    assert sent[0] <= len(pieces) // 2, "how many at once is the kernel's to say"
    await store.close()
    await server.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_server_that_goes_in_the_middle_of_a_body_is_one_that_does_not_answer(
    path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        header = b'{"go_on":true}'
        writer.write(len(header).to_bytes(4, "big") + bytes(8) + header)
        await reader.readexactly(MIB)
        writer.transport.abort()

    async def put() -> None:
        server = await asyncio.start_unix_server(leave, path=str(path))
        store = SharedObjectStore(str(path))
        with pytest.raises(StorageUnavailableError):
            await store.put("a", [bytes(MIB // 4)] * 32)
        await store.close()
        server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(put())
