"""Which node gets which container: from the present map and what is known of nodes, the next map. Pure.

In the order in which it is decided:

1. A container of a node that is gone is given to none; so is one that the node reports as failed. One that was
   leaving a node has left when that node is gone, or follows a version without the container and does not hold it.
2. A container that is given to none, and leaves none, goes to a pinned node, unless it has just failed there, else to
   the node with the least load: rather to one where none has just failed, and rather to another than the one where it
   failed last. If that is one where some have just failed, a failed container is held back until its pause is over.
3. Of containers that are well where they are some begin to move: those of drained nodes, those of nodes that do not
   reach Tier 2 while others do, those that are pinned elsewhere, and those whose move makes loads more even. At most
   `moves_at_once` are given to none by that.

So a node that joins gets what has no node by the second step, and more by the third. A node that failed containers, for
want of bookies say, has become the emptiest by that, and would be given others by both: it is a suspect for a while.

Invariants:

- A map gives a container to a registered node, and never to one while another may hold it.
- A container moves only if it gains by it: what is on a node that is neither drained nor too full nor alone without
  Tier 2, and not pinned elsewhere, stays.
- A Tier 2 that no node reaches moves nothing, whatever the order in which nodes notice (see Tier2State).
- No container is moved to a suspect to make loads even, unless a person asks for it and all nodes with room are
  suspects. A suspect gets what has no node if no other node has room, or, if it is one for other failures than those of
  its way to Tier 2, what is pinned to it and has not failed there.
- No container is moved to make loads even while a failed one is held back: where that one will be depends on what
  moves, so each move could be a reason for another one.
- A node is given more to make loads even only as it starts what it was given: one that can start none, and has not
  said so yet, interrupts no more containers than are moved at once.
- A node that is none of the suspects any more takes part in that as every other: also what failed there may come back.
- Loads that differ from one another are figures of a moment: a difference below a quarter of the mean moves nothing,
  unless a person asks for it.
- What stays down is given to no node; a person has to ask for another attempt.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from segmentstore.cluster.records import (
    NO_NODE,
    AssignedContainer,
    AssignmentMap,
    FailureRecord,
    FailureReport,
    NodeReport,
    Wishes,
    is_named,
)
from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId

_UNIT_LOAD = 1.0
_UNEVEN_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Limits of what the leader decides."""

    same_failure_count: int = 5
    """After so many failures of one lasting kind in a row a container stays down. (`restart.same_failure_count` of a
    store that is no cluster has another default.)"""
    moves_at_once: int = 4
    """Containers that are given to none because of a move."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What the leader has read."""

    nodes: Sequence[ClusterNode]
    reports: Mapping[HostId, NodeReport] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)
    loads: Mapping[ContainerId, float] = field(default_factory=dict)
    """Of each container that was ever reported with one, the last; 1 is what another counts as."""
    held_back: AbstractSet[ContainerId] = frozenset()
    """Failed containers whose pause is not over: until then only a node that is trusted with them gets them."""
    forgiven: AbstractSet[ContainerId] = frozenset()
    """Containers that have run well for long enough since their last failure."""
    suspects: AbstractSet[HostId] = frozenset()
    """Nodes where containers failed, or that lost Tier 2, so short a time ago that they are not trusted with others."""
    came_and_went: AbstractSet[HostId] = frozenset()
    """Those of them that did not reach Tier 2."""


def next_assignment(
    current: AssignmentMap, observed: Observed, *, epoch: int, settings: PlacementSettings
) -> AssignmentMap | None:
    """The map that follows, or None if nothing is to be changed."""
    planning = _Planning(current, observed, settings)
    planning.note_what_happened()
    planning.place()
    planning.move()
    if planning.containers == current.containers and planning.rebalanced == current.rebalanced:
        return None
    return AssignmentMap(planning.version, epoch, planning.containers, planning.rebalanced)


def first_assignment(container_count: int, *, epoch: int) -> AssignmentMap:
    """Of a cluster without a map: each container is given to none."""
    return AssignmentMap(
        1, epoch, {ContainerId(n): AssignedContainer() for n in range(container_count)}
    )


