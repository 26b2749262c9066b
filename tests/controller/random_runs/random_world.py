"""The machine of tests/sim with a controller in every process, and the way to it from outside.

A process runs the containers and the controller over them, as the host does it: names are routed by the real registry,
and the controller runs as long as the containers of its tables do.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, TypeVar

from google.protobuf.message import Message

from segmentstore.codec.container_hash import container_of
from segmentstore.codec.controller_records.record_keys import TRANSACTIONS_TABLE
from segmentstore.contracts.containers import HostAssignment, SegmentContainer
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import Table, TableApi, TableEntry
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.host.run_pauses import RunEnd
from segmentstore.host.segment_store import SegmentStore
from tests.controller.crashing_doors import CrashingTable, CrashingTables, CrashPlan
from tests.controller.random_runs.settings import LifeSettings
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine
from tests.sim.node import NodeDiedError
from tests.sim.world import Host, World

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
Outcome = TypeVar("Outcome")

REQUEST_ERRORS = (SegmentStoreError, NodeDiedError)
"""What a client has to expect of every request."""


class NoAnswerError(SegmentStoreError):
    """The client waited long enough."""


class WatchedController(Controller):
    """That of the host, whose looks of retention are known while they last."""

    looks: set[object]
    """Of all its runs."""

    async def start(self, *, whole: bool = False) -> None:
        await super().start(whole=whole)
        retention = self.components.retention
        look_at = retention.look_at

        async def known_look_at(scope: str, stream: str) -> None:
            look = object()
            self.looks.add(look)
            try:
                await look_at(scope, stream)
            finally:
                self.looks.remove(look)

        retention.look_at = known_look_at  # type: ignore[method-assign]


class LatePlan(CrashPlan):
    """Nothing dies; some answers come late."""

    def __init__(self, settings: LifeSettings, random: Random) -> None:
        super().__init__()
        self._settings = settings
        self._random = random

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        outcome = await call()
        if self._random.random() < self._settings.late_answer:
            mean = self._settings.late_answer_seconds_mean
            await asyncio.sleep(self._random.expovariate(1 / mean))
        return outcome


class LateTables(CrashingTables):
    """Those of the process. What is removed from the table of transactions is gone before the answer says so."""

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._open(name) if name == TRANSACTIONS_TABLE else self._tables.open_table(name)

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        async with self._tables.open_table(name) as table:
            yield LateTable(table, self._plan)


class LateTable(CrashingTable):
    """Removals go through the plan; changes do not, so that everything else takes no longer than before."""

    def update(
        self, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        return self._table.update(entries, offset=offset)


class WatchedSupervisor(ControllerSupervisor):
    """That of the host; what may not happen fails the run."""

    def __init__(self, host: "RandomHost") -> None:
        super().__init__(controller=host.controller, containers=host.registry)
        self._host = host

    def _note_end(self, end: RunEnd) -> None:
        super()._note_end(end)
        self._host.judge(end.group, worked=end.worked)


@dataclass(slots=True)
class _ContainerRun:
    """One container that starts or runs."""

    task: asyncio.Task[None]
    since: int
    container: SegmentContainer | None = None
    """None until the task has begun."""


class RandomHost(Host):
    """One process: its containers, and the controller over them."""

    def __init__(self, world: "RandomWorld", number: int) -> None:
        super().__init__(world, number)
        self._machine = world.node_machine
        self.registry = ContainerRegistry(container_count=world.swarm.node.container_count)
        self._runs: dict[ContainerId, _ContainerRun] = {}
        """Of the containers that start or run. One that is ending is not to be disturbed in what it gives back."""
        self._assignment = world.next_assignment()
        """The one that it heard of last."""
        self._assigned = asyncio.Event()
        """Whether it may start containers, heard of or not."""
        self._assigned.set()
        self.segments = SegmentStore(registry=self.registry)
        self.controller = WatchedController(
            segments=self.segments,
            tables=self._tables(world),
            wall_clock=self._machine.wall_clock,
            random=Random(world.random.getrandbits(64)),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=world.settings.controller,
        )
        self.controller.looks = set()
        world.all_hosts.append(self)
        self._stays_down: dict[int, float] = {}
        """Container -> loop time until which it does not start."""
        self.supervisor = WatchedSupervisor(self)

    def _tables(self, world: "RandomWorld") -> TableApi:
        if not world.settings.late_answer:
            return self.segments
        return LateTables(
            self.segments, LatePlan(world.settings, Random(world.random.getrandbits(64)))
        )

    def stop_container(self, container_id: int) -> bool:
        """Let one container end as if it were moved, also while it starts; it starts again if it is to run here.

        Whether there was one.
        """
        run = self._runs.get(ContainerId(container_id))
        return run is not None and run.task.cancel()

    def keep_down(self, container_id: int, seconds: float) -> None:
        """It starts no earlier than that, here."""
        self._stays_down[container_id] = asyncio.get_running_loop().time() + seconds

    def depose(self) -> None:
        """It starts nothing any more, and is not told. What runs here goes on until it is stopped or fenced."""
        self._assigned.clear()

    def assign(self, assignment: HostAssignment) -> None:
        """It hears of this one, of none between that and the one before, and does what a `ContainerManager` does."""
        self._assignment = assignment
        for container_id, run in self._runs.items():
            if assignment.keeps(container_id, since=run.since):
                continue
            if not run.task.cancelling():
                run.task.cancel()
            if run.container is not None:
                self.containers.pop(container_id, None)
                self.registry.set_absent(run.container, reason="stopping", failed=False)
        self._assigned.set()

    async def _run_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super()._run_all())
            group.create_task(self.supervisor.run())

    async def _keep_running(self, container_id: int) -> None:
        while True:
            # Returns when another process has taken the container over, which may give it back.
            await super()._keep_running(container_id)

    async def _run_once(self, container_id: int) -> None:
        left = self._stays_down.pop(container_id, 0.0) - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)
        await self._assigned.wait()
        self.fenced.pop(container_id, None)
        task = asyncio.get_running_loop().create_task(self._live(ContainerId(container_id)))
        since = self._assignment.since[ContainerId(container_id)]
        self._runs[ContainerId(container_id)] = _ContainerRun(task, since)
        try:
            await task
        except asyncio.CancelledError as error:
            raise ContainerStoppedError("it was moved") from error

    async def _live(self, container_id: ContainerId) -> None:
        container: SegmentContainer = self._machine.build(self.node, container_id)
        run = self._runs[container_id]
        run.container = container
        try:
            self.registry.set_starting(container)
            await container.start()
            given_back = not self._assignment.keeps(container_id, since=run.since)
            if given_back or not self._assigned.is_set():
                raise ContainerStoppedError("it was moved while it started")
            self.registry.set_running(container)
            self.containers[container_id] = container
            self._world.loop.trace("container", container_id, "runs")
            await container.run()
        finally:
            self._runs.pop(container_id, None)
            self.containers.pop(container_id, None)
            self.registry.set_absent(container, reason="ended", failed=False)
            await container.close()

    def judge(self, group: "ExceptionGroup[Exception]", *, worked: bool) -> None:
        """A run of the controller has ended, or an attempt at one."""
        loop = self._world.loop
        loop.trace(self.node, "controller ends" if worked else "controller waits", repr(group))
        known, faults = group.split(SegmentStoreError)
        if faults is not None:
            loop.fail(faults)
        corrupt, _ = group.split(_is_corrupt)
        if corrupt is not None:
            breach = ModelBreachError("the controller met damage")
            breach.__cause__ = known
            loop.fail(breach)


def _is_corrupt(error: Exception) -> bool:
    return isinstance(error, SegmentStoreError) and error.kind is ErrorKind.CORRUPT


class RandomWorld(World):
    """The world of tests/sim whose processes have controllers."""

    def __init__(self, loop: SimLoop, settings: LifeSettings) -> None:
        self.node_machine = NodeMachine(loop, settings.swarm)
        self.settings = settings
        self._versions = count(1)
        self.patient = False
        """Whether clients wait long for each answer, as a reader of everything has to where each takes a second."""
        self.all_hosts: list[RandomHost] = []
        super().__init__(loop, settings.swarm, self.node_machine)

    def next_assignment(self) -> HostAssignment:
        """That of the process which gets all containers now."""
        version = next(self._versions)
        containers = range(self.settings.swarm.node.container_count)
        return HostAssignment(version, {ContainerId(number): version for number in containers})

    def boot(self) -> RandomHost:
        if self.host is not None:
            self.host.depose()
        self.host_count += 1
        host = RandomHost(self, self.host_count)
        self.owner = host
        host.boot()
        self.loop.trace("boot", host.node)
        return host

    async def _break(self, kind: str) -> None:
        if self.settings.hand_over and self.random.random() < self.settings.hand_over:
            await self._hand_over_and_back()
        else:
            await super()._break(kind)

    async def _hand_over_and_back(self) -> None:
        """Another process gets the containers, and gives them back to the one that had them, which goes on."""
        first = self.host
        if first is None:
            return
        await self._depose(first)
        second = self.boot()
        for _ in range(self.random.choice((1, 1, 2))):
            await asyncio.sleep(self.random.expovariate(1 / self.swarm.trouble.event_seconds_mean))
            await self._depose(second)
            self.zombies.remove(first)
            self.owner = first
            first.assign(self.next_assignment())
            self.loop.trace("gives back to", first.node)
            first, second = second, first
        # The one that has nothing now.
        await asyncio.sleep(self.random.expovariate(1 / self.swarm.trouble.event_seconds_mean))
        if first in self.zombies and self.random.random() < 0.7:
            self.kill(first)

    async def _depose(self, host: RandomHost) -> None:
        """It starts no container any more; those that run end now, or soon, or find themselves fenced."""
        self.zombies.append(host)
        self._had_zombies = True
        self.owner = None
        host.depose()
        self.loop.trace("deposed", host.node)
        if self.random.random() < 0.3 and self.swarm.node.takeover:
            return
        for container_id in range(self.swarm.node.container_count):
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.expovariate(50))
            host.stop_container(container_id)

    @property
    def host(self) -> RandomHost | None:
        """The process that owns the containers."""
        host = self.owner
        assert host is None or isinstance(host, RandomHost), f"a host without a controller {host}"
        return host

    @property
    def controller_works(self) -> bool:
        host = self.host
        return host is not None and host.controller.is_ready

    async def stop_containers(self) -> None:
        """Now and then one of them, until cancelled."""
        often = self.settings.container_stop
        if not often:
            return
        while True:
            await asyncio.sleep(
                self.random.expovariate(often / self.swarm.trouble.event_seconds_mean)
            )
            host = self.host
            container_id = self.random.randrange(self.swarm.node.container_count)
            if host is not None and not host.node.paused and host.stop_container(container_id):
                self.loop.trace("stopped container", container_id)

    def take_down(self, names: Sequence[str]) -> None:
        """Keep the container of one of these segments down for a while, rather one without tables of the controller."""
        host, mean = self.host, self.settings.container_down_seconds_mean
        if host is None or host.node.paused or not mean:
            return
        number = self.settings.swarm.node.container_count
        of_tables = {
            container_of(name, number) for name in host.controller.components.table_names()
        }
        found = sorted({container_of(name, number) for name in names} - of_tables)
        if found:
            container_id = self.random.choice(found)
            host.keep_down(container_id, self.random.expovariate(1 / mean))
            host.stop_container(container_id)
            self.loop.trace("took down container", container_id)

    def looks_of_retention(self) -> set[object]:
        """Those that go on now, in any process that runs."""
        return {
            look for host in self.all_hosts if host.node.alive for look in host.controller.looks
        }

    # --- requests ---------------------------------------------------------------------------------

    async def ask(
        self, work: Callable[[RandomHost], Coroutine[Any, Any, Result]], *, seconds: float = 0.0
    ) -> Result:
        """Have the process that owns the containers do it. Raises REQUEST_ERRORS; damage fails the run."""
        host = self.host
        if host is None or not host.node.alive:
            raise ContainerNotFoundError(0, "there is no process")
        seconds = seconds or self.random.choice((1.0, 10.0, 60.0))
        try:
            async with asyncio.timeout(max(seconds, 60.0) if self.patient else seconds):
                return await self.loop.invoke(host.node, work(host))
        except TimeoutError as error:
            raise NoAnswerError("the client waits no longer") from error
        except SegmentStoreError as error:
            if error.kind is ErrorKind.CORRUPT:
                raise ModelBreachError(f"damage was reported: {error!r}") from error
            raise

    async def call(
        self, name: str, request: Message, answer: type[Answer], *, seconds: float = 0.0
    ) -> Answer:
        """A call of the controller, as bytes. Raises REQUEST_ERRORS."""
        content = request.SerializeToString()
        message = answer()
        message.ParseFromString(
            await self.ask(
                lambda host: host.controller.service.answer_when_ready(
                    name, content, wait_seconds=5.0
                ),
                seconds=seconds,
            )
        )
        return message


def says_nothing(error: Exception) -> bool:
    """Whether the request may have been done, may still be done, or not."""
    return not isinstance(error, SegmentStoreError) or error.kind in (
        ErrorKind.UNAVAILABLE,
        ErrorKind.FULL,
        ErrorKind.FENCED,
    )
