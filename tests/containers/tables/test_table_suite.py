"""The door's suite over the tables of a container, and over the tables in memory that other rooms' tests use."""

from collections.abc import AsyncIterator

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.tables import TableApi
from tests.containers.node import MemoryTiers, running
from tests.contracts.table_suite import TableSuite
from tests.reference.memory_tables import MemoryTables


class TestContainerTables(TableSuite):
    @pytest.fixture
    async def tables(self) -> AsyncIterator[StreamSegmentContainer]:
        async with running(MemoryTiers()) as container:
            yield container
            container.check()


class TestMemoryTables(TableSuite):
    @pytest.fixture
    def tables(self) -> TableApi:
        return MemoryTables()
