"""Goal: a container that stays down leaves its published bytes to readers, and says nothing that only its log knows.

Method: the whole service over files. It stores bytes, publishes some of them and stores more; then it starts again with
a recovery that fails for one container at the same place each time, until that container stays down; then once more
without the failure. All that is asked goes through sockets.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.client import ClientSettings, connect
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.wire_protocol.appends import SetupAppend
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import (
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segmentstore.codec.wire_protocol.refusals import SegmentIsTruncated, WrongHost
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    DeleteSegment,
    SealSegment,
    TruncateSegment,
)
from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.setting_sources import resolve_settings
from tests.wire.protocol_client import ProtocolClient

CONTAINERS = 4
DOWN = 1
NAMES = [
    name for name in map("segment-{}".format, range(99)) if container_of(name, CONTAINERS) == 1
]
OPEN, SEALED, SEALED_LATE, CUT, UNPUBLISHED, STREAM, NEVER = NAMES[:7]
ELSEWHERE = next(n for n in map("other-{}".format, range(99)) if container_of(n, CONTAINERS) == 2)
CAUSE = "format requires 0 <= number <= 255"
REMEDY = "start the server again when the cause is"


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Containers whose recovery fails, for a cause that stays."""
    ids: list[int] = []
    start = StreamSegmentContainer.start

    async def start_or_fail(self: StreamSegmentContainer) -> None:
        if self.container_id in ids:
            struct.pack("B", 999)
        await start(self)

    monkeypatch.setattr(StreamSegmentContainer, "start", start_or_fail)
    return ids


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Service]:
    resolved = resolve_settings(
        flags={
            "store.data_directory": str(directory),
            "store.container_count": str(CONTAINERS),
            "http.address": "127.0.0.1:0",
            "wire.address": "127.0.0.1:0",
            "controller.address": "127.0.0.1:0",
            "writer.flush_interval_seconds": "600",
            "restart.delay_initial_seconds": "0.001",
            "restart.delay_max_seconds": "0.001",
            "restart.same_failure_count": "3",
        },
        environment={},
    )
    async with open_service(resolved) as service, asyncio.TaskGroup() as group:
        await service.servers.start()
        tasks = [
            group.create_task(service.manager.run()),
            group.create_task(service.servers.run()),
        ]
        try:
            await service.manager.wait_until_settled()
            yield service
        finally:
            await service.servers.close()
            for task in reversed(tasks):
                task.cancel()


@asynccontextmanager
async def down(directory: Path, poisoned: list[int]) -> AsyncIterator[Service]:
    poisoned.append(DOWN)
    async with serving(directory) as service:
        async with asyncio.timeout(60):
            while not _is_down(service):
                await asyncio.sleep(0.005)
        yield service
    poisoned.clear()


def _is_down(service: Service) -> bool:
    try:
        service.registry.get(ContainerId(DOWN))
    except ContainerNotFoundError as error:
        return "stays down" in str(error)
    return False


async def append(service: Service, name: str, content: bytes, *, seal: bool = False) -> None:
    async with service.store.open_segment(name) as segment:
        await segment.append(content, seal=seal)


async def prepare(service: Service) -> None:
    """Published: what is lower case."""
    for name in (OPEN, SEALED, SEALED_LATE, CUT, ELSEWHERE):
        await service.store.create(name)
        await append(service, name, b"published", seal=name == SEALED)
    await service.store.truncate(CUT, 3)
    async with aiohttp.ClientSession() as session:
        url = f"http://{service.servers.addresses().http}/v1/stream/{STREAM}"
        async with session.put(url, data=b"published", headers={"Content-Type": "text/plain"}) as r:
            assert r.status == 201
    await service.store.flush()
    await service.store.create(UNPUBLISHED)
    for name in (OPEN, UNPUBLISHED, STREAM):
        await append(service, name, b" AND MORE")
    await append(service, SEALED_LATE, b" AND MORE", seal=True)


async def wire(service: Service) -> ProtocolClient:
    host, port = service.servers.addresses().wire.rsplit(":", 1)
    return await ProtocolClient.connect((host, int(port)))


def assert_refused(text: str) -> None:
    assert "stays down" in text
    assert CAUSE in text
    assert REMEDY in text


async def test_published_bytes_are_read_over_the_wire_and_what_only_the_log_knows_is_refused(
    tmp_path: Path, poisoned: list[int]
) -> None:
    async with serving(tmp_path) as service:
        await prepare(service)
    async with down(tmp_path, poisoned) as service:
        client = await wire(service)

        async def read(name: str, offset: int) -> Command:
            request = ReadSegment(name, offset, 1000, "", client.next_request())
            return await client.ask(request, Command)

        for name in (OPEN, SEALED_LATE):
            answer = await read(name, 0)
            assert isinstance(answer, SegmentRead)
            assert (answer.data, answer.at_tail, answer.end_of_segment) == (
                b"published",
                False,
                False,
            )
            for offset in (9, 18, 500):
                refusal = await read(name, offset)
                assert isinstance(refusal, WrongHost), refusal
                assert_refused(refusal.server_stack)
        answer = await read(SEALED, 2)
        assert isinstance(answer, SegmentRead)
        assert answer.data == b"blished"
        answer = await read(SEALED, 9)
        assert isinstance(answer, SegmentRead)
        assert answer.end_of_segment
        assert isinstance(await read(CUT, 1), SegmentIsTruncated)
        for name in (UNPUBLISHED, NEVER):
            refusal = await read(name, 0)
            assert isinstance(refusal, WrongHost), refusal
            assert_refused(refusal.server_stack)
        number = client.next_request
        info = await client.ask(GetStreamSegmentInfo(number(), SEALED, ""), StreamSegmentInfo)
        assert (info.is_sealed, info.write_offset) == (True, 9)
        for request in (
            # The answer could not say that the length is a lower bound.
            GetStreamSegmentInfo(number(), OPEN, ""),
            GetStreamSegmentInfo(number(), UNPUBLISHED, ""),
            GetSegmentAttribute(number(), OPEN, bytes(16), ""),
            SetupAppend(number(), bytes(16), OPEN, ""),
            CreateSegment(number(), NEVER, 0, 0, "", 0),
            SealSegment(number(), OPEN, ""),
            TruncateSegment(number(), OPEN, 1, ""),
            DeleteSegment(number(), SEALED, ""),
        ):
            refused = await client.ask(request, WrongHost)
            assert_refused(refused.server_stack)
        answer = await read(ELSEWHERE, 0)
        assert isinstance(answer, SegmentRead)
        assert answer.data == b"published"
        await client.close()


