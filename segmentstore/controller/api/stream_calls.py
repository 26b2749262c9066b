"""The calls about scopes, about streams, and about the segments of a stream: decode, call, encode.

A listing's token is the last name delivered; the page behind the last name is empty and ends the listing. Every answer
carries a token, also the empty ones.

A sealed stream refuses updates and truncations with FAILURE: older clients do not know a status of its own for it and
would read that one as success.

For the calls about segments (which, where, what comes behind, scaling) an unknown stream is the gRPC status NOT_FOUND:
their answers have no status of their own.
"""

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import StreamState
from segmentstore.codec.stream_names import is_user_name, segment_name
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.api.call import Call, unary
from segmentstore.controller.api.messages import (
    IssueToken,
    ListControllers,
    LocateSegment,
    configuration_message,
    configuration_of,
    range_message,
    ranges_message,
    segment_id_message,
)
from segmentstore.controller.errors import (
    PreconditionError,
    ScopeExistsError,
    ScopeNotEmptyError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.metadata_table import NamePage
from segmentstore.controller.scopes import Scopes
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.streams import Streams


class ScopeCalls:
    """Scopes, as clients call them."""

    def __init__(self, *, scopes: Scopes, settings: StreamSettings) -> None:
        self._scopes = scopes
        self._settings = settings

    def calls(self) -> list[Call]:
        """What this answers."""
        return [
            unary("createScope", api.ScopeInfo, self.create),
            unary("deleteScope", api.ScopeInfo, self.delete),
            unary("deleteScopeRecursive", api.ScopeInfo, self.delete_with_content),
            unary("listScopes", api.ScopesRequest, self.list_scopes),
            unary("checkScopeExists", api.ScopeInfo, self.exists),
            unary("listStreamsInScope", api.StreamsInScopeRequest, self.list_streams),
            unary("listStreamsInScopeForTag", api.StreamsInScopeWithTagRequest, self.list_tagged),
        ]

    async def create(self, request: api.ScopeInfo) -> api.CreateScopeStatus:
        status = api.CreateScopeStatus
        if not is_user_name(request.scope):
            return status(status=status.Status.INVALID_SCOPE_NAME)
        try:
            await self._scopes.create(request.scope)
        except ScopeExistsError:
            return status(status=status.Status.SCOPE_EXISTS)
        return status(status=status.Status.SUCCESS)

    async def delete(self, request: api.ScopeInfo) -> api.DeleteScopeStatus:
        status = api.DeleteScopeStatus
        try:
            await self._scopes.delete(request.scope)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        except ScopeNotEmptyError:
            return status(status=status.Status.SCOPE_NOT_EMPTY)
        return status(status=status.Status.SUCCESS)

    async def delete_with_content(self, request: api.ScopeInfo) -> api.DeleteScopeStatus:
        status = api.DeleteScopeStatus
        try:
            await self._scopes.delete_with_content(request.scope)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        return status(status=status.Status.SUCCESS)

    async def exists(self, request: api.ScopeInfo) -> api.ExistsResponse:
        return api.ExistsResponse(exists=await self._scopes.exists(request.scope))

    async def list_scopes(self, request: api.ScopesRequest) -> api.ScopesResponse:
        after = request.continuationToken.token
        page = await self._scopes.names(after=after, count=self._settings.names_per_page)
        return api.ScopesResponse(scopes=page.names, continuationToken=_token_behind(page, after))

    async def list_streams(self, request: api.StreamsInScopeRequest) -> api.StreamsInScopeResponse:
        after = request.continuationToken.token
        try:
            page = await self._scopes.streams(
                request.scope.scope, after=after, count=self._settings.names_per_page
            )
        except ScopeNotFoundError:
            return _no_scope(after)
        return _streams_message(request.scope.scope, page, after)

    async def list_tagged(
        self, request: api.StreamsInScopeWithTagRequest
    ) -> api.StreamsInScopeResponse:
        after = request.continuationToken.token
        try:
            page = await self._scopes.streams_with_tag(
                request.scope.scope,
                request.tag,
                after=after,
                count=self._settings.names_per_page,
            )
        except ScopeNotFoundError:
            return _no_scope(after)
        return _streams_message(request.scope.scope, page, after)


class StreamCalls:
    """Streams, as clients call them."""

    def __init__(self, *, streams: Streams) -> None:
        self._streams = streams

    def calls(self) -> list[Call]:
        """What this answers."""
        return [
            unary("createStream", api.StreamConfig, self.create),
            unary("updateStream", api.StreamConfig, self.update),
            unary("getStreamConfiguration", api.StreamInfo, self.configuration),
            unary("truncateStream", api.StreamCut, self.truncate),
            unary("sealStream", api.StreamInfo, self.seal),
            unary("deleteStream", api.StreamInfo, self.delete),
            unary("checkStreamExists", api.StreamInfo, self.exists),
        ]

    async def create(self, request: api.StreamConfig) -> api.CreateStreamStatus:
        status = api.CreateStreamStatus
        info = request.streamInfo
        if not is_user_name(info.stream):
            return status(status=status.Status.INVALID_STREAM_NAME)
        try:
            await self._streams.create(info.scope, info.stream, configuration_of(request))
        except StreamExistsError:
            return status(status=status.Status.STREAM_EXISTS)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        return status(status=status.Status.SUCCESS)

    async def update(self, request: api.StreamConfig) -> api.UpdateStreamStatus:
        status = api.UpdateStreamStatus
        info = request.streamInfo
        try:
            await self._streams.update(info.scope, info.stream, configuration_of(request))
        except StreamNotFoundError:
            return status(status=status.Status.STREAM_NOT_FOUND)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        except StreamSealedError:
            return status(status=status.Status.FAILURE)
        return status(status=status.Status.SUCCESS)

    async def configuration(self, request: api.StreamInfo) -> api.StreamConfig:
        configuration = await self._streams.queries.configuration(request.scope, request.stream)
        return configuration_message(request.scope, request.stream, configuration)

    async def truncate(self, request: api.StreamCut) -> api.UpdateStreamStatus:
        status = api.UpdateStreamStatus
        info = request.streamInfo
        try:
            await self._streams.truncation.truncate(info.scope, info.stream, dict(request.cut))
        except StreamNotFoundError:
            return status(status=status.Status.STREAM_NOT_FOUND)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        except (PreconditionError, StreamSealedError, StreamSegmentNotFoundError):
            return status(status=status.Status.FAILURE)
        return status(status=status.Status.SUCCESS)

    async def seal(self, request: api.StreamInfo) -> api.UpdateStreamStatus:
        status = api.UpdateStreamStatus
        try:
            await self._streams.seal(request.scope, request.stream)
        except StreamNotFoundError:
            return status(status=status.Status.STREAM_NOT_FOUND)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        return status(status=status.Status.SUCCESS)

    async def delete(self, request: api.StreamInfo) -> api.DeleteStreamStatus:
        status = api.DeleteStreamStatus
        try:
            await self._streams.delete(request.scope, request.stream)
        except (StreamNotFoundError, ScopeNotFoundError):
            return status(status=status.Status.STREAM_NOT_FOUND)
        except StreamNotSealedError:
            return status(status=status.Status.STREAM_NOT_SEALED)
        return status(status=status.Status.SUCCESS)

    async def exists(self, request: api.StreamInfo) -> api.ExistsResponse:
        return api.ExistsResponse(
            exists=await self._streams.queries.exists(request.scope, request.stream)
        )


class LocationCalls:
    """Where to go, and what to show there. None of it is in a table, so it is told also while no controller works:
    clients find a container that moved before the controller has read its tables again."""

    def __init__(
        self,
        *,
        locate: LocateSegment,
        issue_token: IssueToken,
        controllers: ListControllers,
    ) -> None:
        self._locate = locate
        self._issue_token = issue_token
        self._controllers = controllers

    def calls(self) -> list[Call]:
        """What this answers."""
        return [
            unary(
                "getControllerServerList",
                api.ServerRequest,
                self.controller_list,
                rests_on_tables=False,
            ),
            unary("getURI", api.SegmentId, self.uri, rests_on_tables=False),
            unary(
                "getDelegationToken", api.StreamInfo, self.delegation_token, rests_on_tables=False
            ),
        ]

    async def controller_list(
        self,
        request: api.ServerRequest,  # noqa: ARG002 (an empty message)
    ) -> api.ServerResponse:
        # A client that begins with `pravega://` goes to none but these: an empty list is no answer.
        return api.ServerResponse(
            nodeURI=[
                api.NodeUri(endpoint=each.address, port=each.port) for each in self._controllers()
            ]
        )

    async def uri(self, request: api.SegmentId) -> api.NodeUri:
        info = request.streamInfo
        if request.segmentId < 0:
            raise InvalidRequestError(f"a segment id is not negative id={request.segmentId}")
        endpoint = self._locate(segment_name(info.scope, info.stream, request.segmentId))
        return api.NodeUri(endpoint=endpoint.address, port=endpoint.port)

    async def delegation_token(self, request: api.StreamInfo) -> api.DelegationToken:
        return api.DelegationToken(delegationToken=self._issue_token(request.scope, request.stream))


class SegmentCalls:
    """Segments of streams, as clients call for them."""

    def __init__(
        self,
        *,
        streams: Streams,
        issue_token: IssueToken,
    ) -> None:
        self._streams = streams
        self._issue_token = issue_token

    def calls(self) -> list[Call]:
        """What this answers."""
        return [
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
        ]

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

    def _token(self, stream: api.StreamInfo) -> str:
        return self._issue_token(stream.scope, stream.stream)


def _streams_message(scope: str, page: NamePage, after: str) -> api.StreamsInScopeResponse:
    return api.StreamsInScopeResponse(
        streams=[api.StreamInfo(scope=scope, stream=stream) for stream in page.names],
        continuationToken=_token_behind(page, after),
        status=api.StreamsInScopeResponse.Status.SUCCESS,
    )


def _no_scope(after: str) -> api.StreamsInScopeResponse:
    return api.StreamsInScopeResponse(
        continuationToken=api.ContinuationToken(token=after),
        status=api.StreamsInScopeResponse.Status.SCOPE_NOT_FOUND,
    )


def _token_behind(page: NamePage, after: str) -> api.ContinuationToken:
    return api.ContinuationToken(token=page.names[-1] if page.names else after)
