"""What clients get from the service, call by call."""

import grpc
import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.api.conftest import Node, stream_config

EPOCH = 1 << 32


def info(stream: str = "a", scope: str = "s") -> api.StreamInfo:
    return api.StreamInfo(scope=scope, stream=stream)


def segment(number: int, stream: str = "a") -> api.SegmentId:
    return api.SegmentId(streamInfo=info(stream), segmentId=number)


async def scope_status(node: Node, call: str, scope: str) -> str:
    if call == "createScope":
        created = await node.call(call, api.ScopeInfo(scope=scope), api.CreateScopeStatus)
        return api.CreateScopeStatus.Status.Name(created.status)
    deleted = await node.call(call, api.ScopeInfo(scope=scope), api.DeleteScopeStatus)
    return api.DeleteScopeStatus.Status.Name(deleted.status)


async def create_status(node: Node, request: api.StreamConfig) -> str:
    answer = await node.call("createStream", request, api.CreateStreamStatus)
    return api.CreateStreamStatus.Status.Name(answer.status)


async def update_status(node: Node, call: str, request: Message) -> str:
    answer = await node.call(call, request, api.UpdateStreamStatus)
    return api.UpdateStreamStatus.Status.Name(answer.status)


async def delete_status(node: Node, request: api.StreamInfo) -> str:
    answer = await node.call("deleteStream", request, api.DeleteStreamStatus)
    return api.DeleteStreamStatus.Status.Name(answer.status)


async def scale(
    node: Node, sealed: list[int], ranges: list[tuple[float, float]]
) -> api.ScaleResponse:
    request = api.ScaleRequest(
        streamInfo=info(),
        sealedSegments=sealed,
        newKeyRanges=[
            api.ScaleRequest.KeyRangeEntry(start=start, end=end) for start, end in ranges
        ],
    )
    return await node.call("scale", request, api.ScaleResponse)


async def current(node: Node, stream: str = "a") -> list[int]:
    answer = await node.call("getCurrentSegments", info(stream), api.SegmentRanges)
    return [each.segmentId.segmentId for each in answer.segmentRanges]


async def test_every_call_of_the_service_has_an_answerer(node: Node) -> None:
    service = api.DESCRIPTOR.services_by_name["ControllerService"]
    codes = [await empty_call_code(node, method.name) for method in service.methods]
    assert set(codes) <= {
        grpc.StatusCode.OK,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
    }


async def empty_call_code(node: Node, name: str) -> grpc.StatusCode:
    try:
        await node.call_raw(name, b"")
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_before_recovery_every_call_is_told_to_come_back(silent_node: Node) -> None:
    assert (
        await silent_node.refusal("createScope", api.ScopeInfo(scope="s"))
        is grpc.StatusCode.UNAVAILABLE
    )
    await silent_node.start()
    assert await scope_status(silent_node, "createScope", "s") == "SUCCESS"


async def test_bytes_that_are_no_message_are_refused(node: Node) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.call_raw("createScope", b"\xff\xff")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_call_that_does_not_exist_is_unimplemented(node: Node) -> None:
    assert await node.refusal("createUniverse", info()) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_scope_is_created_once_under_a_proper_name(node: Node) -> None:
    assert await scope_status(node, "createScope", "t") == "SUCCESS"
    assert await scope_status(node, "createScope", "t") == "SCOPE_EXISTS"
    for name in ("", "_system", "a/b", "ä", "x" * 251):
        assert await scope_status(node, "createScope", name) == "INVALID_SCOPE_NAME"
    exists = await node.call("checkScopeExists", api.ScopeInfo(scope="t"), api.ExistsResponse)
    assert exists.exists


async def test_a_scope_is_deleted_when_it_is_empty(node: Node) -> None:
    assert await scope_status(node, "deleteScope", "s") == "SCOPE_NOT_EMPTY"
    assert await update_status(node, "sealStream", info()) == "SUCCESS"
    assert await delete_status(node, info()) == "SUCCESS"
    assert await scope_status(node, "deleteScope", "s") == "SUCCESS"
    assert await scope_status(node, "deleteScope", "s") == "SCOPE_NOT_FOUND"
    exists = await node.call("checkScopeExists", api.ScopeInfo(scope="s"), api.ExistsResponse)
    assert not exists.exists


