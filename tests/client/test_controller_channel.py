"""The connection to a controller that goes away and comes back."""

import asyncio
import socket
from dataclasses import replace
from random import Random

import pytest

from segmentstore.client import ClientSettings, connect
from segmentstore.contracts.errors import InvalidRequestError
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore

SETTINGS = ClientSettings(retry_seconds_first=0.02, retry_seconds_max=0.1)
AWAY_SECONDS = 1.3
"""gRPC's own pauses are 1 s, 1.6 s and so on up to two minutes, a fifth longer or shorter: the third attempt comes
later than 0.7 s behind this."""
FOUND_SECONDS = 0.6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_controller_that_comes_back_is_found_soon_however_long_it_was_away(
    fake_store: FakeStore,
) -> None:
    port = free_port()
    loop = asyncio.get_running_loop()
    async with connect(f"tcp://127.0.0.1:{port}", settings=SETTINGS, random=Random(1)) as store:
        asked = asyncio.create_task(store.scopes())
        await asyncio.sleep(AWAY_SECONDS)
        assert not asked.done()
        async with FakeController(fake_store).serving(port=port):
            came_back = loop.time()
            assert await asked == []
            assert loop.time() - came_back < FOUND_SECONDS


async def test_the_next_controller_is_asked_when_one_is_away(fake_store: FakeStore) -> None:
    ports = [free_port(), free_port()]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    settings = replace(SETTINGS, request_seconds=5.0)
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
    port = free_port()
    async with FakeController(fake_store).serving(port=port):
        address = f"tcp://127.0.0.1:{port}"
        async with connect(f"{address},{address}", settings=SETTINGS, random=Random(1)) as store:
            assert await store.scopes() == []
