"""A node that stops, under clients that keep their connections: each request has an answer, or was never sent."""

import asyncio
import socket
from dataclasses import replace

from aiohttp import ClientConnectorError, ClientSession

from segmentstore.contracts.identifiers import ContainerId
from tests.http.nodes_in_cluster import SETTINGS, name_in, running_member

NAME = name_in(0)
CLIENTS = 20
LINGER_SECONDS = 0.5


async def test_requests_on_kept_connections_are_answered_until_their_clients_have_gone() -> None:
    settings = replace(SETTINGS, linger_seconds=LINGER_SECONDS)
    async with running_member("node", settings) as member, ClientSession() as session:
        member.served.update(map(ContainerId, range(4)))
        await member.segments.create(NAME)
        url = member.node.segment(f"{NAME}/append")
        answered = 0
        begun = asyncio.Event()

        async def ask() -> None:
            nonlocal answered
            while True:
                try:
                    async with session.post(url, data=b"x") as answer:
                        assert answer.status == 200
                        await answer.read()
                except ClientConnectorError:
                    return
                answered += 1
                if answered == 10 * CLIENTS:
                    begun.set()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(ask())
            await begun.wait()
            await member.node.server.close()
        assert len(member.segments.content(NAME)) == answered


async def test_a_stopping_node_says_that_it_closes_a_connection_and_soon_closes_idle_ones() -> None:
    settings = replace(SETTINGS, linger_seconds=LINGER_SECONDS)
    async with running_member("node", settings) as member:
        member.served.update(map(ContainerId, range(4)))
        await member.segments.create(NAME)
        host, port = member.node.server.address
        used, idle = [await asyncio.open_connection(host, port) for _ in range(2)]
        for reader, writer in (used, idle):
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"connection: close" not in (await reader.readuntil(b"\r\n\r\n")).lower()
            await asyncio.sleep(0.05)  # the body
        closing = asyncio.create_task(member.node.server.close())
        await asyncio.sleep(0.05)
        used[1].write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(5):
            rest = await used[0].read()
        assert b"connection: close" in rest.lower()
        async with asyncio.timeout(5):
            assert b"HTTP/1.1" not in await idle[0].read()
            await closing
        for _, writer in (used, idle):
            writer.close()


async def test_a_connection_that_the_kernel_has_accepted_is_answered() -> None:
    async with running_member("node") as member:
        with socket.create_connection(member.node.server.address) as client:
            # The loop has not run since, so that the server knows nothing of it.
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await member.node.server.close()
            client.settimeout(5)
            answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()
