"""What a process of the cluster knows of it, and whether it has heard of it lately."""

import asyncio
from asyncio import Event
from collections.abc import Callable, Coroutine
from random import Random
from typing import NamedTuple

import pytest

from segmentstore.cluster.cluster_view import LOOK_SECONDS_MAX, ClusterView
from segmentstore.cluster.placement import first_assignment
from segmentstore.cluster.records import ASSIGNMENT_PATH, encode_assignment
from segmentstore.coordination.coordination_store import (
    CoordinationUnavailableError,
    VersionedValue,
)
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network


class CutSession(SimulatedSession):
    """Is answered nothing while `is_cut`."""

    is_cut = False
    reads = 0
    """Begun."""
    read_seconds = 0.0

    async def get(self, path: str, *, changed: Event | None = None) -> VersionedValue | None:
        self.reads += path == ASSIGNMENT_PATH
        await asyncio.sleep(self.read_seconds)
        self._require_way()
        return await super().get(path, changed=changed)

    async def children(self, path: str, *, changed: Event | None = None) -> list[str]:
        self._require_way()
        return await super().children(path, changed=changed)

    def _require_way(self) -> None:
        if self.is_cut:
            raise CoordinationUnavailableError("cut")


def test_a_view_is_fresh_while_its_reads_are_answered() -> None:
    async def main(loop: SimLoop) -> None:
        session = await CutSession.connect(
            SimulatedCoordination(Random(1), 1_000.0), Network(Random(2))
        )
        assert isinstance(session, CutSession)
        view = ClusterView(session, container_count=4, random=Random(3))
        seen = [view.is_fresh]
        following = loop.create_task(view.run())
        for seconds, is_cut in (
            (1.0, False),
            (10 * LOOK_SECONDS_MAX, False),
            (LOOK_SECONDS_MAX, True),
            (2 * LOOK_SECONDS_MAX, True),
            (2.0, False),
        ):
            session.is_cut = is_cut
            await asyncio.sleep(seconds)
            seen.append(view.is_fresh)
        assert seen == [False, True, True, True, False, True]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_simulation(1, main)


class TwoRefreshes(NamedTuple):
    """The first one reads, the second one waits; there is a map meanwhile."""

    session: CutSession
    view: ClusterView
    first: "asyncio.Task[None]"
    second: "asyncio.Task[None]"


def with_two_refreshes(check: Callable[[TwoRefreshes], Coroutine[None, None, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        session = await CutSession.connect(
            SimulatedCoordination(Random(1), 1_000.0), Network(Random(2))
        )
        assert isinstance(session, CutSession)
        view = ClusterView(session, container_count=4, random=Random(3))
        session.read_seconds = 1.0
        # It began before both, and serves neither.
        before = loop.create_task(view.refresh())
        await asyncio.sleep(0.5)
        first, second = (loop.create_task(view.refresh()) for _ in range(2))
        await before
        assert view.assignment() is None
        await session.create(ASSIGNMENT_PATH, encode_assignment(first_assignment(4, epoch=1)))
        await check(TwoRefreshes(session, view, first, second))

    run_simulation(1, main)


def test_a_refresh_serves_those_that_came_before_its_read() -> None:
    async def check(at: TwoRefreshes) -> None:
        await asyncio.gather(at.first, at.second)
        assert at.session.reads == 2
        assert at.view.assignment() is not None

    with_two_refreshes(check)


def test_a_refresh_whose_caller_leaves_serves_none_of_those_that_waited_for_it() -> None:
    async def check(at: TwoRefreshes) -> None:
        at.first.cancel()
        await at.second
        assert at.session.reads == 3
        assert at.view.assignment() is not None

    with_two_refreshes(check)


def test_a_refresh_that_is_not_answered_has_failed_for_all_that_waited_for_it() -> None:
    async def check(at: TwoRefreshes) -> None:
        at.session.is_cut = True
        for each in (at.first, at.second):
            with pytest.raises(CoordinationUnavailableError):
                await each
        assert at.session.reads == 2
        at.session.is_cut = False
        await at.view.refresh()
        assert at.view.assignment() is not None

    with_two_refreshes(check)
