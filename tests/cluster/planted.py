"""Bugs to plant in the cluster: each breaks one promise by which a container could be at two nodes, or at none."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from segmentstore.cluster import assigned_containers, assigner, session_lease
from segmentstore.cluster.assigned_containers import AssignedContainers
from segmentstore.cluster.leader import Leadership
from segmentstore.cluster.placement import _Planning
from segmentstore.cluster.records import (
    AssignedContainer,
    AssignmentMap,
    NodeReport,
    decode_assignment,
)
from segmentstore.contracts.containers import HostAssignment, HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import Change
from tests.cluster.random_cluster import World


def _apply_an_assignment_late(patch: pytest.MonkeyPatch) -> None:
    """Reports say that the map is followed as soon as it was read; the manager hears of it seconds later."""
    honest_take, honest_watch = AssignedContainers._take, AssignedContainers.watch

    def take(self: AssignedContainers, assignment: AssignmentMap) -> None:
        report = self._report
        self._report = NodeReport(
            assignment.version, report.held, report.running, report.failed, report.loads
        )
        honest_take(self, assignment)

    async def watch(
        self: AssignedContainers, host_id: HostId
    ) -> AsyncGenerator[HostAssignment, None]:
        async with aclosing(honest_watch(self, host_id)) as assignments:
            async for assignment in assignments:
                await asyncio.sleep(3.0)
                yield assignment

    patch.setattr(AssignedContainers, "_take", take)
    patch.setattr(AssignedContainers, "watch", watch)


def write_without_a_check_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """Seeds do not find it, because the version of the map protects as well: test_sessions.py does."""

    async def commit(self: Leadership, changes: Sequence[Change]) -> None:
        await self.session.commit(changes)

    patch.setattr(Leadership, "commit", commit)


def _trust_a_lease_for_longer_than_its_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_lease, "LEASE_SHARE", 1.5)


def _count_a_lease_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Nothing but the moment of the answer counts, whenever the request was sent."""

    def end_of_lease(self: session_lease.SessionLease, sent: float) -> float:
        return self._loop.time() + self._session.session_seconds

    patch.setattr(session_lease.SessionLease, "_end_of_lease", end_of_lease)


def _forget_since_when_a_container_is_where_it_is(patch: pytest.MonkeyPatch) -> None:
    def without_since(value: bytes) -> AssignmentMap:
        found = decode_assignment(value)
        return AssignmentMap(
            found.version,
            found.leader_epoch,
            {
                c: AssignedContainer(each.node, 0, each.leaving, each.failure)
                for c, each in found.containers.items()
            },
            found.rebalanced,
        )

    for module in (assigned_containers, assigner):
        patch.setattr(module, "decode_assignment", without_since)


def _give_away_what_is_still_being_closed(patch: pytest.MonkeyPatch) -> None:
    def has_left(
        self: _Planning, container_id: ContainerId, each: AssignedContainer, node: HostId
    ) -> bool:
        report = self._reports.get(node)
        return report is None or container_id not in report.running

    patch.setattr(_Planning, "_has_left", has_left)


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """What is broken, and the world in which it shows."""

    patch: Callable[[pytest.MonkeyPatch], None]
    shape: Callable[[World], None] | None = None


BUGS = {
    "apply an assignment late": PlantedBug(_apply_an_assignment_late),
    "trust a lease for longer than its session": PlantedBug(
        _trust_a_lease_for_longer_than_its_session
    ),
    "count a lease from the answer": PlantedBug(_count_a_lease_from_the_answer, World.late_answers),
    "forget since when a container is where it is": PlantedBug(
        _forget_since_when_a_container_is_where_it_is
    ),
    "give away what is still being closed": PlantedBug(_give_away_what_is_still_being_closed),
}
