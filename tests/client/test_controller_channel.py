"""The connection to a controller that goes away and comes back."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from segmentstore.client import ClientSettings, connect
from segmentstore.contracts.errors import InvalidRequestError
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore
from tests.held_ports import bound_sockets, ports_of

SETTINGS = ClientSettings(retry_seconds_first=0.02, retry_seconds_max=0.1)
ATTEMPTS = 10
"""gRPC's own pauses are 1 s, 1.6 s and so on up to two minutes, a fifth longer or shorter: so many attempts take it
longer than 80 s."""
ATTEMPTS_SECONDS = 60.0


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two that no other process is given: sockets hold them that never listen."""
    with ExitStack() as held:
        yield ports_of([held.enter_context(each) for each in bound_sockets(2)])


class Refusing(asyncio.Protocol):
    """Notes an attempt and ends it."""

    def __init__(self, attempts: "asyncio.Queue[None]") -> None:
        self._attempts = attempts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
        self._attempts.put_nowait(None)


async def test_a_controller_that_comes_back_is_found_soon_however_long_it_was_away(
    fake_store: FakeStore, ports: list[int]
) -> None:
    """The pauses between attempts do not grow: how many there are is counted, not how long the next one takes."""
    port = ports[0]
    attempts: asyncio.Queue[None] = asyncio.Queue()
    settings = replace(SETTINGS, request_seconds=300.0)
    loop = asyncio.get_running_loop()
    async with connect(f"tcp://127.0.0.1:{port}", settings=settings, random=Random(1)) as store:
        async with await loop.create_server(partial(Refusing, attempts), "127.0.0.1", port):
            asked = asyncio.create_task(store.scopes())
            async with asyncio.timeout(ATTEMPTS_SECONDS):
                for _ in range(ATTEMPTS):
                    await attempts.get()
            assert not asked.done()
        async with FakeController(fake_store).serving(port=port):
            assert await asked == []


async def test_the_next_controller_is_asked_when_one_is_away(
    fake_store: FakeStore, ports: list[int]
) -> None:
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    settings = replace(SETTINGS, request_seconds=60.0)
    async with connect(f"tcp://{addresses}", settings=settings, random=Random(1)) as store:
        async with FakeController(fake_store).serving(port=ports[1]):
            assert await store.scopes() == []
        async with FakeController(fake_store).serving(port=ports[0]):
            assert await store.scopes() == []


@pytest.mark.parametrize(
    "addresses", ["tcp://a:1,tls://b:2", "tcp://a:1,", "tcp://a:1,b", "tcp://a:1,tcp:b:2", ""]
)
async def test_addresses_of_one_store_are_of_one_kind(addresses: str) -> None:
    with pytest.raises(InvalidRequestError):
        connect(addresses)


async def test_each_of_several_addresses_may_name_its_kind(fake_store: FakeStore) -> None:
    async with FakeController(fake_store).serving() as controller:
        address = controller.address
        async with connect(f"{address},{address}", settings=SETTINGS, random=Random(1)) as store:
            assert await store.scopes() == []
