"""The calls that create, change and delete streams.

A sealed stream refuses updates and truncations with FAILURE: older clients do not know a status of its own for it and
would read that one as success.
"""

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import is_user_name
from segmentstore.controller.api.call import Call, unary
from segmentstore.controller.api.messages import configuration_message, configuration_of
from segmentstore.controller.errors import (
    PreconditionError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.streams.streams import Streams


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
            await self._streams.creation.create(info.scope, info.stream, configuration_of(request))
        except StreamExistsError:
            return status(status=status.Status.STREAM_EXISTS)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        return status(status=status.Status.SUCCESS)

    async def update(self, request: api.StreamConfig) -> api.UpdateStreamStatus:
        status = api.UpdateStreamStatus
        info = request.streamInfo
        try:
            await self._streams.configuring.update(
                info.scope, info.stream, configuration_of(request)
            )
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
            await self._streams.sealing.seal(request.scope, request.stream)
        except StreamNotFoundError:
            return status(status=status.Status.STREAM_NOT_FOUND)
        except ScopeNotFoundError:
            return status(status=status.Status.SCOPE_NOT_FOUND)
        return status(status=status.Status.SUCCESS)

    async def delete(self, request: api.StreamInfo) -> api.DeleteStreamStatus:
        status = api.DeleteStreamStatus
        try:
            await self._streams.deletion.delete(request.scope, request.stream)
        except (StreamNotFoundError, ScopeNotFoundError):
            return status(status=status.Status.STREAM_NOT_FOUND)
        except StreamNotSealedError:
            return status(status=status.Status.STREAM_NOT_SEALED)
        return status(status=status.Status.SUCCESS)

    async def exists(self, request: api.StreamInfo) -> api.ExistsResponse:
        return api.ExistsResponse(
            exists=await self._streams.queries.exists(request.scope, request.stream)
        )
