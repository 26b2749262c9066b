"""The suites of tables and of merges over a store whose containers are on two nodes."""

from collections.abc import AsyncIterator

import pytest

from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from tests.cluster.remote_nodes import remote_nodes
from tests.contracts.segment_merge_suite import SegmentMergeSuite
from tests.contracts.table_suite import TableSuite


class TestRemoteTables(TableSuite):
    @pytest.fixture
    async def tables(self) -> AsyncIterator[TableApi]:
        async with remote_nodes(container_count=2) as nodes:
            yield nodes.store


class TestRemoteMerges(SegmentMergeSuite):
    @pytest.fixture
    async def segments(self) -> AsyncIterator[SegmentApi]:
        async with remote_nodes(container_count=2) as nodes:
            yield nodes.store
