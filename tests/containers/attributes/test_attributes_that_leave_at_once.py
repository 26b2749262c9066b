"""Whoever needs several attributes gets on though memory keeps them only until the next ones come."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from containers.attributes.attribute_updates import UnknownAttributesError
from containers.attributes.extended_attributes import AttributeFetches
from containers.container_settings import AttributeFetchSettings, OperationProcessorSettings
from containers.log.admission_queue import AdmissionQueue, WaitingRequest
from containers.log.throttler import Throttle
from containers.metadata.attribute_table import AttributeTable
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, SequenceNumber
from segmentstore.contracts.storage import ReadOnlyStorage

KEYS = [AttributeKey(bytes([number]) * 16) for number in range(1, 4)]
REQUESTS_MAX = 10


class Segment:
    """What the line and the fetches see of one."""

    segment_id = 1
    published_sequence_number = SequenceNumber(7)

    def __init__(self) -> None:
        self.attributes = AttributeTable(complete=False)
        self.waiting_requests = 0
        self.pins = 0

    @property
    def metadata(self) -> SegmentMetadata:
        return cast(SegmentMetadata, self)

    def forget(self) -> None:
        for _ in range(2):
            self.attributes.sweep(self.published_sequence_number, 1000)


class SlowTier2:
    """While it answers, everything leaves memory."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.requests = 0

    async def load_attributes(
        self, _segment_id: int, keys: Sequence[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        self.requests += 1
        assert self.requests <= REQUESTS_MAX, "it asks for ever"
        self._segment.forget()
        await asyncio.sleep(0)
        return dict.fromkeys(keys, 1)


async def test_a_request_gets_what_left_memory_while_the_rest_came() -> None:
    segment = Segment()
    tier2 = SlowTier2(segment)
    fetches = AttributeFetches(
        storage=cast(ReadOnlyStorage, tier2), settings=AttributeFetchSettings()
    )
    running = asyncio.create_task(fetches.run())
    segment.attributes.learn(KEYS[:1], {KEYS[0]: 1})
    wanted = fetches.want(segment.metadata, KEYS)
    async with asyncio.timeout(60):
        found = await wanted
    assert found == dict.fromkeys(KEYS, 1)
    assert tier2.requests == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_request_in_the_line_is_let_through_though_its_attributes_leave_one_by_one() -> (
    None
):
    segment = Segment()
    asked: list[list[AttributeKey]] = []
    admitted = asyncio.Event()

    async def fetch(_segment: SegmentMetadata, keys: list[AttributeKey]) -> None:
        asked.append(keys)
        assert len(asked) <= REQUESTS_MAX, "it asks for ever"
        segment.forget()
        segment.attributes.learn(keys, dict.fromkeys(keys, 1))

    def attempt() -> None:
        # The second one is found to be needed once the first is known, as in a table whose pages name others.
        for key in KEYS[:2]:
            if not segment.attributes.is_known(key):
                raise UnknownAttributesError([key])
        admitted.set()

    line = AdmissionQueue(
        throttle=lambda: Throttle(0.0, ""),
        fetch_attributes=fetch,
        request_flush=lambda: None,
        queue_has_room=lambda: True,
        settings=OperationProcessorSettings(),
    )
    running = asyncio.create_task(line.run())
    line.add(WaitingRequest(segment.metadata, length=0, attempt=attempt, fail=lambda error: None))
    waiting = asyncio.create_task(admitted.wait())
    await asyncio.wait({running, waiting}, return_when="FIRST_COMPLETED")
    assert admitted.is_set()
    assert asked == [KEYS[:1], KEYS[:2]]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
