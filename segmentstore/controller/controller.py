"""The controller: recovers, keeps working in the background, answers calls.

    repair() only after a recovery from Tier 2 alone: make segments and records agree
    start()  find or create the tables, load the transactions, finish what an earlier process began
    run()    the background work, until cancelled: interrupted operations, transactions, retention, scaling, watermarks
    service  the gRPC service for a ControllerServer, or for a simulation that calls it without a socket

From `start` to the end of `run` is one life. Another one may follow in the same process.

Invariants:

- Calls are answered while `run` works; before and after they wait, or are told to come back. Those that are under way
  when it ends are refused before it returns.
- A life begins with nothing in memory: another controller may have been at work since the one before. What that one
  left on its way into a table is there before anything is read.
- Everything that it knows stands in table segments of the store: there is nothing to close, and killing it at any
  moment is as good as ending it.
- At most one controller works on a store at a time. Two of them damage nothing, since every change names the versions
  that it replaces, but they would send each other's callers away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.api.grpc_server import ControllerService
from segmentstore.controller.api.messages import Endpoint, IssueToken, LocateSegment, no_token
from segmentstore.controller.components import ControllerComponents
from segmentstore.controller.errors import ScopeNotFoundError
from segmentstore.controller.settings import ControllerSettings
from segmentstore.controller.streams.repair import RepairReport
from segmentstore.runtime.clock import WallClock

_SCOPES_PER_READ = 100


class Controller:
    """One controller over one store."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        tables: TableApi,
        wall_clock: WallClock,
        random: Random,
        locate: LocateSegment,
        issue_token: IssueToken = no_token,
        controllers: Sequence[Endpoint] = (),
        settings: ControllerSettings,
    ) -> None:
        self._build = partial(
            ControllerComponents,
            segments=segments,
            tables=tables,
            wall_clock=wall_clock,
            random=random,
            settings=settings,
        )
        self._calls = partial(
            ControllerComponents.calls,
            locate=locate,
            issue_token=issue_token,
            controllers=controllers,
        )
        self._components = self._build()
        self._used = False
        """The components remember something."""
        self._started = False
        self.service = ControllerService(calls=self._calls(self._components))

    @property
    def components(self) -> ControllerComponents:
        """Those of the present life: each has its own."""
        return self._components

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered."""
        return self.service.is_ready

    async def repair(self) -> RepairReport:
        """After a recovery from Tier 2 alone, before `start`: make segments and records agree. May be repeated."""
        components = self.components
        await components.metadata.start()
        await components.scopes.resume_all()
        report = await components.repair.repair_all()
        report.created.extend(await components.transactions.repair())
        return report

    async def start(self) -> None:
        """Recover. Raises SegmentStoreError (the store is not there yet): start again later."""
        self._started = False
        if self._used:
            self._components.require_settled()
            self._components = self._build(clock_watch=self._components.clock_watch)
        self._used = True
        components = self._components
        await components.metadata.start()
        # Streams that are committing need their transactions; everything else needs its scope settled.
        await components.transactions.start()
        await components.scopes.resume_all()
        await components.streams.operations.resume_all()
        await self._each_scope(components.reader_groups.resume)
        await self._each_scope(components.key_value_tables.resume)
        self._started = True

    async def run(self) -> None:
        """Work until cancelled. After a successful start, once."""
        assert self._started, "run before start"
        self._started = False
        components = self._components
        self.service.begin(self._calls(components))
        try:
            async with asyncio.TaskGroup() as group:
                for work in (
                    components.streams.operations.run,
                    components.scopes.run,
                    components.reader_groups.run,
                    components.key_value_tables.run,
                    components.transactions.run,
                    components.retention.run,
                    components.auto_scale.run,
                    components.watermarks.run,
                ):
                    group.create_task(work())
        finally:
            await self.service.end()

    async def _each_scope(self, resume: Callable[[str], Awaitable[None]]) -> None:
        after = ""
        while True:
            page = await self.components.scopes.names(after=after, count=_SCOPES_PER_READ)
            for scope in page.names:
                try:
                    await resume(scope)
                except ScopeNotFoundError:
                    # Deleted since the listing was read.
                    continue
            if not page.more:
                return
            after = page.names[-1]
