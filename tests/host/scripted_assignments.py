"""Assignments that a test makes by hand."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping

from segmentstore.contracts.containers import ContainerFailure, HostAssignment, HostId
from segmentstore.contracts.identifiers import ContainerId


class ScriptedAssignments:
    """An AssignmentSource whose versions are set by hand: a controller elsewhere.

    Versions that follow one another with no await in between are missed by the watcher, but for the last.
    """

    def __init__(self, *containers: int) -> None:
        self._assignment = HostAssignment(1, {ContainerId(n): 1 for n in containers})
        self._changed = asyncio.Event()
        self.failures: list[ContainerFailure] = []
        self.running: list[list[ContainerId]] = []

    def assign(self, *containers: int) -> None:
        version = self._assignment.version + 1
        before = self._assignment.since
        self._assignment = HostAssignment(
            version, {ContainerId(n): before.get(ContainerId(n), version) for n in containers}
        )
        self._changed.set()

    async def watch(self, host_id: HostId) -> AsyncGenerator[HostAssignment, None]:
        seen = 0
        while True:
            self._changed.clear()
            if self._assignment.version > seen:
                seen = self._assignment.version
                yield self._assignment
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
        await asyncio.sleep(0.001)
        self.running.append(sorted(running))
        self.failures += failed
