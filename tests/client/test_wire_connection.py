import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random

import pytest

from segmentstore.client.connection import ConnectionPool, ServerAddress, open_connection
from segmentstore.client.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    OutcomeUnknownError,
    RefusedError,
    ServiceUnavailableError,
    WrongHostError,
    error_from_reply,
)
from segmentstore.client.segment_calls import FixedLocator, RememberingLocator, SegmentCalls
from segmentstore.client.settings import ClientSettings
from segmentstore.codec.wire_protocol.command import Command, Hello, KeepAlive
from segmentstore.codec.wire_protocol.reads import GetStreamSegmentInfo, StreamSegmentInfo
from segmentstore.codec.wire_protocol.refusals import (
    TOKEN_EXPIRED,
    AuthTokenCheckFailed,
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsSealed,
    SegmentIsTruncated,
    WrongHost,
)
from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segmentstore.runtime.process import loop_factory
from tests.client.fake_store import FakeStore
from tests.held_ports import bound_sockets

PATIENT = ClientSettings(connect_seconds=60.0)
"""Its connections are made, however long this process stands still meanwhile."""


def info_of(segment: str) -> Callable[[int], Command]:
    return lambda request_id: GetStreamSegmentInfo(request_id, segment, "")


def calls(endpoint: ServerAddress, settings: ClientSettings) -> SegmentCalls:
    return SegmentCalls(
        locator=FixedLocator(endpoint),
        pool=ConnectionPool(settings),
        settings=settings,
        random=Random(1),
    )