async def test_a_scope_goes_with_everything_it_holds(node: Node) -> None:
    group = api.ReaderGroupConfiguration(
        scope="s",
        readerGroupName="g",
        readerGroupId="8f2e9ff2-4b6f-4a7e-9b0b-111111111111",
        startingStreamCuts=[api.StreamCut(streamInfo=info(), cut={0: 0, 1: 0})],
    )
    await node.call("createReaderGroup", group, api.CreateReaderGroupResponse)
    table = api.KeyValueTableConfig(
        scope="s", kvtName="t", partitionCount=2, primaryKeyLength=8, secondaryKeyLength=0
    )
    created = await node.call("createKeyValueTable", table, api.CreateKeyValueTableStatus)
    assert created.status == api.CreateKeyValueTableStatus.Status.SUCCESS
    assert await scope_status(node, "deleteScopeRecursive", "s") == "SUCCESS"
    assert node.segments.names() == []
    assert await scope_status(node, "deleteScopeRecursive", "s") == "SCOPE_NOT_FOUND"


async def test_listings_end_with_an_empty_page_and_always_carry_a_token(node: Node) -> None:
    for name in ("b", "c", "d"):
        await create_status(node, stream_config(name, tags=("t",)))
        await scope_status(node, "createScope", f"x{name}")
    seen: list[str] = []
    token = ""
    while True:
        page = await node.call(
            "listStreamsInScopeForTag",
            api.StreamsInScopeWithTagRequest(
                scope=api.ScopeInfo(scope="s"),
                tag="t",
                continuationToken=api.ContinuationToken(token=token),
            ),
            api.StreamsInScopeResponse,
        )
        assert page.HasField("continuationToken")
        token = page.continuationToken.token
        if not page.streams:
            break
        seen += [each.stream for each in page.streams]
    assert seen == ["b", "c", "d"]
    scopes: list[str] = []
    token = ""
    while True:
        found = await node.call(
            "listScopes",
            api.ScopesRequest(continuationToken=api.ContinuationToken(token=token)),
            api.ScopesResponse,
        )
        assert found.HasField("continuationToken")
        token = found.continuationToken.token
        if not found.scopes:
            break
        scopes += found.scopes
    assert scopes == ["s", "xb", "xc", "xd"]


async def test_a_listing_shows_internal_streams_and_knows_missing_scopes(node: Node) -> None:
    request = api.StreamsInScopeRequest(scope=api.ScopeInfo(scope="s"))
    page = await node.call("listStreamsInScope", request, api.StreamsInScopeResponse)
    assert [each.stream for each in page.streams] == ["_MARKa", "a"]
    request.scope.scope = "nowhere"
    page = await node.call("listStreamsInScope", request, api.StreamsInScopeResponse)
    assert page.status == api.StreamsInScopeResponse.Status.SCOPE_NOT_FOUND
    assert page.HasField("continuationToken")


async def test_a_stream_is_created_once_in_its_scope_under_a_proper_name(node: Node) -> None:
    assert await create_status(node, stream_config("b")) == "SUCCESS"
    assert await create_status(node, stream_config("b")) == "STREAM_EXISTS"
    assert await create_status(node, stream_config("b", scope="no")) == "SCOPE_NOT_FOUND"
    for name in ("", "_RGx", "a/b", "x" * 251):
        assert await create_status(node, stream_config(name)) == "INVALID_STREAM_NAME"
    assert (
        await node.refusal("createStream", stream_config("c", segments=0))
        is grpc.StatusCode.INVALID_ARGUMENT
    )


async def test_first_segments_share_the_key_space_and_the_mark_stream_is_there(node: Node) -> None:
    answer = await node.call("getCurrentSegments", info(), api.SegmentRanges)
    assert [
        (each.segmentId.segmentId, each.minKey, each.maxKey) for each in answer.segmentRanges
    ] == [(0, 0.0, 0.5), (1, 0.5, 1.0)]
    assert all(each.segmentId.streamInfo == info() for each in answer.segmentRanges)
    assert await current(node, "_MARKa") == [0]


