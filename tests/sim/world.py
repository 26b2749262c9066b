"""A world: one machine with its processes, clients outside, and trouble by the seed.

A *host* is one process that runs all containers of the machine. The world starts it, kills it, stops it while another
takes over (the zombie), and starts it again. What a process is made of is the machine's business (`Machine.build`).

A run has two phases. Faults on: clients work while things break; whatever they are told must be true. Faults off:
everything pending must finish within bounded virtual time, and then everything is read back, before and after two
more restarts.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.containers import ContainerState, SegmentContainer
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ErrorKind,
    SegmentStoreError,
    ServiceHaltError,
)
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.storage import ReadOnlyStorage
from tests.sim.attempts import ModelBreachError
from tests.sim.loop import SimLoop
from tests.sim.model import Model
from tests.sim.node import Node
from tests.sim.settings import Swarm

_RESTART_SECONDS_MAX = 5.0
_TROUBLES = (
    "crash",
    "power_loss",
    "pause",
    "failing_sync",
    "disk_full",
    "store_down",
    "store_full",
    "cut_off",
    "clock_step",
)


class StorageAtRest(ReadOnlyStorage, Protocol):
    """Tier 2 as it was at one moment, as long as nobody publishes."""

    async def refresh(self) -> object:
        """Look at the root anew; equal to the last answer if it is still the same."""


class Machine(Protocol):
    """Disks, clocks and networks of one simulated computer, and what its processes are made of."""

    has_second_tier: bool
    has_tables: bool
    confirms_answers: bool
    """A process that was replaced refuses instead of answering from the past."""

    def build(self, node: Node, container_id: int) -> SegmentContainer:
        """A container of that process, not started. Called inside the node."""

    def killed(self, node: Node) -> None:
        """The process is dead: its locks are free, what it gave to the disk is still there."""

    def lose_power(self) -> None:
        """All processes are dead already; what was never synced may go."""

    def break_something(self, kind: str, random: Random) -> str:
        """Start or end a trouble of that kind; a word for the trace, "" if it does not apply here."""

    def trouble_ends_at(self) -> float:
        """Loop time at which the last trouble ends by itself."""

    def settle(self) -> None:
        """Faults off."""

    async def open_storage(self, container_id: int) -> StorageAtRest | None:
        """Tier 2 from the root alone; None if there is none."""

    def check(self) -> None:
        """Prove the machine's own invariants, if it has any."""


