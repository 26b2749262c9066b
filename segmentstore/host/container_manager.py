"""Makes what runs here equal to what is assigned here.

ContainerManager runs each assigned container in one task: create, start, run, close. It starts that task when an
assignment names the container and cancels it when a later one does not, or says that the container was elsewhere in
between.

- M1  What runs converges to what is assigned.
- M2  One transition per container id at a time: a container's next task begins after the one before it has ended,
      and that ends after `close()` has returned.
- M3  A container that ends by itself, while starting or later, is closed and reported; it starts again only when a
      version of the assignment that is later than the report names it, or one that names another `since`. Nothing is
      restarted locally.
- M4  A task is for one `since` of its container. Once this host has heard of another one the task's container gets no
      request any more, however long it takes to end: an owner that was fenced while it idled knows nothing of it, and
      would say "does not exist" of what another host has created meanwhile.
- M5  With `shorten_seconds` a container that an assignment has no more, and gives to no other for as long as this host
      reports that it holds it, goes on serving while its log is shortened, for so long at most; then it ends. The one
      who is to have it recovers in no time then, and is waited for no longer than that.
- The report is made before the manager looks at the next assignment, so the assignment source always decides with
  the failure in view.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.contracts.container_failures import (
    is_corrupt,
)
from segmentstore.contracts.containers import (
    AssignmentSource,
    ContainerFailure,
    HostAssignment,
    HostId,
    SegmentContainer,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.runtime.cancellation import finish_despite_cancellation

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _ContainerTask:
    """One container from its creation to the end of its close()."""

    task: asyncio.Task[None]
    since: int
    """The version that gave the container to this host, for this task."""
    container: SegmentContainer | None = None
    """None until the task has begun."""
    cause: BaseException | None = None
    """Why it ended by itself; None while it runs, and after a stop that was asked for."""
    settled: bool = False
    """It runs, or it has ended."""
    is_leaving: bool = False
    """Its log is shortened, before it ends."""


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
        shorten_seconds: float = 0.0,
    ) -> None:
        """`shorten_seconds`: 0 where others do not wait for the report that a container is not held any more."""
        self._host_id = host_id
        self._assignments = assignments
        self._registry = registry
        self._create_container = create_container
        self._report_interval_seconds = report_interval_seconds
        self._shorten_seconds = shorten_seconds
        self._assignment: HostAssignment | None = None
        self._blocked: dict[ContainerId, int] = {}
        """Failed ones: the version that cannot order a restart, nor can an earlier one."""
        self._container_tasks: dict[ContainerId, _ContainerTask] = {}
        self._reported: tuple[int, dict[ContainerId, int], Sequence[ContainerId]] = (0, {}, [])
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Converge until cancelled; then every container has been closed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(group))
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

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        # AssignmentSource says that the iterator is held in `aclosing`; its type only says that it iterates.
        watch = self._assignments.watch(self._host_id)
        async with aclosing(watch) as assignments:
            async for assignment in assignments:
                assert assignment.version > self._version(), (
                    f"an assignment went back version={assignment.version} known={self._version()}"
                )
                for container_id, since in assignment.since.items():
                    assert since <= assignment.version, (
                        f"given by a later version container={container_id} "
                        f"since={since} version={assignment.version}"
                    )
                self._assignment = assignment
                # Here and not behind the report, which may take as long as the way to the controller is long.
                self._cancel_unassigned(assignment, group)
                self._wake.set()

    def _cancel_unassigned(self, assignment: HostAssignment, group: asyncio.TaskGroup) -> None:
        """End tasks that do not belong to the assignment; their containers get no request from now on (M4, M5)."""
        for container_id, container_task in self._container_tasks.items():
            if (
                assignment.keeps(container_id, since=container_task.since)
                or container_task.task.cancelling()
            ):
                continue
            is_given_to_none = container_id not in assignment.since
            if is_given_to_none and self._shorten_seconds and self._is_serving(container_task):
                if not container_task.is_leaving:
                    container_task.is_leaving = True
                    group.create_task(
                        self._leave(container_task), name=f"container-{container_id} leaves"
                    )
                continue
            self._stop(container_task)

    def _is_serving(self, container_task: _ContainerTask) -> bool:
        container = container_task.container
        return container is not None and container.container_id in self._registry.running()

    def _stop(self, container_task: _ContainerTask) -> None:
        container_task.task.cancel()
        if container_task.container is not None and container_task.cause is None:
            self._registry.set_absent(container_task.container, reason="stopping", failed=False)

    async def _leave(self, container_task: _ContainerTask) -> None:
        """M5. Whatever goes wrong with the log, the container ends: its next owner has more to replay then."""
        container = container_task.container
        assert container is not None, "it serves"
        try:
            async with asyncio.timeout(self._shorten_seconds):
                await container.shorten_log()
        except (TimeoutError, SegmentStoreError) as error:
            logger.info(
                "container=%d leaves with a long log: %s",
                container.container_id,
                str(error) or "slow",
            )
        if not container_task.task.done() and not container_task.task.cancelling():
            self._stop(container_task)

    async def _renew(self) -> None:
        """The report is also what keeps this host's claim alive."""
        while True:
            await asyncio.sleep(self._report_interval_seconds)
            await self._send_report([])

    async def _report(self) -> None:
        """Forget tasks that have ended; report those that ended by themselves, and what runs if that changed."""
        ended = [
            container_id
            for container_id, container_task in self._container_tasks.items()
            if container_task.task.done()
        ]
        failures = []
        for container_id in ended:
            container_task = self._container_tasks.pop(container_id)
            if container_task.cause is not None:
                failures.append(
                    ContainerFailure(container_id, container_task.since, container_task.cause)
                )
        if failures or self._state() != self._reported:
            await self._send_report(failures)
        # What was published before the report did not know of the failure: it cannot order a restart. Another `since`
        # does: what has failed was over by then, and no later version need come.
        given = {} if self._assignment is None else self._assignment.since
        for failure in failures:
            if given.get(failure.container_id, failure.since) == failure.since:
                self._blocked[failure.container_id] = self._version()

    async def _send_report(self, failures: Sequence[ContainerFailure]) -> None:
        self._reported = version, held, running = self._state()
        await self._assignments.report(
            self._host_id, version=version, held=held, running=running, failed=failures
        )

    def _state(self) -> tuple[int, dict[ContainerId, int], Sequence[ContainerId]]:
        """What a report says, of one moment: the version, what is held for it or still, and what runs."""
        held = {
            container_id: container_task.since
            for container_id, container_task in sorted(self._container_tasks.items())
        }
        return self._version(), held, self._registry.running()

    def _version(self) -> int:
        return self._assignment.version if self._assignment is not None else 0

    def _converge(self, group: asyncio.TaskGroup) -> None:
        if self._assignment is None:
            return
        for container_id, since in sorted(self._assignment.since.items()):
            if container_id in self._container_tasks:
                continue
            if self._blocked.get(container_id, -1) >= self._assignment.version:
                continue
            self._blocked.pop(container_id, None)
            task = group.create_task(
                self._run_container(container_id), name=f"container-{container_id}"
            )
            task.add_done_callback(lambda _: self._wake.set())
            self._container_tasks[container_id] = _ContainerTask(task, since)

    async def _run_container(self, container_id: ContainerId) -> None:
        """One container to its end. Raises only when it is told to stop: a failure is a value to report."""
        container = self._create_container(container_id)
        container_task = self._container_tasks[container_id]
        container_task.container = container
        try:
            container_task.cause = await self._start_and_run(container, container_task)
            self._registry.set_absent(
                container, reason=_failure_reason(container_task.cause), failed=True
            )
            logger.error(
                "container=%d ended by itself%s: %s",
                container_id,
                " and will not be restarted" if is_corrupt(container_task.cause) else "",
                _failure_reason(container_task.cause),
                exc_info=container_task.cause if logger.isEnabledFor(logging.DEBUG) else None,
            )
        except asyncio.CancelledError:
            self._registry.set_absent(container, reason="stopping", failed=False)
            raise
        finally:
            await self._close(container)
            container_task.settled = True

    async def _start_and_run(
        self, container: SegmentContainer, container_task: _ContainerTask
    ) -> BaseException:
        """Returns what ended the container. Raises CancelledError only if this task was cancelled."""
        self._registry.set_starting(container)
        try:
            await container.start()
            if container_task.task.cancelling():
                raise asyncio.CancelledError  # it ended too late for the cancellation to reach it
            self._registry.set_running(container)
            container_task.settled = True
            self._wake.set()
            await container.run()
        except asyncio.CancelledError as error:
            if container_task.task.cancelling():
                raise
            return error  # leaked out of the container: it was not asked to stop
        except Exception as error:  # noqa: BLE001 - the top of a container's task: what ended it is a value
            return error
        return RuntimeError(f"run() ended without a cause container={container.container_id}")

    async def _close(self, container: SegmentContainer) -> None:
        """Close to the end, whatever arrives meanwhile: M2 rests on it. A cancellation is delivered afterwards."""
        failure: BaseException | None = None
        try:
            await finish_despite_cancellation(container.close())
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
            container_id in self._blocked or self._container_tasks[container_id].settled
            for container_id in self._assignment.containers
        ):
            self._settled.set()


def _failure_reason(error: BaseException) -> str:
    """The first cause of a group of failures, as one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error)
    return f"failed: {text}" if text else f"failed: {type(error).__name__}"
