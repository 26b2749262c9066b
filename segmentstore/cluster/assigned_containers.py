"""What the leader assigns to one node, for the container manager of the node, and what the node reports back.

Invariants:

- A version of the assignment is a version of the map: versions only grow, also while the map is read late.
- A container that failed is not shown again for the `since` in which it failed: the leader has to give it anew.
- A report tells of one moment. It is written when it differs from the one that is there, the newest first: the ones in
  between are left out. A failure is in every report until the map has taken the container away.
- While the coordination store does not answer, or has a map that this program cannot read, the node keeps what it has;
  reports follow. It never blocks the manager.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    AssignmentMap,
    ClusterRecordError,
    FailureReport,
    NodeReport,
    cause_in_words,
    decode_assignment,
    encode_report,
    report_path,
)
from segmentstore.contracts.cluster import Tier2State
from segmentstore.contracts.container_failures import is_corrupt, lasting_failure
from segmentstore.contracts.containers import ContainerFailure, HostAssignment, HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import (
    CoordinationSession,
    CoordinationUnavailableError,
    SessionLostError,
    ValueChangedError,
)
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import wait_for_event

_LOG = logging.getLogger(__name__)

LOOK_SECONDS_MAX: Final = 5.0
"""The map is read this often though no change was told."""
_RETRY_SECONDS_FIRST: Final = 0.05
_RETRY_SECONDS_MAX: Final = 1.0


class AssignedContainers:
    """Implements AssignmentSource for one node, by run(). One watcher at a time."""

    def __init__(
        self,
        session: CoordinationSession,
        *,
        node_id: HostId,
        random: Random,
        load_of: Callable[[ContainerId], float] | None = None,
        tier2_state: Callable[[], Tier2State] = lambda: Tier2State.UNKNOWN,
    ) -> None:
        self._session = session
        self._node_id = node_id
        self._random = random
        self._load_of = load_of
        self._tier2_state = tier2_state
        self._map: AssignmentMap | None = None
        self._failed: dict[ContainerId, FailureReport] = {}
        self._changed = asyncio.Event()
        self._report = NodeReport()
        self._to_report = asyncio.Event()

    @property
    def leader_epoch(self) -> int:
        """Of the leader that wrote the newest map that was read here; 0 before that."""
        return 0 if self._map is None else self._map.leader_epoch

    async def watch(self, host_id: HostId) -> AsyncGenerator[HostAssignment, None]:
        """The present assignment, then the latest one after every change. Hold it in `aclosing`."""
        assert host_id == self._node_id, f"another node's {host_id=} node_id={self._node_id}"
        seen = 0
        while True:
            self._changed.clear()
            if self._map is not None and self._map.version > seen:
                seen = self._map.version
                yield HostAssignment(version=seen, since=self._assigned(self._map))
            else:
                await self._changed.wait()

    async def report(
        self,
        host_id: HostId,
        *,
        version: int,
        held: Mapping[ContainerId, int],
        running: Collection[ContainerId],
        failed: Collection[ContainerFailure] = (),
    ) -> None:
        """Takes effect on what is shown here before it returns; it is written soon."""
        assert host_id == self._node_id, f"another node's {host_id=} node_id={self._node_id}"
        for failure in failed:
            self._failed[failure.container_id] = FailureReport(
                failure.since, cause_in_words(failure.cause), _kind_of(failure.cause)
            )
        loads = {} if self._load_of is None else {c: round(self._load_of(c), 1) for c in running}
        self._report = NodeReport(
            version, dict(held), sorted(running), {}, loads, self._tier2_state()
        )
        self._to_report.set()

    async def run(self) -> None:
        """Read the map and write reports until cancelled. Raises SessionLostError."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_map())
            group.create_task(self._write_reports())

    async def _follow_map(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = self._backoff()
        changed = asyncio.Event()
        while True:
            changed.clear()
            try:
                found = await self._session.get(ASSIGNMENT_PATH, changed=changed)
            except SessionLostError:
                raise
            except CoordinationUnavailableError:
                await asyncio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            if found is not None:
                self._take_value(found.value)
            await wait_for_event(changed, until=loop.time() + LOOK_SECONDS_MAX)

    def _take_value(self, value: bytes) -> None:
        try:
            self._take(decode_assignment(value))
        except ClusterRecordError as error:
            _LOG.error("node=%s keeps the containers that it has: %s", self._node_id, error)

    def _take(self, assignment: AssignmentMap) -> None:
        if self._map is not None and assignment.version <= self._map.version:
            return
        self._map = assignment
        given = assignment.given_to(self._node_id)
        self._failed = {c: each for c, each in self._failed.items() if given.get(c) == each.since}
        self._changed.set()
        self._to_report.set()

    def _assigned(self, assignment: AssignmentMap) -> dict[ContainerId, int]:
        return {
            c: since
            for c, since in assignment.given_to(self._node_id).items()
            if c not in self._failed or self._failed[c].since != since
        }

    async def _write_reports(self) -> None:
        backoff = self._backoff()
        path = report_path(self._node_id)
        written, version = b"", -1
        while True:
            await self._to_report.wait()
            self._to_report.clear()
            value = encode_report(replace(self._report, failed=dict(self._failed)))
            if value == written:
                continue
            try:
                if version < 0:
                    version = await self._present_version(path)
                version = await self._session.compare_and_set(path, value, version=version)
                written = value
                backoff.reset()
            except SessionLostError:
                raise
            except (CoordinationUnavailableError, ValueChangedError):
                # It may have been written: what was there before need not be there any more.
                written, version = b"", -1
                self._to_report.set()
                await asyncio.sleep(backoff.next_seconds())

    async def _present_version(self, path: str) -> int:
        found = await self._session.get(path)
        if found is None:
            raise SessionLostError(f"the report of this node is gone {path=}")
        return found.version

    def _backoff(self) -> Backoff:
        return Backoff(
            seconds_first=_RETRY_SECONDS_FIRST, seconds_max=_RETRY_SECONDS_MAX, random=self._random
        )


def _kind_of(cause: BaseException) -> str:
    if is_corrupt(cause):
        return "corrupt"
    lasting = lasting_failure(cause)
    return f"lasting: {lasting}" if lasting else "passing"
