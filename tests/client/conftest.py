from collections.abc import AsyncIterator
from random import Random

import pytest

from segmentstore.client import ClientSettings, Store, connect
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore
from tests.preloaded_command import servers_are_forks

__all__ = ["servers_are_forks"]

SETTINGS = ClientSettings(
    retry_seconds_max=0.02, transaction_poll_seconds=0.001, commit_seconds=600.0
)
"""A reader of a group changes nothing by itself while a test looks, however long that takes; those that must have FAST
of test_reader_groups.py."""


@pytest.fixture
async def fake_store() -> AsyncIterator[FakeStore]:
    async with FakeStore().serving() as store:
        yield store
        assert store.complaints == []


@pytest.fixture
async def controller(fake_store: FakeStore) -> AsyncIterator[FakeController]:
    async with FakeController(fake_store).serving() as controller:
        yield controller


@pytest.fixture
async def store(controller: FakeController) -> AsyncIterator[Store]:
    """A client of both fakes, with the scope `s`."""
    async with connect(controller.address, settings=SETTINGS, random=Random(3)) as store:
        await store.scope("s").create()
        yield store
