import asyncio
import os
import threading
import time
from functools import partial

import pytest

from segmentstore.client import ScalingPolicy, Store, StreamConfig, sync
from segmentstore.client.errors import AlreadyExistsError
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.table import Table
from tests.client.conftest import SETTINGS
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore


async def test_code_without_a_loop_writes_and_reads(controller: FakeController) -> None:
    """The servers live in the test's loop, the caller in a thread without one."""

    def work() -> tuple[list[bytes], list[bytes]]:
        with sync.connect(controller.address, settings=SETTINGS) as store:
            store.run(lambda store: store.scope("s").create())
            with pytest.raises(AlreadyExistsError):
                store.run(lambda store: store.scope("s").create())
            config = StreamConfig(ScalingPolicy.fixed(1))
            store.run(lambda store: store.stream("s/t").create(config))
            with store.writer("s/t") as writer:
                writer.write(b"one")
                writer.flush()
                writer.write_all((None, b"%d" % number) for number in range(3))
            with pytest.raises(ZeroDivisionError), store.transaction("s/t") as transaction:
                transaction.write(b"%d" % (1 // 0))
            with store.transaction("s/t") as transaction:
                transaction.write(b"together")
            store.run(lambda store: store.reader_group("s/g").create(["t"]))
            with store.group_reader("s/g", "r") as group_reader:
                found = next(group_reader)
                group_reader.checkpoint()
            with store.read("s/t") as reader:
                assert reader.take(60.0) is not None
                store.run(lambda store: store.stream("s/t").seal())
                rest = [event.data for event in reader]
                assert reader.take(0.01) is None
            return [found.data], rest

    first, rest = await asyncio.to_thread(work)
    assert first == [b"one"]
    assert rest == [b"0", b"1", b"2", b"together"]


async def test_a_wait_has_a_deadline(controller: FakeController, fake_store: FakeStore) -> None:
    def work() -> None:
        with sync.connect(controller.address, settings=SETTINGS) as store:
            store.run(lambda store: store.scope("s").create())
            store.run(lambda store: store.stream("s/t").create())
            with store.read("s/t") as reader:
                assert reader.take(0.02) is None

    await asyncio.to_thread(work)


async def test_what_may_not_be_repeated_is_not_sent_to_a_connection_that_has_ended(
    controller: FakeController, fake_store: FakeStore
) -> None:
    """As a server that is started again ends them. Between two calls nothing reads that."""
    loop = asyncio.get_running_loop()

    async def drop_connections() -> None:
        fake_store.drop_connections()
        # An abort is done in the loop's next turn.
        await asyncio.sleep(0.01)

    async def table_of(store: Store) -> Table:
        await store.scope("s").create()
        table = store.table("s/k")
        await table.create(key_length=1)
        return table

    def work() -> None:
        async def insert(key: bytes, _: Store) -> int:
            return await table.insert(key, b"value")

        with sync.connect(controller.address, settings=SETTINGS) as store:
            table = store.run(table_of)
            for key in (b"a", b"b"):
                store.run(partial(insert, key))
                asyncio.run_coroutine_threadsafe(drop_connections(), loop).result(60.0)

    await asyncio.to_thread(work)


async def test_a_call_that_meets_another_threads_call_is_refused_and_does_nothing(
    controller: FakeController, fake_store: FakeStore
) -> None:
    """What was to be done was done by the other call's loop: what the caller tried again was stored twice."""
    entered, over = threading.Event(), threading.Event()

    async def occupy(_: Store) -> None:
        entered.set()
        while not over.is_set():
            await asyncio.sleep(0.001)

    def work() -> None:
        with sync.connect(controller.address, settings=SETTINGS) as store:
            store.run(lambda store: store.scope("s").create())
            store.run(lambda store: store.stream("s/t").create())
            with store.writer("s/t") as writer:
                first = threading.Thread(target=store.run, args=(occupy,))
                first.start()
                assert entered.wait(60)
                with pytest.raises(RuntimeError, match="another call"):
                    writer.write(b"never")
                time.sleep(0.05)
                over.set()
                first.join()
                writer.write(b"one")

    await asyncio.to_thread(work)
    assert fake_store.events("s/t/0.#epoch.0") == [b"one"]


async def test_behind_a_fork_the_parents_client_is_refused_and_left_alone(
    controller: FakeController, fake_store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes would write to one connection, and number their events alike: one's would pass for the other's."""

    def work() -> None:
        with sync.connect(controller.address, settings=SETTINGS) as store:
            store.run(lambda store: store.scope("s").create())
            store.run(lambda store: store.stream("s/t").create())
            held = store.writer("s/t")
            writer = held.__enter__()
            writer.write(b"one")
            with monkeypatch.context() as in_the_child:
                in_the_child.setattr(os, "getpid", lambda: -1)
                with pytest.raises(RuntimeError, match="before the fork"):
                    writer.write(b"never")
                # Its `with` ends there as well, and so does what is open in the parent, if it is closed.
                held.__exit__(None, None, None)
            writer.write(b"two")
            writer.flush()
            store.run(lambda store: store.stream("s/t").seal())
            with store.read("s/t") as reader:
                assert [event.data for event in reader] == [b"one", b"two"]
            inner = writer._writer
            assert isinstance(inner, EventWriter)
            store.run(lambda _: inner.close())

    await asyncio.to_thread(work)
    assert fake_store.events("s/t/0.#epoch.0") == [b"one", b"two"]
