"""Makes what runs here equal to what is assigned here, and says what ended by itself.

Each container that is assigned lives in one task: create, start, run, close. The manager starts that task when an
assignment names the container and cancels it when a later one does not, or says that the container was elsewhere
in between.

Invariants:

- M1  What runs converges to what is assigned.
- M2  One transition per container id at a time: a container's next life begins after its task has ended, and the task
      ends after `close()` has returned.
- M3  A container that ends by itself, while starting or later, is closed and reported; it starts again only when a
      version of the assignment that is later than the report names it (H42). Nothing is restarted locally.
- M4  A life is for one `since` of its container. Once this host has heard of another one the life gets no request any
      more, however long it takes to end: an owner that was fenced while it idled knows nothing of it, and would say
      "does not exist" of what another host has created meanwhile (H24).
- The report is made before the manager looks at the next assignment, so the assignment source always decides with
  the failure in view.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.contracts.containers import (
    AssignmentSource,
    ContainerFailure,
    HostAssignment,
    HostId,
    SegmentContainer,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.assignment import is_corrupt
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.runtime.to_the_end import to_the_end

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Life:
    """One container from its creation to the end of its close()."""

    task: asyncio.Task[None]
    since: int
    """The version that gave the container to this host, for this life."""
    container: SegmentContainer | None = None
    """None until the task has begun."""
    cause: BaseException | None = None
    """Why it ended by itself; None while it runs, and after a stop that was asked for."""
    settled: bool = False
    """It runs, or it has ended."""


class ContainerManager:
    """One per host. `run()` works until cancelled and leaves no container behind."""

    def __init__(
        self,
        *,
        host_id: HostId,
        assignments: AssignmentSource,
        registry: ContainerRegistry,
        create_container: Callable[[ContainerId], SegmentContainer],
        report_interval_seconds: float = 5.0,
    ) -> None:
        self._host_id = host_id
        self._assignments = assignments
        self._registry = registry
        self._create_container = create_container
        self._report_interval_seconds = report_interval_seconds
        self._assignment: HostAssignment | None = None
        self._blocked: dict[ContainerId, int] = {}
        self._lives: dict[ContainerId, _Life] = {}
        self._reported: Sequence[ContainerId] = []
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Converge until cancelled; then every container has been closed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._renew())
            while True:
                self._wake.clear()
                await self._report()
                self._converge(group)
                self._note_settled()
                await self._wake.wait()

    async def wait_until_settled(self) -> None:
        """Returns when every container of the first assignment has started or has failed to."""
        await self._settled.wait()

    async def _watch(self) -> None:
        # The door says that the iterator is held in `aclosing`; its type only says that it iterates.
        watch = self._assignments.watch(self._host_id)
        async with aclosing(watch) as assignments:
            async for assignment in assignments:
                known = self._assignment.version if self._assignment is not None else 0
                assert assignment.version > known, (
                    f"an assignment went back version={assignment.version} known={known}"
                )
                for container_id, since in assignment.since.items():
                    assert since <= assignment.version, (
                        f"given by a later version container={container_id} "
                        f"since={since} version={assignment.version}"
                    )
                self._assignment = assignment
                # Here and not behind the report, which may take as long as the way to the controller is long.
                self._end_lives(assignment)
                self._wake.set()

    def _end_lives(self, assignment: HostAssignment) -> None:
        """Lives that do not belong to the assignment are told to end, and get no request from now on (M4)."""
        for container_id, life in self._lives.items():
            if assignment.keeps(container_id, since=life.since) or life.task.cancelling():
                continue
            life.task.cancel()
            if life.container is not None and life.cause is None:
                self._registry.set_absent(life.container, reason="stopping", failed=False)

    async def _renew(self) -> None:
        """The report is also what keeps this host's claim alive."""
        while True:
            await asyncio.sleep(self._report_interval_seconds)
            await self._assignments.report(self._host_id, running=self._registry.running())

    async def _report(self) -> None:
        """Forget lives that have ended; report those that ended by themselves, and what runs if that changed."""
        ended = [container_id for container_id, life in self._lives.items() if life.task.done()]
        failures = []
        for container_id in ended:
            cause = self._lives.pop(container_id).cause
            if cause is not None:
                failures.append(ContainerFailure(container_id, cause))
        running = self._registry.running()
        if not failures and running == self._reported:
            return
        self._reported = running
        await self._assignments.report(self._host_id, running=running, failed=failures)
        # What was published before the report did not know of the failure: it cannot order a restart.
        version = self._assignment.version if self._assignment is not None else 0
        for failure in failures:
            self._blocked[failure.container_id] = version

    def _converge(self, group: asyncio.TaskGroup) -> None:
        if self._assignment is None:
            return
        for container_id, since in sorted(self._assignment.since.items()):
            if container_id in self._lives:
                continue
            if self._blocked.get(container_id, -1) >= self._assignment.version:
                continue
            self._blocked.pop(container_id, None)
            task = group.create_task(self._live(container_id), name=f"container-{container_id}")
            task.add_done_callback(lambda _: self._wake.set())
            self._lives[container_id] = _Life(task, since)

    async def _live(self, container_id: ContainerId) -> None:
        """One life of one container. Raises only when it is told to stop: a failure is a value to report."""
        container = self._create_container(container_id)
        life = self._lives[container_id]
        life.container = container
        try:
            life.cause = await self._start_and_run(container, life)
            self._registry.set_absent(container, reason=_reason(life.cause), failed=True)
            logger.error(
                "container=%d ended by itself%s: %s",
                container_id,
                " and will not be restarted" if is_corrupt(life.cause) else "",
                _reason(life.cause),
                exc_info=life.cause if logger.isEnabledFor(logging.DEBUG) else None,
            )
        except asyncio.CancelledError:
            self._registry.set_absent(container, reason="stopping", failed=False)
            raise
        finally:
            await self._close(container)
            life.settled = True

    async def _start_and_run(self, container: SegmentContainer, life: _Life) -> BaseException:
        """Returns what ended the container. Raises CancelledError only if this task was cancelled."""
        self._registry.set_starting(container)
        try:
            await container.start()
            if life.task.cancelling():
                raise asyncio.CancelledError  # it ended too late for the cancellation to reach it
            self._registry.set_running(container)
            life.settled = True
            self._wake.set()
            await container.run()
        except asyncio.CancelledError as error:
            if life.task.cancelling():
                raise
            return error  # leaked out of the container: nobody asked it to stop
        except Exception as error:  # noqa: BLE001 - the top of a container's task: what ended it is a value
            return error
        return RuntimeError(f"run() ended without a cause container={container.container_id}")

    async def _close(self, container: SegmentContainer) -> None:
        """Close to the end, whatever arrives meanwhile: M2 rests on it. A cancellation is delivered afterwards."""
        failure: BaseException | None = None
        try:
            await to_the_end(container.close())
        except asyncio.CancelledError as cancelled:
            failure = cancelled.__cause__
            raise
        except Exception as error:  # noqa: BLE001 - logged below, also if it ended during a cancellation
            failure = error
        finally:
            if failure is not None:
                logger.error(
                    "container=%d did not close cleanly", container.container_id, exc_info=failure
                )

    def _note_settled(self) -> None:
        if self._assignment is None or self._settled.is_set():
            return
        if all(
            container_id in self._blocked or self._lives[container_id].settled
            for container_id in self._assignment.containers
        ):
            self._settled.set()


def _reason(error: BaseException) -> str:
    """The first cause of a group of failures, as one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error)
    return f"failed: {text}" if text else f"failed: {type(error).__name__}"
