"""Keepers of scopes that come and go."""

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_runs.keeper import Keeper
from tests.controller.random_runs.stream_model import Stage
from tests.controller.random_runs.theatre import Theatre


class ScopeKeeper(Keeper):
    """One scope: created, given a stream, and deleted, empty or with all it holds."""

    def __init__(self, theatre: Theatre, scope: str) -> None:
        super().__init__(theatre, f"keeper of scope {scope}")
        self.scope = scope
        self._streams: dict[str, bool] = {}
        """Perhaps there; True: surely."""
        self._unsure = False

    @property
    def _info(self) -> api.ScopeInfo:
        return api.ScopeInfo(scope=self.scope)

    async def step(self) -> None:
        if self._stage in (Stage.ABSENT, Stage.CREATING):
            await self._create()
        elif self._stage is Stage.DELETING:
            await self.delete()
        elif self.random.random() < 0.5:
            await self._create_stream(f"x{self.random.randrange(3)}")
        elif self.random.random() < 0.3:
            await self._delete_if_empty()
        elif not self.theatre.calm and self.random.random() < 0.5:
            await self.delete()

    async def _create(self) -> None:
        unsure = self._stage is Stage.CREATING
        self._stage = Stage.CREATING
        self.theatre.scopes.of(self.scope).say(None, self.ledger.tick())
        answer = await self.world.call("createScope", self._info, api.CreateScopeStatus)
        status = api.CreateScopeStatus.Status
        if answer.status != status.SUCCESS and not (
            unsure and answer.status == status.SCOPE_EXISTS
        ):
            raise self.breach(f"create: {answer}")
        self._stage = Stage.ACTIVE
        self._streams = {}
        self.theatre.scopes.of(self.scope).say(True, self.ledger.tick())
        listed = await self.theatre.listing.streams(self.scope)
        if listed:
            raise self.breach(f"a new scope holds {listed}")

    async def _create_stream(self, stream: str) -> None:
        sure = self._streams.get(stream)
        self._streams.setdefault(stream, False)
        config = api.StreamConfig(
            streamInfo=api.StreamInfo(scope=self.scope, stream=stream),
            scalingPolicy=api.ScalingPolicy(minNumSegments=2),
        )
        answer = await self.world.call("createStream", config, api.CreateStreamStatus)
        status = api.CreateStreamStatus.Status
        if answer.status == (status.STREAM_EXISTS if sure is None else status.SCOPE_NOT_FOUND) or (
            sure and answer.status == status.SUCCESS
        ):
            raise self.breach(f"create {stream}, known {self._streams}: {answer}")
        self._streams[stream] = True

    async def _delete_if_empty(self) -> None:
        """Refused if it surely holds something."""
        if not any(self._streams.values()):
            return
        answer = await self.world.call("deleteScope", self._info, api.DeleteScopeStatus)
        if answer.status != api.DeleteScopeStatus.Status.SCOPE_NOT_EMPTY:
            raise self.breach(f"delete with {self._streams}: {answer}")

    async def delete(self) -> None:
        again = self._stage is Stage.DELETING
        self._stage = Stage.DELETING
        self.theatre.scopes.of(self.scope).say(None, self.ledger.tick())
        answer = await self.world.call("deleteScopeRecursive", self._info, api.DeleteScopeStatus)
        status = api.DeleteScopeStatus.Status
        if answer.status != status.SUCCESS and not (
            again and answer.status == status.SCOPE_NOT_FOUND
        ):
            raise self.breach(f"delete: {answer}")
        left = await self.world.ask(lambda host: host.segments.list_segments(f"{self.scope}/"))
        if left:
            raise self.breach(f"segments are left {[each.name for each in left]}")
        self._stage = Stage.ABSENT
        self.theatre.scopes.of(self.scope).say(False, self.ledger.tick())
