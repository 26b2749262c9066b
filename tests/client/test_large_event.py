from random import Random

import pytest

from segmentstore.client.connection import ConnectionPool
from segmentstore.client.segment_appender import append_large_event
from segmentstore.client.segment_calls import FixedLocator, SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment
from segmentstore.codec.wire_protocol.segments import MergeSegments
from segmentstore.contracts.errors import SegmentNotFoundError
from tests.client.fake_store import FakeStore


async def test_a_merge_into_a_segment_that_is_gone_is_not_taken_for_done(
    fake_store: FakeStore,
) -> None:
    def gone(command: Command) -> Command | None:
        if isinstance(command, MergeSegments):
            return NoSuchSegment(command.request_id, command.target)
        return None

    fake_store.create("target")
    fake_store.on_request = gone
    settings = ClientSettings()
    calls = SegmentCalls(
        locator=FixedLocator(fake_store.endpoint),
        pool=ConnectionPool(settings),
        settings=settings,
        random=Random(1),
    )
    with pytest.raises(SegmentNotFoundError):
        await append_large_event(calls, "target", b"content")
    await calls.close()
