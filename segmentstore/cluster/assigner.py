"""What the leader does: reads nodes, reports and wishes, decides the next map, and commits it, for as long as it leads.

Invariants:

- A map is written by compare-and-set on the one that was read, in one commit with a check of the leader's epoch.
- What is read is no older than the moment at which the round began; a change that comes during a round is followed by
  another round.
- Failures are in the map. The pauses behind them, how long their nodes are suspects, and how long a container has run
  well, are this leader's own: a new leader begins them anew, with the number of failures that the map has. A container
  that only moves waits for no pause, whichever leader moves it.
- What this program cannot read ends no leader. Wishes are followed as they were read last, a report that makes no sense
  says nothing, and behind any other value nothing is assigned until it can be read: what runs, goes on.
- The first map of a cluster gives containers away when the nodes that were started together have had time to come.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from math import inf
from typing import Final

from segmentstore.cluster.leader import Leadership, LeadershipLostError
from segmentstore.cluster.placement import (
    Observed,
    PlacementSettings,
    first_assignment,
    next_assignment,
    nodes_without_tier2,
)
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    NODES_PATH,
    WISHES_PATH,
    AssignmentMap,
    ClusterRecordError,
    NodeReport,
    Wishes,
    decode_assignment,
    decode_node,
    decode_report,
    decode_wishes,
    encode_assignment,
    node_path,
    report_path,
)
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import (
    CoordinationUnavailableError,
    CreateValue,
    SessionLostError,
    SetValue,
    ValueChangedError,
)
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import gather_all, wait_for_event

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS_FIRST: Final = 0.05
_RETRY_SECONDS_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class AssignerSettings:
    """Seconds and limits of the leader's decisions."""

    failure_pause_seconds: float = 1.0
    """Behind the first failure of a container, where no node is trusted with it; doubled with each that follows."""
    failure_pause_seconds_max: float = 15.0
    suspect_seconds: float = 30.0
    """So long behind a failure the container's node is not given others that are well elsewhere. Doubled each time that
    one fails there again, until the node has been trusted without a failure for `forgive_after_seconds`."""
    suspect_seconds_max: float = 600.0
    forgive_after_seconds: float = 300.0
    """A container that runs, so long behind its first run since its last failure, has no failures behind it; nor has a
    node that is trusted for so long."""
    first_assignment_seconds: float = 2.0
    """So long no node may have come or gone before the containers of a new cluster are given away."""
    look_seconds_max: float = 5.0
    """Everything is read this often though no change was told."""
    placement: PlacementSettings = field(default_factory=PlacementSettings)