@asynccontextmanager
async def saying(content: bytes) -> AsyncIterator[ServerAddress]:
    """A server that says something and then nothing."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(content)
        await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    # The end of a server waits for its connections from Python 3.12 on.
    async with server:
        yield ServerAddress(*server.sockets[0].getsockname())
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_many_requests_share_a_connection(fake_store: FakeStore) -> None:
    for number in range(50):
        fake_store.create(f"segment {number}").content += b"x" * number
    client = calls(fake_store.endpoint, PATIENT)
    answers = await asyncio.gather(
        *(client.ask(f"segment {n}", info_of(f"segment {n}"), StreamSegmentInfo) for n in range(50))
    )
    assert [answer.write_offset for answer in answers] == list(range(50))
    assert fake_store.connections == 1
    await client.close()


def test_a_connection_is_made_on_the_loop_that_serving_processes_have() -> None:
    """Its transports are of no class of asyncio."""

    async def connect() -> None:
        async with saying(Hello(17, 5).encode()) as endpoint:
            connection = await open_connection(endpoint)
            await connection.close()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(connect())


async def test_a_server_of_another_version_is_refused() -> None:
    async with saying(Hello(4, 1).encode()) as endpoint:
        with pytest.raises(ConnectionLostError):
            await open_connection(endpoint)


async def test_a_server_that_speaks_something_else_is_refused() -> None:
    async with saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as endpoint:
        with pytest.raises(ConnectionLostError):
            await open_connection(endpoint)


async def test_a_silent_server_is_given_up_in_time() -> None:
    async with saying(b"") as endpoint:
        pool = ConnectionPool(ClientSettings(connect_seconds=0.02))
        with pytest.raises(ConnectionLostError, match="too long"):
            await pool.connection(endpoint)
        await pool.close()


async def test_an_answer_that_stays_away_is_a_missed_deadline_and_ends_the_connection() -> None:
    async with saying(Hello(16, 5).encode()) as endpoint:
        client = calls(endpoint, replace(PATIENT, request_seconds=0.05))
        connection = await client.pool.connection(endpoint)
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceededError, match=f"attempts=1 .*{endpoint}"):
            await client.ask("segment", info_of("segment"), StreamSegmentInfo)
        assert not connection.is_open
        await client.close()


async def test_nobody_listens() -> None:
    # Time for at least one attempt, also where the process stands still for a moment.
    settings = ClientSettings(request_seconds=0.5, retry_seconds_max=0.01)
    (holder,) = bound_sockets(1)
    with holder:
        client = calls(ServerAddress(*holder.getsockname()), settings)
        with pytest.raises(DeadlineExceededError, match=r"last_refusal=.no segment store"):
            await client.ask("segment", info_of("segment"), StreamSegmentInfo)
        await client.close()


async def test_a_name_that_no_host_has_is_that_of_no_server() -> None:
    """Python cannot even encode it, and says so by another error than of an unknown one."""
    with pytest.raises(ConnectionLostError, match="no segment store answers"):
        await open_connection(ServerAddress("a..b", 12345))


async def test_what_may_not_be_repeated_has_an_unknown_outcome(fake_store: FakeStore) -> None:
    fake_store.create("segment")
    fake_store.on_request = lambda command: (
        "drop before" if isinstance(command, GetStreamSegmentInfo) else None
    )
    client = calls(fake_store.endpoint, ClientSettings())
    with pytest.raises(OutcomeUnknownError):
        await client.ask("segment", info_of("segment"), StreamSegmentInfo, repeatable=False)
    await client.close()


@pytest.mark.parametrize(
    ("refusal", "attempts"),
    [
        (WrongHost(0, "segment", "elsewhere"), 2),
        (ErrorMessage(0, "segment", "stopping", -1), 1),
        (AuthTokenCheckFailed(0, "", TOKEN_EXPIRED), 2),
    ],
)
async def test_only_what_was_certainly_not_done_is_done_again(
    fake_store: FakeStore, refusal: Command, attempts: int
) -> None:
    fake_store.create("segment")
    asked = 0

    def refusing(command: Command) -> Command | None:
        nonlocal asked
        if not isinstance(command, GetStreamSegmentInfo):
            return None
        asked += 1
        return None if asked > 1 else replace(refusal, request_id=command.request_id)  # type: ignore[call-arg]

    fake_store.on_request = refusing
    client = calls(fake_store.endpoint, ClientSettings())
    ask = client.ask("segment", info_of("segment"), StreamSegmentInfo, repeatable=False)
    if attempts == 1:
        with pytest.raises(OutcomeUnknownError):
            await ask
    else:
        await ask
    assert asked == attempts
    await client.close()


async def test_a_closed_pool_opens_nothing(fake_store: FakeStore) -> None:
    pool = ConnectionPool(PATIENT)
    await pool.connection(fake_store.endpoint)
    await pool.close()
    await pool.close()
    with pytest.raises(ClosedError):
        await pool.connection(fake_store.endpoint)


async def test_concurrent_users_open_one_connection(fake_store: FakeStore) -> None:
    pool = ConnectionPool(PATIENT)
    found = await asyncio.gather(*(pool.connection(fake_store.endpoint) for _ in range(10)))
    assert all(each is found[0] for each in found)
    await pool.close()


class Source:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    async def segment_endpoint(self, scope: str, stream: str, segment_id: int) -> ServerAddress:
        self.asked.append((scope, stream, segment_id))
        return ServerAddress("127.0.0.1", len(self.asked))


async def test_a_location_is_remembered_until_it_is_found_wrong() -> None:
    source = Source()
    locator = RememberingLocator(source)
    name = "s/t/1.#epoch.2"
    transaction = f"{name}#transaction.{'0' * 32}"
    first = await locator.endpoint(name)
    assert await locator.endpoint(transaction) == first
    locator.forget(transaction)
    assert await locator.endpoint(name) != first
    assert source.asked == [("s", "t", 2 << 32 | 1)] * 2
    with pytest.raises(InvalidRequestError):
        await locator.endpoint("not a stream's segment")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (WrongHost(1, "n", "elsewhere"), WrongHostError),
        (SegmentIsSealed(1, "n"), SegmentSealedError),
        (NoSuchSegment(1, "n"), SegmentNotFoundError),
        (SegmentIsTruncated(1, "n", 5), SegmentTruncatedError),
        (SegmentAlreadyExists(1, "n"), SegmentExistsError),
        (OperationUnsupported(1, "fly"), RefusedError),
        (AuthTokenCheckFailed(1, ""), RefusedError),
        (ErrorMessage(1, "n", "no", 0), InvalidRequestError),
        (ErrorMessage(1, "n", "no", -1), ServiceUnavailableError),
    ],
)
def test_every_refusal_has_its_error(reply: Command, error: type[Exception]) -> None:
    assert type(error_from_reply(reply)) is error


@pytest.mark.parametrize("answers_keep_alive", [True, False])
async def test_a_request_at_a_server_that_stands_still_ends_if_it_was_known_to_answer(
    *, answers_keep_alive: bool
) -> None:
    content = Hello(16, 5).encode() + (KeepAlive().encode() if answers_keep_alive else b"")
    async with saying(content) as endpoint:
        pool = ConnectionPool(replace(PATIENT, silence_seconds=0.1))
        connection = await pool.connection(endpoint)
        request = asyncio.ensure_future(connection.request(info_of("s")))
        if answers_keep_alive:
            with pytest.raises(ConnectionLostError, match="says nothing"):
                await asyncio.wait_for(request, 60)
        else:
            await asyncio.wait([request], timeout=0.5)
            assert not request.done()
            request.cancel()
        await pool.close()


async def test_a_request_that_takes_long_is_waited_for_while_its_server_answers(
    fake_store: FakeStore,
) -> None:
    fake_store.on_request = lambda command: (
        "ignore" if isinstance(command, GetStreamSegmentInfo) else None
    )
    pool = ConnectionPool(replace(PATIENT, silence_seconds=0.1))
    connection = await pool.connection(fake_store.endpoint)
    request = asyncio.ensure_future(connection.request(info_of("s")))
    await asyncio.wait([request], timeout=0.6)
    assert not request.done()
    request.cancel()
    await pool.close()
