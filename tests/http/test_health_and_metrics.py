import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node

TEXT = {"Content-Type": "text/plain"}


async def test_health_is_200_while_every_container_takes_appends_and_503_with_the_cause_if_not(
    node: Node, client: ClientSession
) -> None:
    async with client.get(f"{node.url}/health") as answer:
        assert answer.status == 200
        health = await answer.json()
        assert (health["ready"], health["not_compiled"]) == (True, [])
    node.containers[0] = replace(
        node.containers[0],
        ready=False,
        state=ContainerState.FAILED,
        throttle="tier2_unavailable",
        storage_state="unavailable",
        storage_cause="s3 does not answer",
        cause="the log was fenced",
    )
    async with client.get(f"{node.url}/health") as answer:
        assert answer.status == 503
        health = await answer.json()
    assert health["ready"] is False
    assert health["throttle"] == "tier2_unavailable"
    assert health["storage_state"] == "unavailable"
    assert health["storage_cause"] == "s3 does not answer"
    assert health["containers"][0]["cause"] == "the log was fenced"
    assert health["containers"][0]["state"] == "failed"


async def test_metrics_count_requests_by_verb_and_status(node: Node, client: ClientSession) -> None:
    async with client.put(node.stream("s"), headers=TEXT):
        pass
    for _ in range(3):
        async with client.post(node.stream("s"), data="12345", headers=TEXT):
            pass
    async with client.get(node.stream("none")):
        pass
    async with client.get(f"{node.url}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await answer.text()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    requests = "segmentstore_http_requests_total"
    assert samples[requests, ("status", "204"), ("verb", "stream_append")] == 3
    assert samples[requests, ("status", "404"), ("verb", "stream_read")] == 1
    durations = "segmentstore_http_request_duration_seconds"
    assert samples[f"{durations}_count", ("verb", "stream_append")] == 3
    assert samples[f"{durations}_bucket", ("le", "+Inf"), ("verb", "stream_append")] == 3
    assert samples["segmentstore_http_body_received_bytes_total",] == 15
    assert samples["segmentstore_http_body_in_flight_bytes",] == 0
    assert samples["segmentstore_http_requests_in_flight",] == 1
    assert samples["segmentstore_container_append_bytes_total", ("container", "0")] == 12
    assert samples["segmentstore_container_unflushed_bytes", ("container", "0")] == 3


async def test_upkeep_that_fails_says_so_and_goes_on_when_it_can(
    client: ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenList(MemorySegments):
        is_broken = True

        async def list_segments(
            self, prefix: str = "", start_after: str = "", limit: int = 1000
        ) -> Sequence[SegmentProperties]:
            if self.is_broken:
                raise ZeroDivisionError
            return await super().list_segments(prefix, start_after, limit)

    settings = HttpSettings(port=0, tick_seconds=0.01, sweep_interval_seconds=0.01)
    segments = BrokenList()
    async with running_node(segments, settings) as node:

        async def complaints() -> list[str]:
            async with client.get(f"{node.url}/health") as answer:
                assert answer.status == 200
                found: list[str] = (await answer.json())["complaints"]
                return found

        async with client.put(node.stream("s"), headers={"Stream-TTL": "0"}) as answer:
            assert answer.status == 201
        async with asyncio.timeout(60):
            while not await complaints():
                await asyncio.sleep(0.01)
            assert "streams that are over are not removed" in (await complaints())[0]
            segments.is_broken = False
            while segments.names():
                await asyncio.sleep(0.01)
            while await complaints():
                await asyncio.sleep(0.01)
    # Told once, and not in each tick.
    assert caplog.text.count("upkeep failed") == 1


async def test_a_stream_that_cannot_expire_keeps_no_other_one_from_it(
    client: ClientSession,
) -> None:
    class OneIsBroken(MemorySegments):
        async def delete(self, name: str) -> None:
            if name == "b":
                raise ZeroDivisionError
            if name == "c":
                raise ContainerStoppedError("container stopped container=0")
            await super().delete(name)

    settings = HttpSettings(port=0, tick_seconds=0.01, sweep_interval_seconds=0.01)
    segments = OneIsBroken()
    async with running_node(segments, settings) as node:
        for name in "abcd":
            async with client.put(node.stream(name), headers={"Stream-TTL": "0"}) as answer:
                assert answer.status == 201
        async with asyncio.timeout(60):
            while segments.names() != ["b", "c"]:
                await asyncio.sleep(0.01)
