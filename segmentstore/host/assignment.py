"""Which containers this host runs, decided inside the process: the controller of a store on one machine.

All containers belong to the one host. A container that is reported failed is taken out of the assignment and put back
after a pause; each further failure doubles the pause up to a limit, and a container that ran well for a while starts
again from the first pause (H42).

Invariants:

- Versions only grow (K1); a version names each container at most once, on one host (K2), and since when (K3): what was
  taken out and put back is there since it was put back.
- A failed container is absent from the version that follows its report, and comes back in a later one at the earliest.
- A container that failed because bytes are corrupt never comes back: a person must look first.
- Nothing runs here: pauses end when a watcher looks, so there is no task to own and none to leak.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

from segmentstore.contracts.containers import ContainerFailure, HostAssignment, HostId
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.settings import RestartSettings

_NEVER = float("inf")


@dataclass(slots=True)
class _Placement:
    """What is known of one container. Times are those of the loop, in seconds."""

    due: float = 0.0
    """Assigned from this time on."""
    assigned: bool = True
    since: int = 1
    """The version that assigned it last."""
    failures: int = 0
    """In a row, without running well in between."""
    running_since: float = _NEVER


class InProcessAssignmentSource:
    """AssignmentSource for a single host. One watcher at a time."""

    def __init__(self, *, container_count: int, settings: RestartSettings) -> None:
        self._settings = settings
        self._placements = {ContainerId(n): _Placement() for n in range(container_count)}
        self._version = 1
        self._changed = asyncio.Event()

    async def watch(self, host_id: HostId) -> AsyncGenerator[HostAssignment, None]:  # noqa: ARG002 - one host
        """The present assignment, then the latest one after every change. Hold it in `aclosing`."""
        loop = asyncio.get_running_loop()
        seen = 0
        while True:
            self._changed.clear()
            self._put_back(loop.time())
            if self._version > seen:
                seen = self._version
                yield HostAssignment(version=seen, since=self._assigned())
                continue
            next_due = min(
                (p.due for p in self._placements.values() if not p.assigned), default=_NEVER
            )
            timer = None if next_due == _NEVER else loop.call_at(next_due, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def report(
        self,
        host_id: HostId,  # noqa: ARG002 - one host
        *,
        running: Collection[ContainerId],
        failed: Collection[ContainerFailure] = (),
    ) -> None:
        """What runs now and what failed since the last report; takes effect before it returns."""
        now = asyncio.get_running_loop().time()
        for container_id in sorted(running):
            placement = self._placements[container_id]
            placement.running_since = min(placement.running_since, now)
        for failure in failed:
            self._take_out(failure, now)

    def _take_out(self, failure: ContainerFailure, now: float) -> None:
        placement = self._placements[failure.container_id]
        if now - placement.running_since >= self._settings.forgive_after_seconds:
            placement.failures = 0
        placement.running_since = _NEVER
        if is_corrupt(failure.cause):
            pause = _NEVER
        else:
            # 2 ** 64 pauses are past every limit, and the exponent must not overflow a float.
            doubled = self._settings.delay_initial_seconds * 2.0 ** min(placement.failures, 64)
            pause = min(doubled, self._settings.delay_max_seconds)
        placement.failures += 1
        placement.due = now + pause
        placement.assigned = False
        self._version += 1
        self._changed.set()

    def _put_back(self, now: float) -> None:
        for placement in self._placements.values():
            if not placement.assigned and placement.due <= now:
                placement.assigned = True
                self._version += 1
                placement.since = self._version

    def _assigned(self) -> dict[ContainerId, int]:
        return {
            c: placement.since for c, placement in self._placements.items() if placement.assigned
        }


def is_corrupt(cause: BaseException) -> bool:
    """Whether corruption is among the causes of a failure: in a group, or behind `raise ... from`."""
    waiting: list[BaseException | None] = [cause]
    seen: list[BaseException] = []
    while waiting:
        error = waiting.pop()
        if error is None or any(error is known for known in seen):
            continue
        seen.append(error)
        if isinstance(error, SegmentStoreError) and error.kind is ErrorKind.CORRUPT:
            return True
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        waiting.append(error.__cause__)
    return False
