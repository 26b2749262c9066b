"""Calls that meet a controller before it has recovered."""

import asyncio

import grpc
import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.controller.api.grpc_server import ControllerServerSettings
from segmentstore.controller.errors import RetryLaterError
from tests.controller.api.conftest import Node

CREATE = api.ScopeInfo(scope="s").SerializeToString()


async def test_a_call_waits_for_a_controller_that_recovers(silent_node: Node) -> None:
    service = silent_node.controller.service
    call = asyncio.create_task(service.answer_when_ready("createScope", CREATE, wait_seconds=60))
    await asyncio.sleep(0)
    await silent_node.start()
    answer = api.CreateScopeStatus()
    answer.ParseFromString(await call)
    assert answer.status == api.CreateScopeStatus.SUCCESS


async def test_requests_of_calls_that_wait_are_bounded_over_all_calls() -> None:
    node = Node(
        ControllerServerSettings(
            port=0,
            recovery_wait_seconds=60.0,
            message_bytes_max=1_000,
            request_bytes_max=1_000 + 2 * len(CREATE),
        )
    )
    await node.listen()
    try:
        requests = node.server._requests
        calls = [asyncio.create_task(node.call_raw("createScope", CREATE)) for _ in range(10)]
        # There is room for the longest request behind two of these.
        while (requests.waiting_count, requests.held_bytes) != (7, 3 * len(CREATE)):
            assert requests.held_bytes <= 1_000 + 2 * len(CREATE)
            await asyncio.sleep(0.001)
        await node.start()
        answers = [api.CreateScopeStatus.FromString(await call).status for call in calls]
        assert sorted(answers) == [api.CreateScopeStatus.SUCCESS] + 9 * [
            api.CreateScopeStatus.SCOPE_EXISTS
        ]
        assert requests.held_bytes == 0
    finally:
        await node.close()


async def test_where_a_segment_is_is_told_while_the_controller_recovers(silent_node: Node) -> None:
    service = silent_node.controller.service
    stream = api.StreamInfo(scope="s", stream="a")
    segment = api.SegmentId(streamInfo=stream, segmentId=0).SerializeToString()
    for name, request in (
        ("getURI", segment),
        ("getDelegationToken", stream.SerializeToString()),
        ("getControllerServerList", b""),
    ):
        # Without a turn of the loop: nothing is waited for.
        with pytest.raises(StopIteration):
            service.answer_when_ready(name, request, wait_seconds=60).send(None)
        await service.answer(name, request)


async def test_a_call_is_told_to_come_back_when_the_recovery_takes_too_long(
    silent_node: Node,
) -> None:
    with pytest.raises(RetryLaterError):
        await silent_node.controller.service.answer_when_ready(
            "createScope", CREATE, wait_seconds=0.01
        )


async def test_a_call_under_way_when_a_life_ends_is_refused_with_what_clients_retry(
    node: Node,
) -> None:
    operations = node.controller.components.streams.operations
    async with operations.exclusive("s", "a"):
        stream = api.StreamInfo(scope="s", stream="a")
        waits = asyncio.create_task(node.refusal("sealStream", stream))
        while len(node.controller.service.open_calls) == 0:
            await asyncio.sleep(0.001)
        await node.end_life()
        assert await waits is grpc.StatusCode.UNAVAILABLE
    await node.start()
    await node.call("sealStream", stream, api.UpdateStreamStatus)
