"""Bugs to plant in the cluster: each breaks one promise by which a container could be at two nodes, or at none."""

from collections.abc import Callable, Sequence

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
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import Change


def _report_a_map_that_is_not_followed_yet(patch: pytest.MonkeyPatch) -> None:
    """The manager applies an assignment late, and the report says that it did when it was read."""
    honest = AssignedContainers._take

    def take(self: AssignedContainers, assignment: AssignmentMap) -> None:
        report = self._report
        self._report = NodeReport(
            assignment.version, report.held, report.running, report.failed, report.loads
        )
        honest(self, assignment)

    patch.setattr(AssignedContainers, "_take", take)


def _write_without_a_check_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
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


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "report a map that is not followed yet": _report_a_map_that_is_not_followed_yet,
    "write without a check of the epoch": _write_without_a_check_of_the_epoch,
    "trust a lease for longer than its session": _trust_a_lease_for_longer_than_its_session,
    "count a lease from the answer": _count_a_lease_from_the_answer,
    "forget since when a container is where it is": _forget_since_when_a_container_is_where_it_is,
    "give away what is still being closed": _give_away_what_is_still_being_closed,
}
