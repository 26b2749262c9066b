"""The door's suite of merges over a container, and over the segments in memory that other rooms' tests use."""

from collections.abc import AsyncIterator

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.segments import SegmentApi
from tests.containers.node import MemoryTiers, running
from tests.contracts.segment_merge_suite import SegmentMergeSuite
from tests.http.memory_segments import MemorySegments


class TestContainerMerges(SegmentMergeSuite):
    @pytest.fixture
    async def segments(self) -> AsyncIterator[StreamSegmentContainer]:
        async with running(MemoryTiers()) as container:
            yield container
            container.check()


class TestMemoryMerges(SegmentMergeSuite):
    @pytest.fixture
    def segments(self) -> SegmentApi:
        return MemorySegments()
