from collections.abc import AsyncIterator
from random import Random

import pytest

from segmentstore.client.connection import ConnectionPool
from segmentstore.client.errors import OutcomeUnknownError
from segmentstore.client.segment_appender import append_large_event
from segmentstore.client.segment_calls import FixedLocator, SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, SegmentIsSealed
from segmentstore.codec.wire_protocol.segments import MergeSegments
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentSealedError
from tests.client.fake_store import FakeStore


@pytest.fixture
async def calls(fake_store: FakeStore) -> AsyncIterator[SegmentCalls]:
    fake_store.create("target")
    settings = ClientSettings(retry_seconds_max=0.02)
    calls = SegmentCalls(
        locator=FixedLocator(fake_store.endpoint),
        pool=ConnectionPool(settings),
        settings=settings,
        random=Random(1),
    )
    yield calls
    await calls.close()


async def test_a_merge_into_a_segment_that_is_gone_is_not_taken_for_done(
    fake_store: FakeStore, calls: SegmentCalls
) -> None:
    def gone(command: Command) -> Command | None:
        if isinstance(command, MergeSegments):
            return NoSuchSegment(command.request_id, command.target)
        return None

    fake_store.on_request = gone
    with pytest.raises(SegmentNotFoundError):
        await append_large_event(calls, "target", b"content")


async def test_an_event_whose_pieces_the_server_dropped_is_collected_again(
    fake_store: FakeStore, calls: SegmentCalls
) -> None:
    """Servers may drop a transient segment with the connection that made it."""
    dropped = 0

    def dropping(command: Command) -> None:
        nonlocal dropped
        if isinstance(command, MergeSegments) and dropped < 2:
            dropped += 1
            del fake_store.segments[command.source]

    fake_store.on_request = dropping
    await append_large_event(calls, "target", b"content")
    assert fake_store.segments["target"].content == b"content"


async def test_h74_a_merge_whose_answer_was_lost_is_asked_for_again(
    fake_store: FakeStore, calls: SegmentCalls
) -> None:
    whats = iter(["drop after"])
    fake_store.on_request = lambda command: (
        next(whats, None) if isinstance(command, MergeSegments) else None
    )
    await append_large_event(calls, "target", b"content")
    assert fake_store.segments["target"].content == b"content"


@pytest.mark.parametrize("gone", ["source", "target"])
async def test_a_merge_that_nobody_remembers_behind_a_lost_answer_has_an_unknown_outcome(
    fake_store: FakeStore, calls: SegmentCalls, gone: str
) -> None:
    asked = 0

    def forgetting(command: Command) -> Command | str | None:
        nonlocal asked
        if not isinstance(command, MergeSegments):
            return None
        asked += 1
        if asked == 1:
            return "drop after"
        return NoSuchSegment(
            command.request_id, command.source if gone == "source" else command.target
        )

    fake_store.on_request = forgetting
    with pytest.raises(OutcomeUnknownError):
        await append_large_event(calls, "target", b"content")
    assert fake_store.segments["target"].content == b"content"


@pytest.mark.parametrize("is_merged", [False, True])
async def test_behind_a_lost_answer_a_seal_counts_only_while_the_pieces_are_there(
    fake_store: FakeStore, calls: SegmentCalls, *, is_merged: bool
) -> None:
    """Without them the event may be in the sealed segment, and must not go to its successor as well."""
    asked = 0

    def sealing(command: Command) -> Command | str | None:
        nonlocal asked
        if not isinstance(command, MergeSegments):
            return None
        asked += 1
        if asked == 1:
            return "drop after" if is_merged else "drop before"
        return SegmentIsSealed(command.request_id, command.target)

    fake_store.on_request = sealing
    with pytest.raises(OutcomeUnknownError if is_merged else SegmentSealedError):
        await append_large_event(calls, "target", b"content")
