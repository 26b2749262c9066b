"""Calls to a controller that the clients do not make by themselves."""

import asyncio
from collections.abc import Sequence
from typing import Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as messages

SERVICE = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/"
_SECONDS_MAX = 180.0
"""No promise, only an end."""
Answer = TypeVar("Answer", bound=Message)


class ControllerCalls:
    """One channel to a controller."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close(None)

    async def create(self, scope: str, stream: str, segments: int) -> None:
        """The scope, if need be, and a stream."""
        await self._call("createScope", messages.ScopeInfo(scope=scope), messages.CreateScopeStatus)
        config = messages.StreamConfig(
            streamInfo=messages.StreamInfo(scope=scope, stream=stream),
            scalingPolicy=messages.ScalingPolicy(minNumSegments=segments),
        )
        status = await self._call("createStream", config, messages.CreateStreamStatus)
        assert status.status == messages.CreateStreamStatus.SUCCESS, status

    async def current_segments(self, scope: str, stream: str) -> Sequence[messages.SegmentRange]:
        info = messages.StreamInfo(scope=scope, stream=stream)
        ranges = await self._call("getCurrentSegments", info, messages.SegmentRanges)
        return list(ranges.segmentRanges)

    async def start_scale(self, scope: str, stream: str, count: int) -> int:
        """All current segments are to be replaced by so many equal ones; the epoch that ends."""
        while True:
            current = await self.current_segments(scope, stream)
            request = messages.ScaleRequest(
                streamInfo=messages.StreamInfo(scope=scope, stream=stream),
                sealedSegments=[each.segmentId.segmentId for each in current],
                newKeyRanges=[
                    messages.ScaleRequest.KeyRangeEntry(
                        start=number / count, end=(number + 1) / count
                    )
                    for number in range(count)
                ],
            )
            response = await self._call("scale", request, messages.ScaleResponse)
            if response.status == messages.ScaleResponse.STARTED:
                return int(response.epoch)
            # One that a kill had cut off was finished between the look and the call: only then it is asked for again.
            assert response.status == messages.ScaleResponse.PRECONDITION_FAILED, response
            assert await self.current_segments(scope, stream) != current, response

    async def scale(self, scope: str, stream: str, count: int) -> None:
        """The same, and done."""
        epoch = await self.start_scale(scope, stream, count)
        request = messages.ScaleStatusRequest(
            streamInfo=messages.StreamInfo(scope=scope, stream=stream), epoch=epoch
        )
        async with asyncio.timeout(_SECONDS_MAX):
            while True:
                answer = await self._call("checkScale", request, messages.ScaleStatusResponse)
                if answer.status == messages.ScaleStatusResponse.SUCCESS:
                    break
                await asyncio.sleep(0.05)
        assert len(await self.current_segments(scope, stream)) == count

    async def _call(self, name: str, request: Message, answer: type[Answer]) -> Answer:
        call: grpc.aio.UnaryUnaryMultiCallable[Message, Answer] = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=_SECONDS_MAX)
