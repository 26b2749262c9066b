"""Lists names page by page, to the end."""

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_runs.random_world import RandomWorld
from tests.sim.attempts import ModelBreachError

_PAGES_MAX = 1000


class Listing:
    """Every name, in the order in which the pages had them. Raises REQUEST_ERRORS; a page that fails is asked again."""

    def __init__(self, world: RandomWorld) -> None:
        self._world = world

    async def scopes(self) -> list[str]:
        names: list[str] = []
        token = api.ContinuationToken()
        for _ in range(_PAGES_MAX):
            page = await self._world.call(
                "listScopes", api.ScopesRequest(continuationToken=token), api.ScopesResponse
            )
            if not page.scopes:
                return names
            names += page.scopes
            token = page.continuationToken
        raise ModelBreachError(f"a listing does not end {names}")

    async def streams(self, scope: str, *, tag: str = "") -> list[str]:
        """All of a scope, or those with the tag."""
        names: list[str] = []
        token = api.ContinuationToken()
        info = api.ScopeInfo(scope=scope)
        for _ in range(_PAGES_MAX):
            if tag:
                page = await self._world.call(
                    "listStreamsInScopeForTag",
                    api.StreamsInScopeWithTagRequest(scope=info, tag=tag, continuationToken=token),
                    api.StreamsInScopeResponse,
                )
            else:
                page = await self._world.call(
                    "listStreamsInScope",
                    api.StreamsInScopeRequest(scope=info, continuationToken=token),
                    api.StreamsInScopeResponse,
                )
            if page.status != api.StreamsInScopeResponse.Status.SUCCESS:
                raise ModelBreachError(f"scope {scope} cannot be listed {page}")
            if not page.streams:
                return names
            names += [each.stream for each in page.streams]
            token = page.continuationToken
        raise ModelBreachError(f"a listing does not end {names}")

    async def tables(self, scope: str) -> list[str]:
        names: list[str] = []
        token = api.ContinuationToken()
        for _ in range(_PAGES_MAX):
            page = await self._world.call(
                "listKeyValueTablesInScope",
                api.KVTablesInScopeRequest(
                    scope=api.ScopeInfo(scope=scope), continuationToken=token
                ),
                api.KVTablesInScopeResponse,
            )
            if not page.kvtables:
                return names
            names += [each.kvtName for each in page.kvtables]
            token = page.continuationToken
        raise ModelBreachError(f"a listing does not end {names}")