class Host:
    """One process on the machine: starts its containers and restarts those that fail."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self.number = number
        self.containers: dict[int, SegmentContainer] = {}
        self.node: Node = world.loop.new_node(f"host{number}")
        self.fenced: dict[int, None] = {}

    def boot(self) -> None:
        """Start the process."""
        work = self._run_all()
        self.node = self._world.loop.start(f"host{self.number}", work)

    def running(self, container_id: int) -> SegmentContainer | None:
        container = self.containers.get(container_id)
        if container is None or container.health().state is not ContainerState.RUNNING:
            return None
        return container

    async def _run_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for container_id in range(self._world.swarm.node.container_count):
                group.create_task(self._keep_running(container_id))

    async def _keep_running(self, container_id: int) -> None:
        """Start and restart one container, with growing delay, until another process owns it (H42)."""
        delay = 0.05
        while True:
            began = self._world.loop.time()
            try:
                await self._run_once(container_id)
            except SegmentStoreError as error:
                self._world.loop.trace("container", container_id, "ended", type(error).__name__)
                self._world.judge_end(self, container_id, error)
                if error.kind is ErrorKind.FENCED and self._world.owner is not self:
                    self.fenced[container_id] = None
                    return
            if self._world.loop.time() - began > 60:
                delay = 0.05
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RESTART_SECONDS_MAX)

    async def _run_once(self, container_id: int) -> None:
        container = self._world.machine.build(self.node, container_id)
        try:
            await container.start()
            self.containers[container_id] = container
            self._world.loop.trace("container", container_id, "runs")
            await container.run()
        finally:
            self.containers.pop(container_id, None)
            await container.close()


class World:
    """Everything of one seed. Also the directory that clients ask."""

    def __init__(self, loop: SimLoop, swarm: Swarm, machine: Machine) -> None:
        self.loop = loop
        self.random = loop.random
        self.swarm = swarm
        self.machine = machine
        self.model = Model()
        self.owner: Host | None = None
        self.zombies: list[Host] = []
        self._had_zombies = False
        self.host_count = 0

    # --- where things are -------------------------------------------------------------------------

    def route(self, name: str) -> tuple[Node, SegmentContainer]:
        container_id = int(container_of(name, self.swarm.node.container_count))
        host = self.owner
        container = host.containers.get(container_id) if host else None
        if host is None or container is None or not host.node.alive:
            raise ContainerNotFoundError(container_id)
        return host.node, container

    def owns(self, node: Node) -> bool:
        return self.owner is not None and self.owner.node is node

    def answers_truly(self, node: Node) -> bool:
        return self.machine.confirms_answers or self.owns(node)

    def every_container(self) -> list[tuple[Node, SegmentApi]]:
        found: list[tuple[Node, SegmentApi]] = []
        for container_id in range(self.swarm.node.container_count):
            container = self.owner.containers.get(container_id) if self.owner else None
            if self.owner is None or container is None:
                raise ContainerNotFoundError(container_id)
            found.append((self.owner.node, container))
        return found

    def containers(self) -> list[SegmentContainer]:
        """Those that run now in the process that owns them."""
        return list(self.owner.containers.values()) if self.owner else []

    def judge_end(self, host: Host, container_id: int, error: SegmentStoreError) -> None:
        """A container ended by itself: fine in trouble, never for damage and never in peace."""
        if error.kind is ErrorKind.CORRUPT or isinstance(error, ServiceHaltError):
            self.loop.fail(_breach(f"container {container_id} halted: {error!r}", error))
        if error.kind is ErrorKind.FENCED and not self._had_zombies:
            self.loop.fail(_breach(f"container {container_id} was fenced by nobody", error))

    # --- processes --------------------------------------------------------------------------------

    def boot(self) -> Host:
        """A new process becomes the owner."""
        self.host_count += 1
        self.owner = Host(self, self.host_count)
        self.owner.boot()
        self.loop.trace("boot", self.owner.node)
        return self.owner

    def kill(self, host: Host) -> None:
        self.loop.crash(host.node)
        self.machine.killed(host.node)
        if host is self.owner:
            self.owner = None
        if host in self.zombies:
            self.zombies.remove(host)

    async def restart(self, *, power: bool = False) -> None:
        """Kill the owner (and, without power, everybody), and boot another after a while."""
        for host in [self.owner, *(self.zombies if power else [])]:
            if host is not None:
                self.kill(host)
        if power:
            self.machine.lose_power()
            self.loop.trace("power lost")
        await asyncio.sleep(self.random.expovariate(5))
        self.boot()

    async def stop_owner_for_a_while(self) -> None:
        """Pause the owner; perhaps another takes over meanwhile, and the old one wakes as a zombie."""
        host = self.owner
        if host is None:
            return
        longest = self.swarm.trouble.pause_seconds_max
        self.loop.pause(host.node)
        await asyncio.sleep(self.random.random() * longest)
        if self.random.random() < 0.6:
            self.zombies.append(host)
            self._had_zombies = True
            self.boot()
            await asyncio.sleep(self.random.expovariate(1 / longest))
        self.loop.resume(host.node)
        if host in self.zombies and self.random.random() < 0.3:
            await asyncio.sleep(self.random.expovariate(1))
            self.kill(host)

    # --- trouble ----------------------------------------------------------------------------------

    async def make_trouble(self) -> None:
        """One thing after the other breaks until the phase ends."""
        trouble = self.swarm.trouble
        ends = self.loop.time() + trouble.seconds
        kinds = _TROUBLES
        weights = [float(getattr(trouble, kind)) for kind in kinds]
        if not any(weights):
            await asyncio.sleep(trouble.seconds)
            return
        while self.loop.time() < ends:
            # Troubles like company: a power cut right behind a crash finds a recovery half done.
            mean = trouble.event_seconds_mean * (0.02 if self.random.random() < 0.3 else 1)
            await asyncio.sleep(self.random.expovariate(1 / mean))
            (kind,) = self.random.choices(kinds, weights)
            await self._break(kind)
        if self.random.random() < 0.5:
            await asyncio.sleep(max(0.0, self.machine.trouble_ends_at() - self.loop.time()))

    async def _break(self, kind: str) -> None:
        match kind:
            case "crash":
                await self.restart()
                if self._power_fails_next():
                    await self._cut_power_behind_the_recovery()
            case "power_loss":
                await self.restart(power=True)
            case "pause":
                await self.stop_owner_for_a_while()
            case _:
                word = self.machine.break_something(kind, self.random)
                self.loop.trace("trouble", kind, word)

    def _power_fails_next(self) -> bool:
        trouble = self.swarm.trouble
        return bool(trouble.power_loss) and self.random.random() < trouble.power_loss_behind_crash

    async def _cut_power_behind_the_recovery(self) -> None:
        """What it read from the page cache and served is gone now, unless it was made durable (H39)."""
        ends = self.loop.time() + 5
        while self.loop.time() < ends and not self._all_run(self.swarm.node.container_count):
            await asyncio.sleep(0.02)
        await asyncio.sleep(self.random.expovariate(20))
        await self.restart(power=True)

    def calm(self) -> None:
        """Faults off: nothing new breaks, zombies wake and then die."""
        self.machine.settle()
        for zombie in list(self.zombies):
            self.loop.resume(zombie.node)
            self.kill(zombie)
        self.loop.trace("calm")

    async def wait_until_running(self) -> None:
        """Until every container answers; ends within bounded time or fails the run."""
        count = self.swarm.node.container_count
        await self.within(
            600, "containers run", lambda: self.owner is not None and self._all_run(count)
        )

    def _all_run(self, count: int) -> bool:
        owner = self.owner
        return owner is not None and all(owner.running(number) for number in range(count))

    async def within(self, seconds: float, what: str, holds: Callable[[], bool]) -> None:
        """Liveness: it holds before that much virtual time has passed."""
        ends = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > ends:
                tasks = self.loop.describe_tasks()
                raise ModelBreachError(f"not within {seconds} s: {what}\n{tasks}")
            await asyncio.sleep(0.1)


def _breach(why: str, error: BaseException) -> ModelBreachError:
    breach = ModelBreachError(why)
    breach.__cause__ = error
    return breach