async def test_a_configuration_comes_back_as_it_was_sent(node: Node) -> None:
    sent = api.StreamConfig(
        streamInfo=info(),
        scalingPolicy=api.ScalingPolicy(
            scaleType="BY_RATE_IN_EVENTS_PER_SEC", targetRate=100, scaleFactor=2, minNumSegments=2
        ),
        retentionPolicy=api.RetentionPolicy(
            retentionType="SIZE", retentionParam=1 << 30, retentionMax=(1 << 63) - 1
        ),
        tags=api.Tags(tag=["blue", "red"]),
        timestampAggregationTimeout=7,
        rolloverSizeBytes=1 << 20,
    )
    assert await update_status(node, "updateStream", sent) == "SUCCESS"
    assert await node.call("getStreamConfiguration", info(), api.StreamConfig) == sent
    assert await update_status(node, "updateStream", stream_config("b")) == "STREAM_NOT_FOUND"
    assert (
        await update_status(node, "updateStream", stream_config("b", scope="no"))
        == "SCOPE_NOT_FOUND"
    )


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("getStreamConfiguration", info("b")),
        ("getCurrentSegments", info("b")),
        ("getCurrentSegments", info("a", "no")),
        ("getEpochSegments", api.GetEpochSegmentsRequest(streamInfo=info(), epoch=1)),
        ("getSegments", api.GetSegmentsRequest(streamInfo=info("b"))),
        ("getSegmentsImmediatelyFollowing", segment(7)),
        ("getSegmentsBetween", api.StreamCutRange(streamInfo=info("b"))),
    ],
)
async def test_what_is_not_there_is_not_found(node: Node, call: str, request_: Message) -> None:
    assert await node.refusal(call, request_) is grpc.StatusCode.NOT_FOUND


async def test_a_scale_answers_its_epoch_and_new_segments(node: Node) -> None:
    answer = await scale(node, [0], [(0.0, 0.25), (0.25, 0.5)])
    assert answer.status == api.ScaleResponse.ScaleStreamStatus.STARTED
    assert answer.epoch == 0
    assert [each.segmentId.segmentId for each in answer.segments] == [EPOCH | 2, EPOCH | 3]
    status = api.ScaleStatusResponse.ScaleStatus
    for epoch, expected in (
        (0, status.SUCCESS),
        (1, status.IN_PROGRESS),
        (2, status.INVALID_INPUT),
    ):
        check = await node.call(
            "checkScale",
            api.ScaleStatusRequest(streamInfo=info(), epoch=epoch),
            api.ScaleStatusResponse,
        )
        assert check.status == expected
    refused = await scale(node, [0], [(0.0, 0.5)])
    assert refused.status == api.ScaleResponse.ScaleStreamStatus.PRECONDITION_FAILED


@pytest.mark.parametrize(
    "call", ["getSegmentsImmediatelyFollowing", "getSegmentsImmediatlyFollowing"]
)
async def test_h75_successors_come_with_all_their_predecessors(node: Node, call: str) -> None:
    assert await node.refusal(call, segment(0)) is grpc.StatusCode.UNAVAILABLE
    await scale(node, [0, 1], [(0.0, 1.0)])
    answer = await node.call(call, segment(0), api.SuccessorResponse)
    assert [(each.segment.segmentId.segmentId, list(each.value)) for each in answer.segments] == [
        (EPOCH | 2, [0, 1])
    ]
    await update_status(node, "sealStream", info())
    last = await node.call(call, segment(EPOCH | 2), api.SuccessorResponse)
    assert not last.segments


