"""The calls about the segments of a stream: which, where, what comes behind, and scaling.

An unknown stream is the gRPC status NOT_FOUND here: these answers have no status of their own.
"""

from collections.abc import Sequence

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import segment_name
from segmentstore.codec.stream_records.stream_state_record import StreamState
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.api.call import Call, unary
from segmentstore.controller.api.endpoints import Endpoint, IssueToken, LocateSegment
from segmentstore.controller.api.messages import (
    range_message,
    ranges_message,
    segment_id_message,
)
from segmentstore.controller.errors import (
    PreconditionError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
)
from segmentstore.controller.streams.streams import Streams


class SegmentCalls:
    """Segments of streams, as clients call for them."""

    def __init__(
        self,
        *,
        streams: Streams,
        locate: LocateSegment,
        issue_token: IssueToken,
        controllers: Sequence[Endpoint],
    ) -> None:
        self._streams = streams
        self._locate = locate
        self._issue_token = issue_token
        self._controllers = controllers

    def calls(self) -> list[Call]:
        """What this answers."""
        return [
            unary("getControllerServerList", api.ServerRequest, self.controller_list),
            unary("getCurrentSegments", api.StreamInfo, self.current),
            unary("getEpochSegments", api.GetEpochSegmentsRequest, self.of_epoch),
            unary("getSegments", api.GetSegmentsRequest, self.at_time),
            unary("getSegmentsImmediatelyFollowing", api.SegmentId, self.successors),
            unary("getSegmentsImmediatlyFollowing", api.SegmentId, self.successors),
            unary("getSegmentsBetween", api.StreamCutRange, self.between),
            unary("isSegmentValid", api.SegmentId, self.is_valid),
            unary("isStreamCutValid", api.StreamCut, self.is_cut_valid),
            unary("scale", api.ScaleRequest, self.scale),
            unary("checkScale", api.ScaleStatusRequest, self.check_scale),
            unary("getURI", api.SegmentId, self.uri),
            unary("getDelegationToken", api.StreamInfo, self.delegation_token),
        ]

    async def controller_list(
        self,
        request: api.ServerRequest,  # noqa: ARG002 (an empty message)
    ) -> api.ServerResponse:
        return api.ServerResponse(
            nodeURI=[
                api.NodeUri(endpoint=each.address, port=each.port) for each in self._controllers
            ]
        )

    async def current(self, request: api.StreamInfo) -> api.SegmentRanges:
        segments = await self._streams.queries.current_segments(request.scope, request.stream)
        return ranges_message(request, segments, token=self._token(request))

    async def of_epoch(self, request: api.GetEpochSegmentsRequest) -> api.SegmentRanges:
        info = request.streamInfo
        segments = await self._streams.queries.epoch_segments(
            info.scope, info.stream, request.epoch
        )
        return ranges_message(info, segments, token=self._token(info))

    async def at_time(self, request: api.GetSegmentsRequest) -> api.SegmentsAtTime:
        info = request.streamInfo
        offsets = await self._streams.queries.segments_at(
            info.scope, info.stream, request.timestamp
        )
        return api.SegmentsAtTime(
            segments=[
                api.SegmentsAtTime.SegmentLocation(
                    segmentId=segment_id_message(info.scope, info.stream, segment_id),
                    offset=offset,
                )
                for segment_id, offset in offsets.items()
            ],
            delegationToken=self._token(info),
        )

    async def successors(self, request: api.SegmentId) -> api.SuccessorResponse:
        info = request.streamInfo
        found = await self._streams.queries.successors(info.scope, info.stream, request.segmentId)
        return api.SuccessorResponse(
            segments=[
                api.SuccessorResponse.SegmentEntry(
                    segment=range_message(info.scope, info.stream, successor.segment),
                    value=successor.predecessors,
                )
                for successor in found
            ],
            delegationToken=self._token(info),
        )

    async def between(self, request: api.StreamCutRange) -> api.StreamCutRangeResponse:
        info = request.streamInfo
        # The field is called `from`, which is a word of the language.
        start = dict(getattr(request, "from"))
        segments = await self._streams.queries.segments_between(
            info.scope, info.stream, start, dict(request.to)
        )
        return api.StreamCutRangeResponse(
            segments=[
                segment_id_message(info.scope, info.stream, segment.segment_id)
                for segment in segments
            ],
            delegationToken=self._token(info),
        )

    async def is_valid(self, request: api.SegmentId) -> api.SegmentValidityResponse:
        info = request.streamInfo
        return api.SegmentValidityResponse(
            response=await self._streams.queries.is_segment_active(
                info.scope, info.stream, request.segmentId
            )
        )

    async def is_cut_valid(self, request: api.StreamCut) -> api.StreamCutValidityResponse:
        info = request.streamInfo
        return api.StreamCutValidityResponse(
            response=await self._streams.queries.is_cut_valid(
                info.scope, info.stream, dict(request.cut)
            )
        )

    async def scale(self, request: api.ScaleRequest) -> api.ScaleResponse:
        response = api.ScaleResponse
        info = request.streamInfo
        try:
            outcome = await self._streams.scaling.scale(
                info.scope,
                info.stream,
                sealed=list(request.sealedSegments),
                ranges=[(each.start, each.end) for each in request.newKeyRanges],
            )
        except (PreconditionError, StreamSealedError):
            return response(status=response.ScaleStreamStatus.PRECONDITION_FAILED)
        return response(
            status=response.ScaleStreamStatus.STARTED,
            segments=[
                range_message(info.scope, info.stream, segment) for segment in outcome.new_segments
            ],
            epoch=outcome.epoch_before,
        )

    async def check_scale(self, request: api.ScaleStatusRequest) -> api.ScaleStatusResponse:
        response = api.ScaleStatusResponse
        info = request.streamInfo
        try:
            state = await self._streams.queries.state(info.scope, info.stream)
        except (StreamNotFoundError, ScopeNotFoundError):
            return response(status=response.ScaleStatus.INVALID_INPUT)
        if not 0 <= request.epoch <= state.current_epoch:
            return response(status=response.ScaleStatus.INVALID_INPUT)
        if request.epoch < state.current_epoch:
            return response(status=response.ScaleStatus.SUCCESS)
        if state.state is StreamState.SEALED:
            return response(status=response.ScaleStatus.INTERNAL_ERROR)
        return response(status=response.ScaleStatus.IN_PROGRESS)

    async def uri(self, request: api.SegmentId) -> api.NodeUri:
        info = request.streamInfo
        if request.segmentId < 0:
            raise InvalidRequestError(f"a segment id is not negative id={request.segmentId}")
        endpoint = self._locate(segment_name(info.scope, info.stream, request.segmentId))
        return api.NodeUri(endpoint=endpoint.address, port=endpoint.port)

    async def delegation_token(self, request: api.StreamInfo) -> api.DelegationToken:
        return api.DelegationToken(delegationToken=self._token(request))

    def _token(self, stream: api.StreamInfo) -> str:
        return self._issue_token(stream.scope, stream.stream)
