"""Goal: over one connection each request gets its own answer, or is told what became of it; nothing is mixed up.

Method: a server that answers when it is told to, and with what.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from segmentstore.client.errors import (
    ConnectionLostError,
    NoCommonVersionError,
    OutcomeUnknownError,
)
from segmentstore.client.kafka_connection import KafkaConnection, open_kafka_connection
from segmentstore.codec.kafka_protocol.api_table import ApiKey
from segmentstore.codec.kafka_protocol.cluster import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from segmentstore.codec.kafka_protocol.frames import (
    FrameCutter,
    decode_request,
    encode_response,
    read_request_header,
)


class HeldServer:
    """Tells in each answer what was asked for. Takes one connection."""

    def __init__(self, *, newest: int = 1, oldest: int = 0) -> None:
        """The versions of FindCoordinator that it speaks."""
        self.newest, self.oldest = newest, oldest
        self.versions: list[int] = []
        """Those in which it was asked."""
        self.asked: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self.writer: StreamWriter | None = None
        self.ended = asyncio.Event()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.writer = writer
        cutter = FrameCutter()
        try:
            while content := await reader.read(1000):
                for frame in cutter.feed(content):
                    header = read_request_header(frame)
                    request = decode_request(header, frame)
                    if isinstance(request, ApiVersionsRequest):
                        await self._tell_versions(header.correlation_id)
                        continue
                    assert isinstance(request, FindCoordinatorRequest)
                    self.versions.append(header.api_version)
                    self.asked.put_nowait((header.correlation_id, request.key))
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()

    async def _tell_versions(self, correlation_id: int) -> None:
        assert self.writer is not None
        row = ApiVersionRange(
            api_key=ApiKey.FIND_COORDINATOR, min_version=self.oldest, max_version=self.newest
        )
        told = ApiVersionsResponse(error_code=0, api_keys=(row,) if self.newest >= 0 else ())
        self.writer.writelines(encode_response(correlation_id, told, 0))

    async def answer(self, *, as_id: int | None = None) -> str:
        """The oldest request that was not answered; what it asked for."""
        correlation_id, key = await self.asked.get()
        message = FindCoordinatorResponse(error_code=0, node_id=1, host=key, port=1)
        version = self.versions[0]
        assert self.writer is not None
        answer_id = correlation_id if as_id is None else as_id
        self.writer.writelines(encode_response(answer_id, message, version))
        return key


@asynccontextmanager
async def connected(
    *, requests_max: int = 10, bytes_max: int = 1_000, newest: int = 1, oldest: int = 0
) -> AsyncIterator[tuple[HeldServer, KafkaConnection]]:
    held = HeldServer(newest=newest, oldest=oldest)
    server = await asyncio.start_server(held.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    connection = await open_kafka_connection(
        host, port, requests_max=requests_max, bytes_max=bytes_max
    )
    try:
        yield held, connection
    finally:
        connection.check()
        await connection.close()
        await connection.close()
        # Not left to when it hears of its client.
        await held.ended.wait()
        server.close()
        await server.wait_closed()


async def ask(connection: KafkaConnection, key: str) -> str:
    answer = await connection.ask(FindCoordinatorRequest(key=key), FindCoordinatorResponse)
    return answer.host


def submit(connection: KafkaConnection, key: str) -> "asyncio.Future[str]":
    return connection.submit(
        FindCoordinatorRequest(key=key),
        FindCoordinatorResponse,
        lambda answer: answer.host,
        lambda error: error,
    )


async def test_what_is_submitted_goes_at_once_and_is_answered_in_order() -> None:
    async with connected() as (server, connection):
        futures = [submit(connection, key) for key in "abc"]
        assert [await server.answer() for _ in "abc"] == ["a", "b", "c"]
        assert await asyncio.gather(*futures) == ["a", "b", "c"]
        assert connection.is_idle


async def test_a_caller_that_leaves_gives_its_answer_to_none_of_the_next() -> None:
    async with connected() as (server, connection):
        gone = submit(connection, "gone")
        gone.cancel()
        following = submit(connection, "next")
        assert await server.answer() == "gone"
        assert await server.answer() == "next"
        assert await following == "next"


async def test_a_caller_that_leaves_what_it_has_asked_ends_the_connection() -> None:
    async with connected() as (server, connection):
        gone = asyncio.ensure_future(ask(connection, "gone"))
        await server.asked.get()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert not connection.is_open


async def test_an_answer_to_another_request_ends_the_connection_and_says_so() -> None:
    async with connected() as (server, connection):
        asked = asyncio.ensure_future(ask(connection, "a"))
        await server.answer(as_id=77)
        with pytest.raises(OutcomeUnknownError, match="answer to another request"):
            await asked
        assert not connection.is_open
        with pytest.raises(ConnectionLostError):
            await ask(connection, "b")


async def test_what_was_sent_when_the_server_leaves_has_an_unknown_outcome() -> None:
    async with connected() as (server, connection):
        asked = asyncio.ensure_future(ask(connection, "a"))
        await server.asked.get()
        assert server.writer is not None
        server.writer.close()
        with pytest.raises(OutcomeUnknownError):
            await asked


async def test_one_too_many_is_refused_and_not_sent() -> None:
    async with connected(requests_max=2) as (server, connection):
        futures = [submit(connection, key) for key in "ab"]
        with pytest.raises(ConnectionLostError, match="too many requests"):
            await submit(connection, "c")
        for _ in futures:
            await server.answer()
        assert await asyncio.gather(*futures) == ["a", "b"]
        last = submit(connection, "d")
        assert await server.answer() == "d", "c was never sent"
        assert await last == "d"


@pytest.mark.parametrize(("newest", "spoken"), [(0, 0), (1, 1), (9, 3)])
async def test_a_request_goes_in_the_newest_version_that_both_sides_speak(
    newest: int, spoken: int
) -> None:
    async with connected(newest=newest) as (server, connection):
        asked = asyncio.ensure_future(ask(connection, "a"))
        assert await server.answer() == "a"
        assert await asked == "a"
        assert server.versions == [spoken]


@pytest.mark.parametrize(("oldest", "newest"), [(4, 9), (0, -1)])
async def test_what_no_common_version_has_is_refused_and_not_sent(oldest: int, newest: int) -> None:
    async with connected(oldest=oldest, newest=newest) as (server, connection):
        with pytest.raises(NoCommonVersionError, match="FIND_COORDINATOR"):
            await ask(connection, "a")
        assert connection.is_idle
        assert not server.versions


async def test_a_server_that_does_not_say_its_versions_is_given_up_in_time() -> None:
    gone = asyncio.Event()

    async def stand_still(reader: StreamReader, writer: StreamWriter) -> None:
        while await reader.read(100):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(stand_still, "127.0.0.1", 0)
    with pytest.raises(ConnectionLostError, match="too long"):
        await open_kafka_connection(*server.sockets[0].getsockname(), connect_seconds=0.05)
    # Its connection is not left behind.
    await gone.wait()
    server.close()
    await server.wait_closed()
