"""Goal: what waits when a store or a writer is closed ends at once, as do later calls, and both hear why.

Method: servers that do not answer any more, so that nothing but the closing can end a wait; the deadlines of the client
are longer than those here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from segmentstore.client import ScalingPolicy, Store, Stream, StreamConfig, connect
from segmentstore.client.errors import ClientError, ClosedError, OutcomeUnknownError
from segmentstore.codec.wire_protocol.appends import ConditionalBlockEnd, CreateTransientSegment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import GetStreamSegmentInfo
from segmentstore.codec.wire_protocol.segments import MergeSegments
from segmentstore.codec.wire_protocol.tables import ReadTable, UpdateTableEntries
from tests.client.conftest import SETTINGS
from tests.client.fake_store import FakeStore

AT_ONCE_SECONDS = 20.0
"""Less than a request may take."""
LARGE = bytes(9 << 20)


@pytest.fixture
async def stream(store: Store) -> Stream:
    stream = store.stream("s/t")
    await stream.create(StreamConfig(ScalingPolicy.fixed(1)))
    return stream


def silence(fake_store: FakeStore, *kinds: type[Command], count: int = 1) -> asyncio.Event:
    """Requests of these kinds get no answer from now on; the event is set when so many came."""
    asked = asyncio.Event()
    left = count

    def override(command: Command) -> str | None:
        nonlocal left
        if not isinstance(command, kinds):
            return None
        left -= 1
        if not left:
            asked.set()
        return "ignore"

    fake_store.on_request = override
    return asked


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (CreateTransientSegment, ClientError),
        (ConditionalBlockEnd, ClientError),
        (MergeSegments, OutcomeUnknownError),
    ],
)
async def test_a_large_event_on_its_way_ends_with_its_writer(
    fake_store: FakeStore, stream: Stream, step: type[Command], error: type[ClientError]
) -> None:
    asked = silence(fake_store, step)
    writer = stream.writer()
    await writer.open()
    large = asyncio.create_task(writer.write(LARGE))
    await asked.wait()
    async with asyncio.timeout(AT_ONCE_SECONDS):
        await writer.close()
        with pytest.raises(error):
            await large


async def test_a_merge_that_may_be_done_is_not_said_to_be_undone_by_closing(
    fake_store: FakeStore, stream: Stream
) -> None:
    """The answer to the first attempt was lost; the writer is closed before the second one is made."""
    asked = asyncio.Event()

    def lose(command: Command) -> str | None:
        if isinstance(command, MergeSegments):
            asked.set()
            return "drop after"
        return "drop before" if asked.is_set() else None

    fake_store.on_request = lose
    writer = stream.writer()
    await writer.open()
    large = asyncio.create_task(writer.write(LARGE))
    await asked.wait()
    async with asyncio.timeout(AT_ONCE_SECONDS):
        await asyncio.sleep(0.1)
        await writer.close()
        with pytest.raises(OutcomeUnknownError):
            await large


async def test_what_is_asked_of_a_closed_store_is_refused_at_once(
    store: Store, stream: Stream, fake_store: FakeStore
) -> None:
    segment, table, group = stream.segment(0), store.table("s/k"), store.reader_group("s/g")
    await table.create(key_length=1)
    await group.create(["t"])
    await table.put(b"k", b"v")
    await segment.append(b"x")
    await store.__aexit__(None, None, None)
    calls: list[Callable[[], Awaitable[object]]] = [
        store.scopes,
        stream.seal,
        segment.info,
        group.info,
        lambda: segment.append(b"x"),
        lambda: table.get(b"k"),
        lambda: table.put(b"k", b"w"),
        stream.writer().open,
        stream.read().__aenter__,
        group.reader("r").__aenter__,
    ]
    async with asyncio.timeout(AT_ONCE_SECONDS):
        for call in calls:
            with pytest.raises(ClosedError):
                await call()
    assert fake_store.segments["s/t/0.#epoch.0"].content == b"x"


async def test_what_waits_when_its_store_is_closed_ends_at_once(
    store: Store, stream: Stream, fake_store: FakeStore
) -> None:
    segment, table = stream.segment(0), store.table("s/k")
    await table.create(key_length=1)
    await table.put(b"k", b"v")
    kinds = (ConditionalBlockEnd, GetStreamSegmentInfo, ReadTable, UpdateTableEntries)
    asked = silence(fake_store, *kinds, count=5)
    waiting = [
        asyncio.ensure_future(each)
        for each in (
            segment.info(),
            segment.append(b"x", offset=0),
            table.get(b"k"),
            table.put(b"k", b"w"),
            table.insert(b"l", b"w"),
        )
    ]
    await asked.wait()
    async with asyncio.timeout(AT_ONCE_SECONDS):
        await store.__aexit__(None, None, None)
        for each in waiting:
            with pytest.raises(OutcomeUnknownError):
                await each


class Silent(asyncio.Protocol):
    """Takes connections, and says nothing."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.transports: list[asyncio.Transport] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transports.append(transport)
        self.came.set()


async def test_what_waits_for_a_controller_when_the_store_is_closed_hears_of_it() -> None:
    silent = Silent()
    server = await asyncio.get_running_loop().create_server(lambda: silent, "127.0.0.1", 0)
    async with server:
        address = "tcp://{}:{}".format(*server.sockets[0].getsockname())
        async with connect(address, settings=SETTINGS, random=Random(1)) as store:
            waiting = [
                asyncio.create_task(store.scopes()),
                asyncio.create_task(store.scope("s").create()),
            ]
            await silent.came.wait()
        async with asyncio.timeout(AT_ONCE_SECONDS):
            for each in waiting:
                with pytest.raises(OutcomeUnknownError):
                    await each
    for transport in silent.transports:
        transport.abort()
    await asyncio.sleep(0)
