"""Calls of our own on the socket of Pravega's service."""

import grpc
import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import OWN_SERVICE
from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from tests.controller.api.conftest import Node
from tests.controller.api.test_calls import info


async def call_own(node: Node, name: str, request: Message) -> bytes:
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = node.channel.unary_unary(
        f"/{OWN_SERVICE}/{name}", bytes, bytes
    )
    return await call(request.SerializeToString(), timeout=60)


async def code_of(node: Node, name: str, request: Message) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call_own(node, name, request)
    return raised.value.code()


def commit_of(*stages: bytes, version: int = 1) -> own_api.CommitStagesRequest:
    return own_api.CommitStagesRequest(
        scope="s",
        stream="a",
        application_id="job",
        version=version,
        transaction_ids=stages,
    )


async def test_every_call_of_our_own_service_has_an_answerer(node: Node) -> None:
    service = own_api.DESCRIPTOR.services_by_name["StagedCommits"]
    assert service.full_name == OWN_SERVICE
    codes = [await code_of(node, each.name, api.ServerRequest()) for each in service.methods]
    assert set(codes) == {grpc.StatusCode.INVALID_ARGUMENT}


async def test_a_stage_is_begun_and_committed_over_the_socket(node: Node) -> None:
    begin = own_api.BeginStageRequest(scope="s", stream="a", lease_ms=3_600_000)
    begun = own_api.BeginStageResponse.FromString(await call_own(node, "beginStage", begin))
    assert [(each.low, each.high) for each in begun.ranges] == [(0.0, 0.5), (0.5, 1.0)]
    request = commit_of(begun.transaction_id)
    answers = [
        own_api.CommitStagesResponse.FromString(await call_own(node, "commitStages", request))
        for _ in range(2)
    ]
    assert [answer.duplicate for answer in answers] == [False, True]
    last = own_api.LastVersionRequest(scope="s", stream="a", application_id="job")
    answer = own_api.LastVersionResponse.FromString(await call_own(node, "lastVersion", last))
    assert (answer.known, answer.version) == (True, 1)


async def test_refusals_are_codes_that_say_what_to_do(node: Node) -> None:
    unknown = b"\x00" * 15 + b"\x09"
    assert await code_of(node, "commitStages", commit_of(unknown)) is (
        grpc.StatusCode.FAILED_PRECONDITION
    )
    missing = own_api.BeginStageRequest(scope="s", stream="b", lease_ms=60_000)
    assert await code_of(node, "beginStage", missing) is grpc.StatusCode.NOT_FOUND
    await node.call("sealStream", info("a"), api.UpdateStreamStatus)
    begin = own_api.BeginStageRequest(scope="s", stream="a", lease_ms=60_000)
    assert await code_of(node, "beginStage", begin) is grpc.StatusCode.FAILED_PRECONDITION
    assert await code_of(node, "commitStages", commit_of()) is grpc.StatusCode.FAILED_PRECONDITION


async def test_calls_of_our_own_are_not_calls_of_the_other_service(node: Node) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.call_raw("beginStage", b"")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
