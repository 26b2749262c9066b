"""A node that stops, under clients that keep their connections: each request has an answer, or was never sent."""

import asyncio
import socket
import time
from dataclasses import replace

import pytest
from aiohttp import ClientConnectorError, ClientSession

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.http import server_runner
from tests.http.node import until
from tests.http.nodes_in_cluster import SETTINGS, name_in, running_member

NAME = name_in(0)
CLIENTS = 20
LINGER_SECONDS = 0.5


async def test_requests_on_kept_connections_are_answered_until_their_clients_have_gone() -> None:
    settings = replace(SETTINGS, linger_seconds=60)
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
        async with asyncio.timeout(60):
            rest = await used[0].read()
        assert b"connection: close" in rest.lower()
        async with asyncio.timeout(60):
            rest = await idle[0].read()
            await closing
        # Not the answer to anything that was asked: a farewell.
        assert rest.count(b"HTTP/1.1") == rest.count(b"HTTP/1.1 503") == 1
        assert b"connection: close" in rest.lower()
        for _, writer in (used, idle):
            writer.close()


async def test_a_request_under_way_for_longer_than_the_rest_is_the_last_of_its_connection() -> None:
    settings = replace(SETTINGS, linger_seconds=LINGER_SECONDS)
    async with running_member("node", settings) as member:
        member.served.update(map(ContainerId, range(4)))
        await member.segments.create(NAME)
        reader, writer = await asyncio.open_connection(*member.node.server.address)
        head = f"POST /v1/segments/{NAME}/append HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        writer.write(f"{head}Content-Length: 2\r\n\r\na".encode())
        await until(lambda: member.node.server.router._statistics.in_flight == 1)
        closing = asyncio.create_task(member.node.server.close())
        await asyncio.sleep(2 * LINGER_SECONDS)
        writer.write(b"b")
        async with asyncio.timeout(60):
            answer = await reader.read()
            await closing
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()
        assert member.segments.content(NAME) == b"ab"
        writer.close()


@pytest.mark.parametrize("sent_before", [b"", b"POST /v1/segments/"])
async def test_a_request_that_meets_the_end_of_an_idle_connection_is_told_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch,
    sent_before: bytes,
) -> None:
    # However late the client looks at its connection.
    monkeypatch.setattr(server_runner, "_FAREWELL_SECONDS", 60.0)
    async with running_member("node") as member:
        member.served.update(map(ContainerId, range(4)))
        await member.segments.create(NAME)
        request = (
            f"POST /v1/segments/{NAME}/append HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nx"
        ).encode()
        loop = asyncio.get_running_loop()
        with socket.create_connection(member.node.server.address) as client:
            client.setblocking(False)
            await loop.sock_sendall(
                client, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + sent_before
            )
            assert (await loop.sock_recv(client, 1 << 16)).startswith(b"HTTP/1.1 200")
            closing = asyncio.create_task(member.node.server.close())
            # A client that looks at the connection when it has sent: the farewell is there before.
            is_there = asyncio.Event()
            loop.add_reader(client, is_there.set)
            await is_there.wait()
            loop.remove_reader(client)
            await loop.sock_sendall(client, request.removeprefix(sent_before))
            answer = b""
            while content := await loop.sock_recv(client, 1 << 16):
                answer += content
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(60):
                await closing
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in answer.lower()
        assert b"segment-wrong-node" in answer.lower()
        assert member.segments.content(NAME) == b""


async def test_a_client_that_keeps_its_connection_and_says_nothing_holds_a_stop_back_for_seconds_only() -> (
    None
):
    settings = replace(SETTINGS, shutdown_seconds=600)
    async with running_member("node", settings) as member:
        with socket.create_connection(member.node.server.address):
            await asyncio.sleep(0.05)
            async with asyncio.timeout(60):
                await member.node.server.close()


async def test_a_request_that_a_client_of_ours_sends_into_a_farewell_is_refused_and_not_lost() -> (
    None
):
    async with running_member("node") as member, ClientSession() as session:
        member.served.update(map(ContainerId, range(4)))
        await member.segments.create(NAME)
        url = member.node.segment(f"{NAME}/append")
        async with session.post(url, data=b"x") as answer:
            await answer.read()
        closing = asyncio.create_task(member.node.server.close())
        statuses: list[int] = []
        while not closing.done():
            await asyncio.sleep(0)
            # In each turn of the loop one more, on whatever connection is kept.
            try:
                async with session.post(url, data=b"x") as answer:
                    statuses.append(answer.status)
            except ClientConnectorError:
                break
        await closing
        assert set(statuses) <= {200, 503}
        assert len(member.segments.content(NAME)) == 1 + statuses.count(200)


async def test_a_connection_that_the_kernel_has_accepted_is_answered() -> None:
    async with running_member("node", replace(SETTINGS, linger_seconds=60)) as member:
        with socket.create_connection(member.node.server.address) as client:
            # The loop has not run since, so that the server knows nothing of it.
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await member.node.server.close()
            client.settimeout(60)
            answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()


async def test_a_connection_that_arrives_with_the_end_of_listening_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop finds both in one turn: that it is there, and that it is time to listen no more."""
    begun = asyncio.Event()
    monkeypatch.setattr(server_runner, "refuse_handshakes", lambda _: begun.set())
    monkeypatch.setattr(server_runner, "_HANDSHAKE_SECONDS", 1.0)
    async with running_member("node", replace(SETTINGS, linger_seconds=60)) as member:
        address = member.node.server.address
        closing = asyncio.create_task(member.node.server.close())
        await begun.wait()
        time.sleep(1.1)
        with socket.create_connection(address) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            client.setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(client, 1 << 16)
        assert answer.startswith(b"HTTP/1.1 200")
        await closing