async def test_epochs_heads_and_cuts(node: Node) -> None:
    await scale(node, [0], [(0.0, 0.25), (0.25, 0.5)])
    old = await node.call(
        "getEpochSegments", api.GetEpochSegmentsRequest(streamInfo=info()), api.SegmentRanges
    )
    assert [each.segmentId.segmentId for each in old.segmentRanges] == [0, 1]
    between = await node.call(
        "getSegmentsBetween", api.StreamCutRange(streamInfo=info()), api.StreamCutRangeResponse
    )
    assert [each.segmentId for each in between.segments] == [0, 1, EPOCH | 2, EPOCH | 3]
    cut = api.StreamCut(streamInfo=info(), cut={EPOCH | 2: 0, EPOCH | 3: 0, 1: 0})
    valid = await node.call("isStreamCutValid", cut, api.StreamCutValidityResponse)
    assert valid.response
    assert await update_status(node, "truncateStream", cut) == "SUCCESS"
    head = await node.call(
        "getSegments", api.GetSegmentsRequest(streamInfo=info()), api.SegmentsAtTime
    )
    assert {each.segmentId.segmentId: each.offset for each in head.segments} == dict(cut.cut)
    back = api.StreamCut(streamInfo=info(), cut={0: 0, 1: 0})
    assert await update_status(node, "truncateStream", back) == "FAILURE"
    for number, active in ((0, False), (1, True), (EPOCH | 2, True)):
        answer = await node.call("isSegmentValid", segment(number), api.SegmentValidityResponse)
        assert answer.response == active


async def test_a_sealed_stream_answers_empty_and_refuses_changes(node: Node) -> None:
    assert await delete_status(node, info()) == "STREAM_NOT_SEALED"
    assert await update_status(node, "sealStream", info()) == "SUCCESS"
    assert await update_status(node, "sealStream", info()) == "SUCCESS"
    assert await current(node) == []
    # Older clients do not know STREAM_SEALED and would take it for success.
    assert await update_status(node, "updateStream", stream_config("a")) == "FAILURE"
    cut = api.StreamCut(streamInfo=info(), cut={0: 0, 1: 0})
    assert await update_status(node, "truncateStream", cut) == "FAILURE"
    assert await delete_status(node, info()) == "SUCCESS"
    assert await delete_status(node, info()) == "STREAM_NOT_FOUND"
    assert await update_status(node, "sealStream", info()) == "STREAM_NOT_FOUND"
    assert await update_status(node, "sealStream", info("a", "no")) == "SCOPE_NOT_FOUND"
    exists = await node.call("checkStreamExists", info(), api.ExistsResponse)
    assert not exists.exists


async def test_a_segment_is_found_at_an_address_and_a_port(node: Node) -> None:
    for stream in ("a", "_MARKa", "_RGg", "t_kvtable"):
        name = f"s/{stream}/5.#epoch.1"
        uri = await node.call("getURI", segment(EPOCH | 5, stream), api.NodeUri)
        assert (uri.endpoint, uri.port) == ("127.0.0.1", 10_000 + len(name))
    servers = await node.call("getControllerServerList", api.ServerRequest(), api.ServerResponse)
    assert [(each.endpoint, each.port) for each in servers.nodeURI] == [("127.0.0.1", 9090)]


async def test_without_authentication_tokens_are_empty(node: Node) -> None:
    token = await node.call("getDelegationToken", info(), api.DelegationToken)
    assert token.delegationToken == ""


async def test_a_transaction_is_created_committed_and_remembered(node: Node) -> None:
    created = await node.call(
        "createTransaction",
        api.CreateTxnRequest(streamInfo=info(), lease=30_000),
        api.CreateTxnResponse,
    )
    assert created.txnId.lowBits >= 0
    assert len(created.activeSegments) == 2
    request = api.TxnRequest(streamInfo=info(), txnId=created.txnId)
    state = await node.call("checkTransactionState", request, api.TxnState)
    assert state.state == api.TxnState.State.OPEN
    committed = await node.call("commitTransaction", request, api.TxnStatus)
    assert committed.status == api.TxnStatus.Status.SUCCESS
    state = await node.call("checkTransactionState", request, api.TxnState)
    assert state.state in (api.TxnState.State.COMMITTING, api.TxnState.State.COMMITTED)


async def test_a_store_that_fails_is_unavailable_and_not_missing(node: Node) -> None:
    node.tables.stop()
    assert await node.refusal("getCurrentSegments", info()) is grpc.StatusCode.UNAVAILABLE
    assert await node.refusal("createStream", stream_config("z")) is grpc.StatusCode.UNAVAILABLE