def nodes_without_tier2(reports: Mapping[HostId, NodeReport]) -> set[HostId]:
    """Nodes that do not reach Tier 2 while another one does: a Tier 2 that is away for all is no fault of a node."""
    if not any(report.tier2 is Tier2State.REACHED for report in reports.values()):
        return set()
    return {node_id for node_id, report in reports.items() if report.tier2 is Tier2State.SILENT}


class _Planning:
    """One decision. Loads and counts are kept as they will be when what is under way has ended."""

    def __init__(
        self, current: AssignmentMap, observed: Observed, settings: PlacementSettings
    ) -> None:
        self.version = current.version + 1
        self.containers = dict(sorted(current.containers.items()))
        self.rebalanced = current.rebalanced
        self._observed = observed
        self._settings = settings
        self._nodes = {node.node_id: node for node in observed.nodes}
        self._reports = observed.reports
        self._wishes = observed.wishes
        self._avoided = nodes_without_tier2(observed.reports) & self._nodes.keys() | {
            node_id for node_id in self._nodes if observed.wishes.drains(node_id)
        }
        """Drained nodes, and those that are to be left as if they were."""
        self._suspects = set(observed.suspects)
        self._load_of = observed.loads
        self._loads = dict.fromkeys(self._nodes, 0.0)
        self._counts = dict.fromkeys(self._nodes, 0)
        self._holds_back = False
        """Whether a failed container waits for its pause."""

    # --- what happened ----------------------------------------------------------------------------

    def note_what_happened(self) -> None:
        for container_id, each in self.containers.items():
            self.containers[container_id] = self._noted(container_id, each)

    def _noted(self, container_id: ContainerId, each: AssignedContainer) -> AssignedContainer:
        if each.leaving is not None and self._has_left(container_id, each, each.leaving):
            each = replace(each, leaving=None)
        if each.node is not None:
            report = self._reports.get(each.node, NodeReport())
            failure = report.failed.get(container_id)
            if failure is not None and failure.since == each.since:
                record = self._failure(container_id, each, failure)
                self._suspects.add(record.node)
                each = AssignedContainer(None, self.version, None, record)
            elif each.node not in self._nodes:
                each = AssignedContainer(None, self.version, None, each.failure)
        if each.failure is None:
            return each
        retry = self._wishes.retries.get(container_id, 0)
        if each.failure.stays_down and retry > each.failure.retry:
            return replace(
                each, failure=replace(each.failure, stays_down=False, same_count=0, retry=retry)
            )
        is_forgiven = container_id in self._observed.forgiven and each.node is not None
        # Not yet what says that it failed at a node which is not trusted again: a pin would take it back there.
        if is_forgiven and each.failure.node not in self._observed.suspects:
            return replace(each, failure=None)
        return each

    def _has_left(self, container_id: ContainerId, each: AssignedContainer, node: HostId) -> bool:
        if node not in self._nodes:
            return True
        report = self._reports.get(node)
        return (
            report is not None and report.version >= each.since and container_id not in report.held
        )

    def _failure(
        self, container_id: ContainerId, each: AssignedContainer, failure: FailureReport
    ) -> FailureRecord:
        assert each.node is not None, f"it failed at a node {container_id=} {each=}"
        before = each.failure
        is_lasting = failure.kind not in ("", "passing")
        same = 1 if before is None or before.kind != failure.kind else before.same_count + 1
        return FailureRecord(
            count=1 if before is None else before.count + 1,
            node=each.node,
            cause=failure.cause,
            kind=failure.kind,
            same_count=same if is_lasting else 0,
            stays_down=failure.kind == "corrupt"
            or (is_lasting and same >= self._settings.same_failure_count),
            # What was asked for until now was another attempt than the one behind this failure.
            retry=self._wishes.retries.get(container_id, 0),
        )

    # --- places -----------------------------------------------------------------------------------

    def place(self) -> None:
        for container_id, each in self.containers.items():
            if each.node is not None:
                self._count(container_id, each.node)
        waiting = [
            c
            for c, each in self.containers.items()
            if each.node is None and not (each.failure is not None and each.failure.stays_down)
        ]
        for container_id in sorted(waiting, key=lambda c: (-self._load(c), c)):
            each = self.containers[container_id]
            target = self._target(container_id)
            has_just_failed = each.failure is not None and each.since == self.version
            is_held_back = (
                has_just_failed or container_id in self._observed.held_back
            ) and not self._is_trusted_with(target, container_id)
            self._holds_back |= is_held_back
            if target is None:
                continue
            # One that cannot be given yet counts where it will be, so that the next ones are placed beside it.
            self._count(container_id, target)
            if each.leaving is None and not is_held_back:
                self.containers[container_id] = replace(each, node=target, since=self.version)

    def _target(self, container_id: ContainerId) -> HostId | None:
        """The best node with room; None if there is none."""
        pinned = self._pin_to_follow(container_id)
        if pinned is not None:
            return pinned
        failed_at = self._failed_at(container_id)
        candidates = [n for n in self._nodes if self._has_room(n)]
        # If there is no other node, one of them is better than none.
        candidates = [n for n in candidates if n not in self._avoided] or candidates
        return min(
            candidates,
            key=lambda n: (n in self._suspects, n == failed_at, *self._fullness(n)),
            default=None,
        )

    def _is_trusted_with(self, target: HostId | None, container_id: ContainerId) -> bool:
        """Whether the failure of a container is no reason to wait before it is tried there.

        A failure makes its node a suspect, so what fails everywhere has failed once at each node before it waits. What
        fails the same way for a second time, and for a reason that does not pass by itself, waits wherever it goes.
        """
        failure = self.containers[container_id].failure
        if failure is not None and failure.same_count > 1:
            return False
        is_trusted = target is not None and target not in self._suspects
        return is_trusted and target != self._failed_at(container_id)

    def _failed_at(self, container_id: ContainerId) -> HostId | None:
        failure = self.containers[container_id].failure
        return None if failure is None else failure.node

    def _fullness(self, node_id: HostId) -> tuple[float, int, HostId]:
        return self._loads[node_id], self._counts[node_id], node_id

    def _pinned_node(self, container_id: ContainerId) -> HostId | None:
        name = self._wishes.pinned.get(container_id)
        if name is None:
            return None
        named = [n for n in self._nodes if is_named(n, name) and n not in self._avoided]
        return min(named, default=None)

    def _pin_to_follow(self, container_id: ContainerId) -> HostId | None:
        """The node that it is pinned to, if that has room. Where it has just failed it is not tried again and again
        while others would run it: the node has to be trusted first. So has one whose way to Tier 2 comes and goes."""
        pinned = self._pinned_node(container_id)
        if pinned is None or not self._has_room(pinned) or pinned in self._observed.came_and_went:
            return None
        has_just_failed = pinned in self._suspects and pinned == self._failed_at(container_id)
        return None if has_just_failed else pinned

    def _has_room(self, node_id: HostId) -> bool:
        capacity = self._nodes[node_id].capacity
        return not capacity or self._counts[node_id] < capacity

    def _count(self, container_id: ContainerId, node_id: HostId, sign: int = 1) -> None:
        self._loads[node_id] += sign * self._load(container_id)
        self._counts[node_id] += sign

    def _load(self, container_id: ContainerId) -> float:
        return self._load_of.get(container_id, _UNIT_LOAD)

    # --- moves ------------------------------------------------------------------------------------

    def move(self) -> None:
        # One that failed and leaves no node waits for its pause: that is no move.
        under_way = sum(
            each.node is None and (each.failure is None or each.leaving is not None)
            for each in self.containers.values()
        )
        room = max(0, self._settings.moves_at_once - under_way)
        for container_id, target in self._wanted_moves(room):
            each = self.containers[container_id]
            assert each.node is not None, f"a container that moves is somewhere {container_id=}"
            self._count(container_id, each.node, -1)
            self._count(container_id, target)
            failure = each.failure
            if failure is not None and failure.node == target:
                # The node is trusted with it again: it would not be placed there otherwise.
                failure = replace(failure, node=NO_NODE)
            self.containers[container_id] = AssignedContainer(
                None, self.version, each.node, failure
            )
            room -= 1
        is_asked = self._wishes.rebalance > self.rebalanced
        # What only a suspect keeps from being even is made even later.
        if room and is_asked and self._evening_move(0.0, self._nodes) is None:
            self.rebalanced = self._wishes.rebalance

    def _wanted_moves(self, room: int) -> Iterator[tuple[ContainerId, HostId]]:
        """At most `room`; each is asked for when the one before it has been counted."""
        settled = [(c, each.node) for c, each in self.containers.items() if each.node is not None]
        for container_id, node in settled:
            if room <= 0:
                return
            target = self._forced_target(container_id, node)
            if target is not None:
                room -= 1
                yield container_id, target
        if self._holds_back:
            return
        is_asked = self._wishes.rebalance > self.rebalanced
        while room > 0:
            to_nodes = self._nodes_to_make_even(is_asked=is_asked)
            found = self._evening_move(0.0 if is_asked else _UNEVEN_SHARE, to_nodes)
            # All that is on its way from other nodes may be for this one, the emptiest: the map does not say.
            if found is None or self._starting_at(found[1]) >= room:
                return
            room -= 1
            yield found

    def _nodes_to_make_even(self, *, is_asked: bool) -> Sequence[HostId]:
        """Those that may be given more. What a person asks for does not wait for a trusted one where there is none: a
        container that fails everywhere without end keeps all of them suspects, and tells none from another."""
        able = [n for n in self._nodes if n not in self._avoided and self._has_room(n)]
        trusted = [n for n in able if n not in self._suspects]
        return able if is_asked and not trusted else trusted

    def _starting_at(self, node_id: HostId) -> int:
        """How many containers the node was given that it has not reported to run. O(containers)."""
        given = {c: each.since for c, each in self.containers.items() if each.node == node_id}
        report = self._reports.get(node_id, NodeReport())
        running = [c for c in report.running if c in given and report.held.get(c) == given[c]]
        return len(given) - len(running)

    def _forced_target(self, container_id: ContainerId, node: HostId) -> HostId | None:
        """Where a container of a node that is avoided goes, or one that is pinned elsewhere; None if it stays."""
        pinned = self._pin_to_follow(container_id)
        if pinned is not None and pinned != node:
            return pinned
        if node not in self._avoided:
            return None
        others = [n for n in self._nodes if n not in self._avoided and self._has_room(n)]
        return min(others, key=lambda n: (n in self._suspects, *self._fullness(n)), default=None)

    def _evening_move(
        self, slack_share: float, to_nodes: Iterable[HostId]
    ) -> tuple[ContainerId, HostId] | None:
        """The move to the emptiest of some nodes that is worth it: from the fullest that has something to move, that
        which makes the two most alike, and rather one that has not failed at the emptiest."""
        open_nodes = [n for n in self._nodes if n not in self._avoided]
        targets = [n for n in to_nodes if n not in self._avoided and self._has_room(n)]
        if len(open_nodes) < 2 or not targets:
            return None
        emptiest = min(targets, key=lambda n: (self._loads[n], n))
        gap_min = 0.0
        if self._load_of:
            gap_min = slack_share * sum(self._loads[n] for n in open_nodes) / len(open_nodes)
        movable: dict[HostId, list[ContainerId]] = {node_id: [] for node_id in open_nodes}
        for container_id, each in self.containers.items():
            if each.node in movable and self._pinned_node(container_id) is None:
                movable[each.node].append(container_id)
        for node_id in sorted(open_nodes, key=lambda n: (self._loads[n], n), reverse=True):
            gap = self._loads[node_id] - self._loads[emptiest]
            if gap <= gap_min:
                return None
            worth_it = [c for c in movable[node_id] if 0 < self._load(c) < gap]
            if worth_it:
                return min(
                    worth_it,
                    key=lambda c: (
                        self._failed_at(c) == emptiest,
                        abs(gap - 2 * self._load(c)),
                        c,
                    ),
                ), emptiest
        return None