class Assigner:
    """One leadership's. run() until cancelled, or until the lead is lost."""

    def __init__(
        self, leadership: Leadership, *, container_count: int, settings: AssignerSettings
    ) -> None:
        self._leadership = leadership
        self._store = leadership.session
        self._container_count = container_count
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._map: AssignmentMap | None = None
        self._map_version = -1
        """Of the value that holds the map."""
        self._node_ids: list[HostId] = []
        self._nodes: dict[HostId, ClusterNode] = {}
        self._nodes_since = 0.0
        self._wishes: Wishes | None = None
        """As they were read last."""
        self._complaint = ""
        self._loads: dict[ContainerId, float] = {}
        self._pauses: dict[tuple[ContainerId, int], float] = {}
        """When the pause behind a failure of a container ends, by container and number of failures."""
        self._noted_failures: set[tuple[ContainerId, int]] = set()
        """What _suspicions has heard of, by container and number of failures."""
        self._suspicions: dict[HostId, _Suspicion] = {}
        """Of registered nodes where a container failed."""
        self._tier2_suspicions: dict[HostId, _Suspicion] = {}
        """Of those that did not reach Tier 2 while others did."""
        self._running_since: dict[tuple[ContainerId, int], float] = {}
        """When a container with failures behind it was first seen to run, by container and number of failures. It may
        have been moved since then: a move is no failure."""

    async def run(self) -> None:
        """Raises LeadershipLostError, SessionLostError."""
        backoff = Backoff(seconds_first=_RETRY_SECONDS_FIRST, seconds_max=_RETRY_SECONDS_MAX)
        while True:
            self._changed.clear()
            try:
                next_look = await self._round()
            except (LeadershipLostError, SessionLostError):
                raise
            except (CoordinationUnavailableError, ValueChangedError) as error:
                # A commit of this leader may have been made though its answer was lost: the map is read again.
                _LOG.info("the assignment is decided again: %s", error)
                self._map = None
                await asyncio.sleep(backoff.next_seconds())
                continue
            except ClusterRecordError as error:
                _LOG.error("nothing is assigned until it can be read: %s", error)
                self._complaint = f"containers are not assigned now: {error}"
                next_look = inf
            else:
                self._complaint = ""
            backoff.reset()
            await wait_for_event(
                self._changed,
                until=min(next_look, self._loop.time() + self._settings.look_seconds_max),
            )

    def complaints(self) -> list[str]:
        """For `/health`."""
        return [self._complaint] if self._complaint else []

    async def _round(self) -> float:
        """Decide once; when the clock alone makes another decision due."""
        if self._map is None:
            await self._read_map()
        assert self._map is not None, "it was read at the start of the round"
        nodes = await self._read_nodes()
        reports = await self._read_reports(nodes)
        wishes = await self._read_wishes()
        now = self._loop.time()
        if self._waits_for_nodes(nodes, now):
            # Without nodes no clock makes a decision due: it is told when one comes.
            return self._nodes_since + self._settings.first_assignment_seconds if nodes else inf
        for report in reports.values():
            self._loads.update(report.loads)
        came_and_went = self._came_and_went(reports, now)
        observed = Observed(
            nodes=nodes,
            reports=reports,
            wishes=wishes,
            loads=self._loads,
            held_back=self._held_back(now),
            forgiven=self._forgiven(reports, now),
            suspects=self._suspects(now) | came_and_went,
            came_and_went=came_and_went,
        )
        following = next_assignment(
            self._map,
            observed,
            epoch=self._leadership.epoch,
            settings=self._settings.placement,
        )
        if following is None:
            return min(
                (
                    due
                    for due in (*self._pauses.values(), *self._forgiveness(), *self._trust())
                    if due > now
                ),
                default=inf,
            )
        await self._write(following)
        return now

    async def _write(self, following: AssignmentMap) -> None:
        assert self._map is not None, "a map follows one that was read"
        assert following.version == self._map.version + 1, (
            f"a version was left out following={following.version} version={self._map.version}"
        )
        await self._leadership.commit(
            [SetValue(ASSIGNMENT_PATH, encode_assignment(following), self._map_version)]
        )
        _log_changes(self._map, following)
        self._map = following
        self._map_version += 1

    # --- what is read -----------------------------------------------------------------------------

    async def _read_map(self) -> None:
        found = await self._store.get(ASSIGNMENT_PATH)
        if found is None:
            first = first_assignment(self._container_count, epoch=self._leadership.epoch)
            await self._leadership.commit([CreateValue(ASSIGNMENT_PATH, encode_assignment(first))])
            self._map, self._map_version = first, 0
            return
        self._map, self._map_version = decode_assignment(found.value), found.version

    async def _read_nodes(self) -> list[ClusterNode]:
        names = await self._store.children(NODES_PATH, changed=self._changed)
        found = await gather_all(self._read_node(HostId(name)) for name in names)
        nodes = [node for node in found if node is not None]
        self._nodes = {node.node_id: node for node in nodes}
        node_ids = [node.node_id for node in nodes]
        if node_ids != self._node_ids:
            self._node_ids = node_ids
            self._nodes_since = self._loop.time()
        return nodes

    async def _read_node(self, node_id: HostId) -> ClusterNode | None:
        """What a node registers never changes."""
        known = self._nodes.get(node_id)
        if known is not None:
            return known
        found = await self._store.get(node_path(node_id))
        return None if found is None else decode_node(found.value, node_id)

    async def _read_reports(self, nodes: list[ClusterNode]) -> dict[HostId, NodeReport]:
        found = await gather_all(
            self._store.get(report_path(node.node_id), changed=self._changed) for node in nodes
        )
        reports = {}
        for node, report in zip(nodes, found, strict=True):
            if report is None:
                continue
            try:
                reports[node.node_id] = decode_report(report.value, node.node_id)
            except ClusterRecordError as error:
                _LOG.error("a node counts as one that has not reported: %s", error)
        return reports

    async def _read_wishes(self) -> Wishes:
        found = await self._store.get(WISHES_PATH, changed=self._changed)
        try:
            self._wishes = Wishes() if found is None else decode_wishes(found.value)
        except ClusterRecordError as error:
            if self._wishes is None:
                raise
            _LOG.error("wishes are followed as they were read last: %s", error)
        return self._wishes

    # --- what the clock decides -------------------------------------------------------------------

    def _waits_for_nodes(self, nodes: list[ClusterNode], now: float) -> bool:
        assert self._map is not None, "it was read at the start of the round"
        is_new = not any(each.since for each in self._map.containers.values())
        since_change = now - self._nodes_since
        return is_new and (not nodes or since_change < self._settings.first_assignment_seconds)

    def _held_back(self, now: float) -> set[ContainerId]:
        """Failed containers whose pause is not over. A failure that is new here begins its pause now.

        It is over once for all: a container that is given to none later, because its node is gone, or that leaves its
        node, does not wait.
        """
        assert self._map is not None, "it was read at the start of the round"
        before, self._pauses = self._pauses, {}
        for container_id, each in self._map.containers.items():
            if each.failure is None or each.failure.stays_down:
                continue
            key = container_id, each.failure.count
            # What leaves a node was given to it behind the failure, also if another leader did that.
            if each.node is not None or each.leaving is not None:
                self._pauses[key] = now
            else:
                self._pauses[key] = before.get(key, now + self._pause(each.failure.count))
        return {container_id for (container_id, _), due in self._pauses.items() if due > now}

    def _pause(self, failures: int) -> float:
        backoff = Backoff(
            seconds_first=self._settings.failure_pause_seconds,
            seconds_max=self._settings.failure_pause_seconds_max,
        )
        return [backoff.next_seconds() for _ in range(min(failures, 64))][-1]

    def _suspects(self, now: float) -> set[HostId]:
        """Nodes that are not trusted now, for what failed there. A failure that is new here is one of this moment."""
        assert self._map is not None, "it was read at the start of the round"
        failures = {
            (container_id, each.failure.count): each.failure.node
            for container_id, each in self._map.containers.items()
            if each.failure is not None
        }
        failed = {node for key, node in failures.items() if key not in self._noted_failures}
        self._noted_failures = set(failures)
        return self._noted(self._suspicions, failed, now)

    def _came_and_went(self, reports: dict[HostId, NodeReport], now: float) -> set[HostId]:
        """A node that does not reach Tier 2 is a suspect, and stays one for a while behind that: its way may come and
        go."""
        return self._noted(self._tier2_suspicions, nodes_without_tier2(reports), now)

    def _noted(
        self, suspicions: dict[HostId, "_Suspicion"], failed: set[HostId], now: float
    ) -> set[HostId]:
        """Who is a suspect, of registered nodes, when this has been noted of some."""
        for gone in suspicions.keys() - self._nodes.keys():
            del suspicions[gone]
        for node_id in failed & self._nodes.keys():
            if node_id not in suspicions:
                suspicions[node_id] = _Suspicion(self._settings)
            suspicions[node_id].note_failure(now)
        return {node_id for node_id, each in suspicions.items() if now < each.until}

    def _trust(self) -> list[float]:
        """When a node is none of the suspects any more."""
        suspicions = (*self._suspicions.values(), *self._tier2_suspicions.values())
        return [each.until for each in suspicions]

    def _forgiven(self, reports: dict[HostId, NodeReport], now: float) -> set[ContainerId]:
        assert self._map is not None, "it was read at the start of the round"
        before, self._running_since = self._running_since, {}
        forgiven = set()
        for container_id, each in self._map.containers.items():
            if each.failure is None:
                continue
            key = container_id, each.failure.count
            report = NodeReport() if each.node is None else reports.get(each.node, NodeReport())
            runs = report.runs(container_id, since=each.since)
            if runs or key in before:
                self._running_since[key] = before.get(key, now)
            if runs and now - self._running_since[key] >= self._settings.forgive_after_seconds:
                forgiven.add(container_id)
        return forgiven

    def _forgiveness(self) -> list[float]:
        """When the next one is due."""
        return [
            since + self._settings.forgive_after_seconds for since in self._running_since.values()
        ]


