"""The machine of tests/sim with a controller in every process, and the way to it from outside.

A process runs the containers and the controller over them, as the host does it: names are routed by the real registry,
and the controller recovers whenever a container has.
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from google.protobuf.message import Message

from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    ErrorKind,
    SegmentStoreError,
)
from segmentstore.controller.api.endpoints import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_store import SegmentStore
from segmentstore.host.table_store import TableStore
from tests.controller.random_life.settings import LifeSettings
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimLoop
from tests.sim.machine import NodeMachine
from tests.sim.node import NodeDiedError
from tests.sim.world import Host, World

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")

REQUEST_ERRORS = (SegmentStoreError, NodeDiedError)
"""What a client has to expect of every request."""

_PAUSE_SECONDS_FIRST = 0.02
_PAUSE_SECONDS_MAX = 10.0


class NoAnswerError(SegmentStoreError):
    """The client waited long enough."""


class LifeHost(Host):
    """One process: its containers, and the controller over them."""

    def __init__(self, world: "LifeWorld", number: int) -> None:
        super().__init__(world, number)
        self._machine = world.life_machine
        self._registry = ContainerRegistry(container_count=world.swarm.node.container_count)
        self._registry.watch(self._container_recovered)
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._try_again = asyncio.Event()
        self.segments = SegmentStore(registry=self._registry)
        self.tables = TableStore(registry=self._registry)
        self.controller = Controller(
            segments=self.segments,
            tables=self.tables,
            wall_clock=self._machine.wall_clock,
            random=Random(world.random.getrandbits(64)),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=world.settings.controller,
        )

    def stop_container(self, container_id: int) -> bool:
        """Let one container end as if it were moved; it starts again. Whether it was there."""
        life = self._lives.get(container_id)
        return life is not None and life.cancel()

    async def _run_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super()._run_all())
            group.create_task(self._keep_controller())

    async def _run_once(self, container_id: int) -> None:
        if self in self._world.zombies:
            # Deposed: what its controller remembers is only right while nobody else writes.
            await asyncio.Event().wait()
        life = asyncio.get_running_loop().create_task(self._live(container_id))
        self._lives[container_id] = life
        try:
            await life
        except asyncio.CancelledError as error:
            raise ContainerStoppedError("it was moved") from error

    async def _live(self, container_id: int) -> None:
        container: SegmentContainer = self._machine.build(self.node, container_id)
        try:
            self._registry.set_starting(container)
            await container.start()
            self._registry.set_running(container)
            self.containers[container_id] = container
            self._world.loop.trace("container", container_id, "runs")
            await container.run()
        finally:
            self.containers.pop(container_id, None)
            self._registry.set_absent(container, reason="ended", failed=False)
            await container.close()

    async def _keep_controller(self) -> None:
        pause = _PAUSE_SECONDS_FIRST
        loop = self._world.loop
        while True:
            self._try_again.clear()
            try:
                await self.controller.start()
                loop.trace("controller works")
                pause = _PAUSE_SECONDS_FIRST
                await self.controller.run()
            except SegmentStoreError as error:
                self._judge(error)
            except ExceptionGroup as group:
                _, faults = group.split(SegmentStoreError)
                if faults is not None:
                    raise faults from group
                loop.trace("controller broke", repr(group.exceptions))
            await self._rest(pause)
            pause = min(1.25 * pause, _PAUSE_SECONDS_MAX)

    def _judge(self, error: SegmentStoreError) -> None:
        self._world.loop.trace("controller does not start", type(error).__name__, error)
        if error.kind is ErrorKind.CORRUPT:
            self._world.loop.fail(ModelBreachError(f"the controller does not start: {error!r}"))

    def _container_recovered(self) -> None:
        self._try_again.set()

    async def _rest(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._try_again.set)
        try:
            await self._try_again.wait()
        finally:
            timer.cancel()


class LifeWorld(World):
    """The world of tests/sim whose processes have controllers."""

    def __init__(self, loop: SimLoop, settings: LifeSettings) -> None:
        self.life_machine = NodeMachine(loop, settings.swarm)
        self.settings = settings
        super().__init__(loop, settings.swarm, self.life_machine)

    def boot(self) -> LifeHost:
        self.host_count += 1
        host = LifeHost(self, self.host_count)
        self.owner = host
        host.boot()
        self.loop.trace("boot", host.node)
        return host

    @property
    def host(self) -> LifeHost | None:
        """The process that owns the containers."""
        host = self.owner
        assert host is None or isinstance(host, LifeHost), f"a host without a controller {host}"
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

    # --- requests ---------------------------------------------------------------------------------

    async def ask(
        self, work: Callable[[LifeHost], Coroutine[Any, Any, Result]], *, seconds: float = 0.0
    ) -> Result:
        """Have the process that owns the containers do it. Raises REQUEST_ERRORS; damage fails the run."""
        host = self.host
        if host is None or not host.node.alive:
            raise ContainerNotFoundError(0, "there is no process")
        try:
            async with asyncio.timeout(seconds or self.random.choice((1.0, 10.0, 60.0))):
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
