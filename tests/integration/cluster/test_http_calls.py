"""What a client of the faults takes for not done: never a request that may have arrived."""

import asyncio
from random import Random

import pytest

from tests.integration.cluster.history import History
from tests.integration.cluster.http_calls import HttpCalls, http_session
from tests.linearizability.operation import Outcome, Verb

pytestmark = pytest.mark.integration

ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_request_that_a_node_got_before_it_died_is_of_unknown_outcome() -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ANSWER)
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        # It dies: nothing listens there any more, and its connections break.
        server.close()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    history = History()
    async with http_session() as session:
        client = HttpCalls(
            session, lambda: [f"{host}:{port}"], history=history, client=1, random=Random(1)
        )
        assert await client.create("a") is not None
        assert await client.create("b") is None
        assert await client.create("c") is None
    assert len(requests) == 2, "both came over the one connection, and neither was sent again"
    told = [(each.target, each.verb, each.outcome) for each in history.operations]
    assert told == [("a", Verb.CREATE, Outcome.OK), ("b", Verb.CREATE, Outcome.UNKNOWN)]
    assert history.refused.total() == 1, "that nothing listened says that nothing was done"
