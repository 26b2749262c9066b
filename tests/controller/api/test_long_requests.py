"""Goal: a request that names very many things holds up nothing else, and every proper one is answered."""

import grpc
import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.controller.api.call import LIST_ITEMS_MAX, REQUEST_ITEMS_MAX
from tests.controller.api.conftest import Node, stream_config

STREAM = api.StreamInfo(scope="s", stream="a")


def key_ranges(count: int) -> list[api.ScaleRequest.KeyRangeEntry]:
    """They cover the segment 0 of two."""
    return [
        api.ScaleRequest.KeyRangeEntry(start=place / count / 2, end=(place + 1) / count / 2)
        for place in range(count)
    ]


def cut_of(count: int) -> api.StreamCut:
    """Each of its segments would be of an epoch of its own."""
    return api.StreamCut(streamInfo=STREAM, cut={each << 32: 0 for each in range(count)})


def group_in(streams: int, *, segments: int) -> api.ReaderGroupConfiguration:
    """With a position in so many segments of each stream."""
    return api.ReaderGroupConfiguration(
        scope="s",
        readerGroupName="g",
        startingStreamCuts=[
            api.StreamCut(
                streamInfo=api.StreamInfo(scope="s", stream=f"stream-{number}"),
                cut=dict.fromkeys(range(segments), 0),
            )
            for number in range(streams)
        ],
    )


MANY = LIST_ITEMS_MAX + 1


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("scale", api.ScaleRequest(streamInfo=STREAM, sealedSegments=[0] * MANY)),
        (
            "scale",
            api.ScaleRequest(streamInfo=STREAM, sealedSegments=[0], newKeyRanges=key_ranges(MANY)),
        ),
        ("truncateStream", cut_of(MANY)),
        ("isStreamCutValid", cut_of(MANY)),
        ("getSegmentsBetween", api.StreamCutRange(streamInfo=STREAM, to=cut_of(MANY).cut)),
        ("updateSubscriberStreamCut", api.SubscriberStreamCut(streamCut=cut_of(MANY))),
        ("noteTimestampFromWriter", api.TimestampFromWriter(writer="w", position=cut_of(MANY))),
        ("createStream", stream_config("b", tags=tuple(map(str, range(MANY))))),
        ("createReaderGroup", group_in(REQUEST_ITEMS_MAX // 500, segments=500)),
    ],
)
async def test_a_request_that_names_too_many_things_is_refused_before_it_is_looked_at(
    node: Node, call: str, request_: Message
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="request names too many things") as raised:
        await node.call(call, request_, api.ServerRequest)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_with_as_many_things_as_it_may_name_is_answered(node: Node) -> None:
    valid = await node.call(
        "isStreamCutValid", cut_of(LIST_ITEMS_MAX), api.StreamCutValidityResponse
    )
    assert not valid.response
    noted = await node.call(
        "scale",
        api.ScaleRequest(
            streamInfo=STREAM, sealedSegments=[0], newKeyRanges=key_ranges(LIST_ITEMS_MAX)
        ),
        api.ScaleResponse,
    )
    assert noted.status == api.ScaleResponse.ScaleStreamStatus.PRECONDITION_FAILED


@pytest.mark.parametrize("character", ["x", "ä", "\0"])
async def test_the_code_of_a_refusal_arrives_however_long_its_words_would_be(
    node: Node, character: str
) -> None:
    tag = character * 20_000
    with pytest.raises(grpc.aio.AioRpcError, match="a tag has 1 to 256 characters") as raised:
        await node.call("createStream", stream_config("b", tags=(tag,)), api.CreateStreamStatus)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
