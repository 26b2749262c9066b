"""The calls of scopes and of listings.

A listing's token is the last name delivered; the page behind the last name is empty and ends the listing. Every answer
carries a token, also the empty ones.
"""

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import is_user_name
from segmentstore.controller.api.call import Call, unary
from segmentstore.controller.errors import (
    ScopeExistsError,
    ScopeNotEmptyError,
    ScopeNotFoundError,
)
from segmentstore.controller.metadata.metadata_table import NamePage
from segmentstore.controller.scopes.scopes import Scopes
from segmentstore.controller.streams.settings import StreamSettings


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
