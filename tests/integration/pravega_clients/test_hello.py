"""What the server says to clients of other versions, byte by byte."""

import asyncio
import struct
from collections.abc import Iterator

import pytest

from tests.integration.pravega_clients.store_process import StoreProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]

HELLO = -127
NO_SUCH_SEGMENT = 53
STREAM_SEGMENT_INFO_ASKED = 11


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("hello") / "data") as server:
        yield server


def hello(high: int, low: int) -> bytes:
    return struct.pack(">iiii", HELLO, 8, high, low)


def question(request_id: int) -> bytes:
    """GetStreamSegmentInfo of a segment that does not exist."""
    name = b"no/such/0.#epoch.0"
    payload = struct.pack(">qH", request_id, len(name)) + name + struct.pack(">H", 0)
    return struct.pack(">ii", STREAM_SEGMENT_INFO_ASKED, len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    kind, length = struct.unpack(">ii", await reader.readexactly(8))
    return kind, await reader.readexactly(length)


@pytest.mark.parametrize(
    ("high", "low"), [(17, 5), (16, 5), (15, 5), (11, 5), (5, 5), (25, 16)], ids=str
)
async def test_a_client_of_a_version_that_overlaps_is_served(
    high: int, low: int, server: StoreProcess
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.wire_port)
    try:
        async with asyncio.timeout(60):
            writer.write(hello(high, low) + question(77))
            kind, payload = await read_frame(reader)
            assert kind == HELLO, "the first frame is the greeting"
            our_high, our_low = struct.unpack(">ii", payload)
            # The Rust client of the wheel needs at least 15; the Java client takes anything over its own low.
            assert our_high >= 15
            assert our_low == 5
            kind, payload = await read_frame(reader)
            assert (kind, struct.unpack_from(">q", payload)[0]) == (NO_SUCH_SEGMENT, 77)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("high", "low"), [(4, 1), (40, 30)], ids=str)
async def test_a_client_without_a_common_version_is_sent_away(
    high: int, low: int, server: StoreProcess
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.wire_port)
    try:
        async with asyncio.timeout(60):
            writer.write(hello(high, low))
            kind, _ = await read_frame(reader)
            assert kind == HELLO, "it is told our versions first"
            assert await reader.read() == b"", "and the connection is closed"
    finally:
        writer.close()


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">ii", HELLO, 0x01000000),
        struct.pack(">ii", HELLO, -1),
        hello(16, 5) + struct.pack(">ii", 999, 4) + b"abcd",
        hello(16, 5) + struct.pack(">ii", STREAM_SEGMENT_INFO_ASKED, 4) + b"abcd",
    ],
    ids=[
        "another protocol",
        "a frame too long",
        "a negative length",
        "an unknown type",
        "a short frame",
    ],
)
async def test_a_connection_that_makes_no_sense_is_closed_and_others_are_not(
    rubbish: bytes, server: StoreProcess
) -> None:
    good_reader, good = await asyncio.open_connection("127.0.0.1", server.wire_port)
    bad_reader, bad = await asyncio.open_connection("127.0.0.1", server.wire_port)
    try:
        async with asyncio.timeout(60):
            good.write(hello(16, 5))
            await read_frame(good_reader)
            bad.write(rubbish)
            with_suppressed_reset = await read_until_closed(bad_reader)
            assert len(with_suppressed_reset) < 1000
            good.write(question(5))
            kind, _ = await read_frame(good_reader)
            assert kind == NO_SUCH_SEGMENT
    finally:
        good.close()
        bad.close()


async def read_until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
