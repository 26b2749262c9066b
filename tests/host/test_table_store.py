"""Tables of the whole store go to the container that owns their name."""

import pytest

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import ContainerNotFoundError, InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import TableEntry
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from tests.host.simple_container import SimpleContainer

COUNT = 4


async def test_h60_a_table_lives_in_the_container_of_its_hash() -> None:
    registry = ContainerRegistry(container_count=COUNT)
    containers = [SimpleContainer(ContainerId(number)) for number in range(COUNT)]
    for container in containers:
        registry.set_starting(container)
        await container.start()
        registry.set_running(container)
    store = SegmentStore(registry=registry)
    for number in range(20):
        name = f"scope/table{number}"
        await store.create_table(name)
        async with store.open_table(name) as table:
            await table.update([TableEntry(b"k", b"v")])
        owner = containers[container_of(name, COUNT)]
        assert name in owner.tables.names()
        await store.delete_table(name, must_be_empty=False)
        assert name not in owner.tables.names()


async def test_a_table_of_a_container_that_is_not_here_is_not_found_and_bad_names_are_refused() -> (
    None
):
    store = SegmentStore(registry=ContainerRegistry(container_count=COUNT))
    with pytest.raises(ContainerNotFoundError):
        await store.create_table("scope/table")
    with pytest.raises(InvalidRequestError):
        await store.create_table("")