class _Suspicion:
    """Of one node: until when it is not trusted."""

    def __init__(self, settings: AssignerSettings) -> None:
        self.until = -inf
        self._seconds = 0.0
        self._forgive_after_seconds = settings.forgive_after_seconds
        self._backoff = Backoff(
            seconds_first=settings.suspect_seconds, seconds_max=settings.suspect_seconds_max
        )

    def note_failure(self, now: float) -> None:
        if now >= self.until:
            # It was trusted. Others of its containers fail with this one, which are not counted again.
            if now >= self.until + self._forgive_after_seconds:
                self._backoff.reset()
            self._seconds = self._backoff.next_seconds()
        self.until = now + self._seconds


def _log_changes(before: AssignmentMap, after: AssignmentMap) -> None:
    for container_id, each in after.containers.items():
        was = before.containers[container_id]
        if (each.node, each.leaving) != (was.node, was.leaving):
            _LOG.info(
                "container=%d assigned to=%s leaving=%s since=%d version=%d",
                container_id,
                each.node or "none",
                each.leaving or "none",
                each.since,
                after.version,
            )
        if each.failure is not None and each.failure.stays_down and each.failure != was.failure:
            _LOG.error(
                "container=%d stays down until `retry` is asked for: %s",
                container_id,
                each.failure.cause,
            )
