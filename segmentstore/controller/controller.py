"""The controller: recovers, keeps working in the background, answers calls.

    repair() only after a recovery from Tier 2 alone: make segments and records agree; behind a start, end lost tails
    start()  find or create the tables, load the transactions, finish what an earlier process began, as far as it can
    run()    the background work, until cancelled: interrupted operations, transactions, retention, scaling, watermarks
    service  the gRPC service for a ControllerServer, or for a simulation that calls it without a socket

From `start` to the end of `run()` is one run of the controller. Another one may follow in the same process.

Invariants:

- Calls are answered while `run` works; before and after they wait, or are told to come back. Those that are under way
  when it ends are refused before it returns.
- A run begins with nothing in memory: another controller may have been at work since the run before. What that one
  left on its way into a table is there before anything is read.
- Only the table of scopes has to be there for a start. A scope whose table does not answer, transactions that cannot be
  read, and what cannot be finished stay behind, are tried again while `run` works, and are named in `complaints`:
  each scope and stream stands or falls with the containers that it needs.
- Everything that it knows stands in table segments of the store: there is nothing to close, and killing it at any
  moment is as good as ending it.
- At most one controller works on a store at a time. Two of them damage nothing, since every change names the versions
  that it replaces, but they would send each other's callers away.
"""

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from random import Random

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.api.grpc_server import ControllerService
from segmentstore.controller.api.messages import (
    IssueToken,
    ListControllers,
    LocateSegment,
    no_token,
)
from segmentstore.controller.components import ControllerComponents
from segmentstore.controller.errors import ScopeNotFoundError
from segmentstore.controller.retry_queue import ResourceName, RetryQueue
from segmentstore.controller.settings import ControllerSettings
from segmentstore.controller.streams.repair import RepairReport, TailIsLost, nothing_is_lost
from segmentstore.controller.streams.stream_history import all_scopes
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.waiting import gather_all

_LOG = logging.getLogger(__name__)

_SCOPES_AT_ONCE = 32
"""Of which a start reads what is unfinished."""
_COMPLAINTS_PER_KIND = 20
"""Further ones are only counted."""


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
        controllers: ListControllers = tuple,
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
        self._scopes_left_behind = RetryQueue(resume=self._resume_scope)
        self._used = False
        """The components remember something."""
        self._started = False
        self.service = ControllerService(calls=self._calls(self._components))

    @property
    def components(self) -> ControllerComponents:
        """Those of the present run: each has its own."""
        return self._components

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered."""
        return self.service.is_ready

    @property
    def is_incomplete(self) -> bool:
        """Whether the last start found the scopes, but one of them or the transactions does not answer yet."""
        return bool(
            self._components.transactions.start_failure or self._scopes_left_behind.complaints()
        )

    async def repair(self, is_lost: TailIsLost = nothing_is_lost) -> RepairReport:
        """After a recovery from Tier 2 alone, before `start`: make segments and records agree. May be repeated."""
        components = self.components
        await components.metadata.start()
        await components.scopes.resume_all()
        report = await components.repair.repair_all(is_lost)
        done = await components.transactions.repair()
        report.created.extend(done.created)
        report.ended_transactions.extend(done.ended)
        return report

    async def end_lost_tails(self, is_lost: TailIsLost, report: RepairReport) -> None:
        """Behind `repair`, when all that it found is decided: starts, ends segments, and adds them to the report."""
        repair = self.components.repair
        await self.start()
        await repair.end_lost_tails(is_lost, report)

    async def start(self, *, whole: bool = False) -> None:
        """Recover. Raises SegmentStoreError (the store is not there yet): start again later.

        With `whole` a single scope that does not answer is a reason to start again later.
        """
        self._started = False
        if self._used:
            self._components.require_settled()
            self._components = self._build(clock_watch=self._components.clock_watch)
        self._used = True
        components = self._components
        self._scopes_left_behind = RetryQueue(resume=self._resume_scope)
        await components.metadata.start()
        # Streams that are committing need their transactions; everything else needs its scope settled.
        try:
            await components.transactions.start()
        except SegmentStoreError as error:
            if whole:
                raise
            _LOG.warning("the transactions cannot be read yet: %s", error)
        await components.scopes.resume_all()
        await self._resume_scopes(whole=whole)
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
                    self._scopes_left_behind.run,
                    components.streams.operations.run,
                    components.scopes.run,
                    components.reader_groups.items.run,
                    components.key_value_tables.items.run,
                    components.transactions.run,
                    components.retention.run,
                    components.auto_scale.run,
                    components.watermarks.run,
                    components.transient_segments.run,
                ):
                    group.create_task(work())
        finally:
            await self.service.end()

    def complaints(self) -> list[str]:
        """What a person should know, in sentences: what could not be finished, and why."""
        components = self._components
        sentences: list[str] = []
        unread = components.transactions.start_failure
        if unread:
            sentences.append(f"the transactions cannot be read yet: {unread}")
        operations = components.streams.operations
        for sentence, failures in (
            ("scope {} does not answer", self._scopes_left_behind.complaints()),
            ("the deletion of scope {} is not finished", components.scopes.complaints()),
            ("an operation on stream {} is not finished", operations.complaints()),
            (
                "reader group {} is half made or half deleted",
                components.reader_groups.items.complaints(),
            ),
            (
                "table {} is half made or half deleted",
                components.key_value_tables.items.complaints(),
            ),
            ("transactions of stream {} are not finished", components.completer.complaints()),
        ):
            sentences += [
                f"{sentence.format('/'.join(place))}: {why}"
                for place, why in list(failures.items())[:_COMPLAINTS_PER_KIND]
            ]
            more = len(failures) - _COMPLAINTS_PER_KIND
            if more > 0:
                sentences.append(f"and {more} more like the last one")
        return sentences

    async def _resume_scopes(self, *, whole: bool) -> None:
        """Side by side: no call is answered before the last of them, and each waits for its own tables."""
        at_once: list[str] = []
        async with aclosing(all_scopes(self._components.metadata)) as scopes:
            async for scope in scopes:
                at_once.append(scope)
                if len(at_once) == _SCOPES_AT_ONCE:
                    await gather_all(self._resume_or_leave(each, whole=whole) for each in at_once)
                    at_once.clear()
        await gather_all(self._resume_or_leave(each, whole=whole) for each in at_once)

    async def _resume_or_leave(self, scope: str, *, whole: bool) -> None:
        try:
            await self._resume_scope((scope,))
        except ScopeNotFoundError:
            # Deleted since the listing was read.
            return
        except SegmentStoreError as error:
            self._scopes_left_behind.note_failure((scope,), error)
            if whole:
                raise

    async def _resume_scope(self, place: ResourceName) -> None:
        """Finish what an earlier process began in one scope."""
        (scope,) = place
        components = self._components
        await components.streams.operations.resume(scope)
        await components.reader_groups.items.resume(scope)
        await components.key_value_tables.items.resume(scope)
