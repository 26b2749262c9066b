"""Keeps a controller working over the store: one run after the other, each as long as the containers of its tables.

    a run    start (read everything, finish what was begun), run (answer calls, work in the background)
    it ends  when a container that holds one of its tables ends, or when its own work breaks
    then     background work is cancelled and awaited, open calls are refused so that clients ask again; a pause; the
             next one

Invariants:

- Nothing that a controller remembers outlives the containers that it was read from: while these are away another
  process may have them, and a controller over them. One that was fenced, moved or recovered in place has ended.
- A container that stays away takes with it only what needs it: a run waits for all of them for a while, and then
  begins without those that are missing. Once that has happened later runs do not wait again, until one found all.
- It tries to recover whenever a container has, or was given to a node, and in pauses besides (`run_pauses.py`).
- The controller never ends the process: what breaks it is logged, and the next run begins. All that it knows is in
  table segments, so nothing is lost by that.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.containers import ContainerListener
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.controller import Controller
from segmentstore.host.run_pauses import RunEnd, RunPauses
from segmentstore.runtime.waiting import first_cause, wait_for_event

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0
"""For so long a start waits for scopes whose containers are still recovering: clients need not meet them missing."""
_SILENCE_SECONDS_WORTH_A_LINE = 4.0
"""Shorter ones are those of containers that move."""


class TablesLostError(SegmentStoreError):
    """A container that holds tables of the controller has ended: what was read from it may be true no more."""

    kind = ErrorKind.UNAVAILABLE


class FollowedContainers(Protocol):
    """The containers that the controller's tables are in: those of this process (ContainerRegistry), or those of a
    whole cluster (ContainerChanges)."""

    @property
    def container_count(self) -> int: ...

    def watch(self, tell: ContainerListener, /) -> None:
        """Have it called whenever a container takes requests, and when it takes none any more."""


class ControllerSupervisor:
    """run() until cancelled: run after run of the controller."""

    def __init__(self, *, controller: Controller, containers: FollowedContainers) -> None:
        self._controller = controller
        self._container_count = containers.container_count
        self._recovered = asyncio.Event()
        self._try_again = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost_container = ContainerId(0)
        self._pauses = RunPauses()
        self._missing_since: float | None = None
        """Loop time of the first start that did not find all of its containers; None once one has."""
        self._why = "it has not started yet"
        containers.watch(self._container_changed)

    @property
    def has_recovered(self) -> bool:
        """Whether calls were answered once."""
        return self._recovered.is_set()

    async def wait_until_recovered(self) -> None:
        """Until calls are answered for the first time."""
        await self._recovered.wait()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "runs outside a task"
        async with asyncio.TaskGroup() as group:
            while True:
                # Before the attempt: a container that recovers meanwhile is reason for another one.
                self._try_again.clear()
                self._lost.clear()
                self._pauses.attempt()
                # A task of its own: what breaks in it must not look like the end of this one.
                ended = await group.create_task(self._run_once(), name="controller")
                if task.cancelling():
                    # It broke in the very moment in which it was to end.
                    raise asyncio.CancelledError from ended
                error = first_cause(ended, TablesLostError)
                end = self._pauses.end(error, ended, is_lost=isinstance(error, TablesLostError))
                self._note_end(end)
                await wait_for_event(self._try_again, until=loop.time() + end.pause_seconds)

    async def _run_once(self) -> "ExceptionGroup[Exception]":
        """One run, or an attempt at one; what ended it. Raises only when it is told to stop."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_lost())
                loop = asyncio.get_running_loop()
                began = loop.time()
                await self._start()
                self._pauses.works()
                logger.info("the controller works seconds=%.3f", loop.time() - began)
                self._recovered.set()
                await self._controller.run()
        except ExceptionGroup as end:
            return end
        raise AssertionError("a run ended for no reason")

    async def _start(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._missing_since is None or now < self._missing_since + _PATIENCE_SECONDS:
            try:
                await self._controller.start(whole=True)
            except SegmentStoreError:
                if self._missing_since is None and self._controller.is_incomplete:
                    self._missing_since = now
                raise
            self._missing_since = None
            return
        await self._controller.start()
        if not self._controller.is_incomplete:
            self._missing_since = None

    async def _until_lost(self) -> None:
        await self._lost.wait()
        raise TablesLostError(
            f"a container of its tables has ended container={self._lost_container}"
        )

    def _container_changed(self, container_id: ContainerId, *, runs: bool) -> None:
        if runs:
            # Perhaps the one that was missing.
            self._try_again.set()
        elif container_id in self._containers_of_tables():
            self._lost_container = container_id
            self._lost.set()

    def _containers_of_tables(self) -> set[ContainerId]:
        """O(tables): containers seldom end."""
        names = self._controller.components.table_names()
        return {container_of(name, self._container_count) for name in names}

    def _note_end(self, end: RunEnd) -> None:
        error = end.error
        self._why = f"{error}" or type(error).__name__
        if isinstance(error, TablesLostError):
            if end.worked:
                logger.warning("the controller starts anew: %s", error)
        elif end.worked or not isinstance(error, SegmentStoreError):
            logger.error("the controller's work broke, it starts anew", exc_info=end.group)
        elif error.kind not in (ErrorKind.UNAVAILABLE, ErrorKind.FULL):
            logger.error("the controller cannot recover yet: %s", error)
        elif end.silent_seconds >= _SILENCE_SECONDS_WORTH_A_LINE:
            logger.info("the controller cannot recover yet: %s", error)

    def complaints(self) -> list[str]:
        """What a person should know, in sentences, for `/health`."""
        if not self._controller.is_ready:
            return [f"the controller does not work now: {self._why}"]
        stuck = self._controller.complaints()
        clock = self._controller.components.retention.complaint()
        return [*stuck, clock] if clock else stuck

    def metrics(self) -> Mapping[str, float]:
        """What `/metrics` shows of it."""
        return {
            "controller_ready": float(self._controller.is_ready),
            "controller_lives_total": float(self._pauses.runs),
        }

    def settle_clocks(self) -> None:
        """A person says that the present time is right."""
        self._controller.components.clock_watch.settle()