async def test_published_bytes_are_read_over_http_and_what_only_the_log_knows_is_refused(
    tmp_path: Path, poisoned: list[int]
) -> None:
    async with serving(tmp_path) as service:
        await prepare(service)
    async with down(tmp_path, poisoned) as service, aiohttp.ClientSession() as session:
        base = f"http://{service.servers.addresses().http}"

        async def get(path: str) -> tuple[int, bytes, dict[str, str]]:
            async with session.get(base + path) as answer:
                return answer.status, await answer.read(), dict(answer.headers)

        status, content, headers = await get(f"/v1/segments/{OPEN}/read")
        assert (status, content) == (200, b"published")
        assert headers["Segment-Published-Only"] == "true"
        assert headers["Segment-Sealed"] == "false"
        assert (await get(f"/v1/segments/{OPEN}/read?offset=4&length=3"))[:2] == (200, b"ish")
        status, content, headers = await get(f"/v1/stream/{STREAM}")
        assert (status, content) == (200, b"published")
        assert "Stream-Up-To-Date" not in headers
        behind = headers["Stream-Next-Offset"]
        async with session.get(f"{base}/v1/segments/{OPEN}/info") as answer:
            shown = await answer.json()
        assert (shown["length"], shown["sealed"]) == (9, False)
        assert_refused(shown["container_down"])
        for path in (
            f"/v1/segments/{OPEN}/read?offset=9",
            f"/v1/segments/{OPEN}/read?offset=100",
            f"/v1/segments/{UNPUBLISHED}/read",
            f"/v1/segments/{NEVER}/info",
            f"/v1/segments/{OPEN}/attributes",
            f"/v1/stream/{STREAM}?offset={behind}",
            f"/v1/stream/{STREAM}?offset={behind}&live=long-poll",
            f"/v1/stream/{STREAM}?offset=now",
            f"/v1/stream/{STREAM}?offset=-1&live=sse",
            f"/v1/stream/{NEVER}",
            "/v1/segments",
        ):
            status, content, _ = await get(path)
            assert status == 503, (path, status, content)
            assert_refused(content.decode())
        async with session.post(f"{base}/v1/segments/{OPEN}/append", data=b"x") as answer:
            assert answer.status == 503
            assert_refused(await answer.text())
        async with session.get(f"{base}/health") as answer:
            complaints = (await answer.json())["complaints"]
            assert any("what Tier 2 has of its segments can be read" in c for c in complaints)
        # Who decides by what it reads is not answered from Tier 2.
        with pytest.raises(ContainerNotFoundError):
            await service.store.info(SEALED)


async def test_a_client_reads_what_is_published_and_waits_for_the_rest(
    tmp_path: Path, poisoned: list[int]
) -> None:
    async with serving(tmp_path) as service:
        await prepare(service)
    settings = ClientSettings(request_seconds=0.5, retry_seconds_max=0.05)
    async with down(tmp_path, poisoned) as service:
        addresses = service.servers.addresses()
        async with connect(
            f"tcp://{addresses.controller}",
            segment_store=f"tcp://{addresses.wire}",
            settings=settings,
        ) as store:
            async with aclosing(store.segment(SEALED).tail(0)) as pieces:
                assert [piece async for piece in pieces] == [b"published"]
            async with aclosing(store.segment(OPEN).tail(0)) as pieces:
                assert await anext(pieces) == b"published"
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.5):
                        await anext(pieces)


async def test_after_the_remedy_and_a_start_everything_is_as_before(
    tmp_path: Path, poisoned: list[int]
) -> None:
    async with serving(tmp_path) as service:
        await prepare(service)
    async with down(tmp_path, poisoned):
        pass
    async with serving(tmp_path) as service, aiohttp.ClientSession() as session:
        url = f"http://{service.servers.addresses().http}/v1/segments"
        for name, expected in (
            (OPEN, b"published AND MORE"),
            (SEALED, b"published"),
            (SEALED_LATE, b"published AND MORE"),
            (UNPUBLISHED, b" AND MORE"),
        ):
            async with session.get(f"{url}/{name}/read") as answer:
                assert await answer.read() == expected
                assert "Segment-Published-Only" not in answer.headers
        async with session.get(f"{url}/{NEVER}/read") as answer:
            assert answer.status == 404
        await append(service, OPEN, b"!")
