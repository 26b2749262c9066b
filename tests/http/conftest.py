"""Fixtures of the HTTP tests: segments in memory, a running server, a client."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession

from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node


@pytest.fixture
def segments() -> MemorySegments:
    return MemorySegments()


@pytest.fixture
async def node(segments: MemorySegments) -> AsyncIterator[Node]:
    async with running_node(segments) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session
