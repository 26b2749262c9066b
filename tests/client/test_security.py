"""Servers that have to prove who they are, and clients that have to."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from segmentstore.client import StreamConfig, Tls, connect
from segmentstore.client.connection import ConnectionPool, ServerAddress
from segmentstore.client.errors import ClientError, RefusedError
from segmentstore.client.segment_calls import DelegationTokens, FixedLocator, SegmentCalls
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    SealSegment,
    SegmentCreated,
    SegmentSealed,
)
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.entropy import system_random
from segmentstore.wire.requests import TokenVerdict
from tests.client.conftest import SETTINGS
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore
from tests.wire.node import running_node

IMPATIENT = replace(SETTINGS, request_seconds=1.0)
"""For what is not answered, and for nothing else."""
SEGMENT = "s/t/0.#epoch.0"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `certificate` and `key` of localhost, which vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    (directory / "certificate").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return directory


@asynccontextmanager
async def behind_tls(address: str, certificate: Path) -> AsyncIterator[str]:
    """The address at which the same server is reached by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "certificate", certificate / "key")
    context.set_alpn_protocols(["h2"])
    inner = urlsplit(address)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection(inner.hostname, inner.port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(reader, to_server[1]))
                group.create_task(pump(to_server[0], writer))
        finally:
            writer.transport.abort()
            to_server[1].transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"tls://localhost:{server.sockets[0].getsockname()[1]}"


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.transport.abort()
    except OSError:
        writer.transport.abort()


async def test_events_go_through_tls_to_servers_whose_certificate_is_vouched_for(
    fake_store: FakeStore, controller: FakeController, certificate: Path
) -> None:
    tls = Tls(authority=(certificate / "certificate").read_bytes())
    async with (
        behind_tls(controller.address, certificate) as outer_controller,
        behind_tls(f"tcp://{fake_store.endpoint}", certificate) as outer_store,
        connect(outer_controller, segment_store=outer_store, tls=tls, settings=SETTINGS) as store,
    ):
        await store.scope("s").create()
        stream = store.stream("s/t")
        await stream.create(StreamConfig())
        async with stream.writer() as writer:
            await writer.write_and_wait(b"sealed with a key")
    assert fake_store.events(SEGMENT) == [b"sealed with a key"]


async def test_a_server_that_nobody_vouches_for_is_not_talked_to(
    fake_store: FakeStore, controller: FakeController, certificate: Path
) -> None:
    async with (
        behind_tls(controller.address, certificate) as outer_controller,
        behind_tls(f"tcp://{fake_store.endpoint}", certificate) as outer_store,
    ):
        async with connect(outer_controller, settings=IMPATIENT) as store:
            with pytest.raises(ClientError):
                await store.scope("s").create()
        async with connect(
            controller.address.replace("tcp://", "tls://"),
            segment_store=outer_store,
            settings=IMPATIENT,
        ) as store:
            with pytest.raises(ClientError):
                await store.segment(SEGMENT).info()
    assert controller.calls == []


def test_certificates_and_addresses_have_to_fit_together() -> None:
    with pytest.raises(InvalidRequestError, match="tls://"):
        connect("tcp://127.0.0.1:9090", tls=Tls())
    with pytest.raises(InvalidRequestError, match="certificate"):
        Tls(authority=b"-----BEGIN NONSENSE-----").ssl_context()


async def test_the_controller_is_shown_who_asks_each_time_anew(controller: FakeController) -> None:
    passwords = iter(["Basic one", "Basic two"])
    async with connect(controller.address, authorization=lambda: next(passwords)) as store:
        await store.scope("s").create()
        await store.stream("s/t").create(StreamConfig())
    assert controller.authorizations == ["Basic one", "Basic two"]


async def test_nothing_is_shown_and_no_token_asked_for_without_authorization(
    fake_store: FakeStore, controller: FakeController
) -> None:
    async with connect(controller.address) as store:
        await store.scope("s").create()
        stream = store.stream("s/t")
        await stream.create(StreamConfig())
        async with stream.writer() as writer:
            await writer.write_and_wait(b"event")
    assert controller.authorizations == []
    assert controller.tokens_given == 0


class Guard:
    """Gives out numbered tokens, and takes those it was told to."""

    def __init__(self) -> None:
        self.given = 0
        self.oldest_good = 1
        self.good = True
        self.seen: list[str] = []

    async def delegation_token(self, scope: str, stream: str) -> str:
        self.given += 1
        return f"{scope}/{stream} {self.given}"

    def verify(self, token: str, segment: str, *, write: bool) -> TokenVerdict:
        assert write
        self.seen.append(token)
        stream, _, number = token.partition(" ")
        if not self.good or stream != segment.rsplit("/", 1)[0]:
            return TokenVerdict.REFUSED
        return TokenVerdict.ACCEPTED if int(number) >= self.oldest_good else TokenVerdict.EXPIRED


@asynccontextmanager
async def guarded(guard: Guard) -> AsyncIterator[SegmentCalls]:
    async with running_node(verify_token=guard.verify) as node:
        tokens = DelegationTokens(guard, FixedLocator(ServerAddress(*node.server.address)))
        calls = SegmentCalls(
            locator=tokens,
            pool=ConnectionPool(SETTINGS, sign=tokens.sign),
            settings=SETTINGS,
            random=system_random(),
        )
        try:
            yield calls
        finally:
            await calls.close()


async def create(calls: SegmentCalls, segment: str = SEGMENT) -> None:
    await calls.ask(
        segment, lambda number: CreateSegment(number, segment, 0, 0, ""), SegmentCreated
    )


async def seal(calls: SegmentCalls, segment: str = SEGMENT) -> None:
    await calls.ask(segment, lambda number: SealSegment(number, segment, ""), SegmentSealed)


async def test_segment_stores_are_shown_the_token_of_the_stream() -> None:
    guard = Guard()
    async with guarded(guard) as calls:
        await create(calls)
        await create(calls, "s/other/0.#epoch.0")
        await seal(calls)
    assert guard.seen == ["s/t 1", "s/other 2", "s/t 1"]


async def test_a_token_that_became_too_old_is_replaced_and_the_request_repeated() -> None:
    guard = Guard()
    async with guarded(guard) as calls:
        await create(calls)
        guard.oldest_good = 2
        await seal(calls)
    # Fetched before the pause, and once more behind it: the segment may have moved.
    assert guard.seen == ["s/t 1", "s/t 1", "s/t 3"]


async def test_a_token_that_another_one_forgets_signs_until_the_next_one_is_there() -> None:
    guard = Guard()
    async with guarded(guard) as calls:
        await create(calls)
        others = calls.with_own_connections()
        try:
            sealing = asyncio.create_task(seal(others))
            # The token is there, the connection is not.
            await asyncio.sleep(0)
            calls.locator.forget(SEGMENT)
            await sealing
            await seal(calls)
        finally:
            await others.close()
    assert guard.seen == ["s/t 1", "s/t 1", "s/t 2"]


async def test_a_token_that_is_not_accepted_fails_the_request() -> None:
    guard = Guard()
    guard.good = False
    async with guarded(guard) as calls:
        with pytest.raises(RefusedError):
            await create(calls)
    assert guard.seen == ["s/t 1"]
