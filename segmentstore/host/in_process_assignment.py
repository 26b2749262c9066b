"""Decides which containers the one host of a store has, and when one that has failed starts again.

All containers belong to the one host. A container that is reported failed is taken out of the assignment and put back
after a pause; each further failure doubles the pause up to a limit, and a container that ran well for a while starts
again from the first pause.

- Versions only grow (K1); a version names each container at most once, on one host (K2), and since when (K3): what was
  taken out and put back is there since it was put back.
- A failed container is absent from the version that follows its report, and comes back in a later one at the earliest.
- A container that failed because bytes are corrupt never comes back: a person must look first.
- Neither does one that failed `same_failure_count` times in a row for the same cause at the same place, unless it is a
  cause that may pass by itself: what it meets is in its log or in Tier 2, and every later start will meet it. The
  others go on. `complaints()` names both kinds, why they are down, and what a person can do. `on_kept_down` is told of
  each in the turn in which it is decided.
- An assignment source runs nothing: pauses end when a watcher looks, so there is no task to own and none to leak.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from segmentstore.contracts.container_failures import (
    is_corrupt,
    is_fenced,
    lasting_failure,
    root_of,
)
from segmentstore.contracts.containers import ContainerFailure, HostAssignment, HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.settings import RestartSettings
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import wait_for_event

logger = logging.getLogger(__name__)

_NEVER = float("inf")
_CAUSE_CHARACTERS_MAX = 150
"""Of a cause in the front of the complaint about it."""


@dataclass(slots=True)
class _Placement:
    """What is known of one container. Times are those of the loop, in seconds."""

    backoff: Backoff
    """Pauses before it is assigned again, while it does not run well in between."""
    due: float = 0.0
    """Assigned from this time on."""
    assigned: bool = True
    since: int = 1
    """The version that assigned it last."""
    running_since: float = _NEVER
    lasting_failure: str = ""
    """Cause and place of the last failure, if it is of a kind that does not pass by itself."""
    lasting_failures: int = 0
    """How many in a row had that cause and place."""
    complaint: str = ""
    """Why it stays down, and what to do; "" while it may come back."""


class KeptDownListener(Protocol):
    """Called with no await in between, for a container that stays down until the process is started again."""

    def __call__(self, container_id: ContainerId, *, why: str, readable: bool) -> None:
        """`why` has the cause, and what a person can do; `readable`: what is published may be answered meanwhile."""


class InProcessAssignmentSource:
    """AssignmentSource for a single host. One watcher at a time."""

    def __init__(
        self,
        *,
        containers: Collection[ContainerId],
        settings: RestartSettings,
        on_kept_down: KeptDownListener = lambda *_, **__: None,
        gives_way: bool = False,
    ) -> None:
        """`containers`: those of the host.

        With `gives_way` a container that was fenced stays down: its log was given to another process.
        """
        self._settings = settings
        self._gives_way = gives_way
        self._on_kept_down = on_kept_down
        self._placements = {
            container_id: _Placement(
                Backoff(
                    seconds_first=settings.delay_initial_seconds,
                    seconds_max=settings.delay_max_seconds,
                )
            )
            for container_id in sorted(containers)
        }
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
            await wait_for_event(self._changed, until=next_due)

    async def report(
        self,
        host_id: HostId,  # noqa: ARG002 - one host
        *,
        version: int,  # noqa: ARG002 - what a failure was of is known
        held: Mapping[ContainerId, int],  # noqa: ARG002 - what is taken out comes back to this host
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
            placement.backoff.reset()
            placement.lasting_failures = 0
        placement.running_since = _NEVER
        found = lasting_failure(failure.cause)
        placement.lasting_failures = (
            placement.lasting_failures + 1 if found == placement.lasting_failure else 1
        )
        placement.lasting_failure = found
        if is_corrupt(failure.cause):
            pause = _NEVER
            self._keep_down(
                failure, "its bytes are damaged, or older than they were", readable=False
            )
        elif self._gives_way and is_fenced(failure.cause):
            pause = _NEVER
            self._give_way(failure)
        elif found and placement.lasting_failures >= self._settings.same_failure_count:
            pause = _NEVER
            self._keep_down(
                failure,
                f"it failed {placement.lasting_failures} times in a row at {found}",
                readable=True,
            )
        else:
            pause = placement.backoff.next_seconds()
        placement.due = now + pause
        placement.assigned = False
        self._version += 1
        self._changed.set()

    def _give_way(self, failure: ContainerFailure) -> None:
        placement = self._placements[failure.container_id]
        placement.complaint = _complaint(
            f"container {failure.container_id} stays down: another process has taken it over",
            failure.cause,
            "of the two the one that was started last serves it. End this process, or, if it is the one that shall"
            " serve, end the other and start this one again",
        )
        logger.error("%s", placement.complaint)
        self._on_kept_down(failure.container_id, why=placement.complaint, readable=False)

    def _keep_down(self, failure: ContainerFailure, why: str, *, readable: bool) -> None:
        placement = self._placements[failure.container_id]
        meanwhile = " Meanwhile what Tier 2 has of its segments can be read." if readable else ""
        placement.complaint = _complaint(
            f"container {failure.container_id} stays down: {why}",
            failure.cause,
            "nothing is lost by waiting. Keep the data directory, and start the server again when the cause is"
            f" removed or a version is installed that mends it.{meanwhile} With the server stopped"
            " `segmentstore tier2 cat` reads what Tier 2 has; `segmentstore log set-aside` takes the log out of the"
            " store, and `segmentstore recover --from-tier2` goes on with that alone, without what is only in the log",
        )
        logger.error("%s", placement.complaint)
        self._on_kept_down(failure.container_id, why=placement.complaint, readable=readable)

    def complaints(self) -> list[str]:
        """For `/health`: the containers that stay down until the process is started again."""
        return [
            placement.complaint for placement in self._placements.values() if placement.complaint
        ]

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


def _complaint(what: str, cause: BaseException, what_to_do: str) -> str:
    """Refusals carry it, and the wire cuts them: what to do stands in front of that. `/health` has all of it."""
    whole = str(root_of(cause))
    if len(whole) <= _CAUSE_CHARACTERS_MAX:
        return f"{what}: {whole}; {what_to_do}"
    front = whole[:_CAUSE_CHARACTERS_MAX]
    front = front.rpartition(" ")[0] or front
    return f"{what}: {front} ...; {what_to_do}. The cause in full: {whole}"
