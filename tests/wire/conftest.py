"""Fixtures of the wire tests."""

from collections.abc import AsyncIterator

import pytest

from tests.wire.node import Node, running_node
from tests.wire.protocol_client import ProtocolClient

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))
OTHER = bytes(range(16, 32))
"""Another writer."""


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """With one segment, SEGMENT, in it."""
    async with running_node() as running:
        await running.container.create(SEGMENT)
        yield running


@pytest.fixture
async def client(node: Node) -> ProtocolClient:
    return await node.client()
