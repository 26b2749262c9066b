"""A cluster in virtual time: three nodes with real container managers, two controllers, and everything that may fail.

Goal: no container is held by two nodes that both have a valid lease, at any moment; a write of a leader whose epoch is
over never lands; and when faults end, every container runs on exactly one living node, and nothing moves any more.

Method: each process is a process of the simulated loop: it can be killed, stopped and continued. Requests to the
coordination store get lost, come late, or lose their answers; watches are late; sessions expire; the store goes away
and comes back. Containers take time to start and to close, and fail. A seed is a world of its own.

    python -m tests.cluster.random_cluster --seed N
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from segmentstore.cluster.assigner import Assigner, AssignerSettings
from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.node_session import NodeSession
from segmentstore.cluster.placement import PlacementSettings
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    EPOCH_PATH,
    NODES_PATH,
    WISHES_PATH,
    LeaderRecord,
    Wishes,
    decode_assignment,
    decode_epoch,
    decode_wishes,
    encode_wishes,
)
from segmentstore.contracts.errors import StorageError, StorageUnavailableError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import (
    CoordinationUnavailableError,
    CreateValue,
    SessionLostError,
    SetValue,
)
from segmentstore.host.container_manager import ContainerManager
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.tier2_reach import SILENT_SECONDS_MIN, Tier2Reach
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.host.simple_container import SimpleContainer
from tests.sim.loop import SimLoop
from tests.sim.node import Node, current_node
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network

_CONTAINERS = 6
_FAULT_SECONDS = 120.0
_CONVERGE_SECONDS_MAX = 150.0
_QUIET_SECONDS = 20.0
_SETTINGS = AssignerSettings(
    failure_pause_seconds=0.5,
    failure_pause_seconds_max=4.0,
    forgive_after_seconds=20.0,
    first_assignment_seconds=1.0,
    placement=PlacementSettings(same_failure_count=3, moves_at_once=2),
)


_SHORTEN_SECONDS = 2.0


@dataclass(slots=True)
class Machine:
    """What runs one process after the other."""

    name: str
    network: Network
    process: Node | None = None
    session: NodeSession | None = None
    registry: ContainerRegistry | None = None
    has_tier2: bool = True
    tier2_answers: int = 0
    trouble_until: float = 0.0

    async def ask_tier2(self) -> None:
        if not self.has_tier2:
            raise StorageUnavailableError("no way to it", state="unavailable")
        self.tier2_answers += 1


class HeldContainer(SimpleContainer):
    """Tells the world from when until when there is one, and how sure its node may be of it."""

    def __init__(
        self, container_id: ContainerId, world: "World", machine: Machine, session: NodeSession
    ) -> None:
        fails = world.random.random() < world.start_failures
        super().__init__(container_id, fail_at_start=StorageError("no start") if fails else None)
        self.start_seconds = world.random.expovariate(2.0)
        self.close_seconds = world.random.expovariate(2.0)
        self.shorten_seconds = world.random.expovariate(1.0)
        self.shortened = StorageError("no Tier 2") if world.random.random() < 0.1 else None
        self.process = machine.process
        self.session = session
        self._world = world
        world.hold(self)

    @property
    def is_sure(self) -> bool:
        """Whether its node may believe that it owns the container. Looks, and changes nothing."""
        lease = self.session.lease
        lasts = asyncio.get_running_loop().time() < lease._valid_until and not lease._is_lost
        return self.process is not None and self.process.alive and lasts

    async def close(self) -> None:
        await super().close()
        self._world.let_go(self)


@dataclass(slots=True)
class World:
    """Everything, and what is checked at any time."""

    loop: SimLoop
    random: Random
    coordination: SimulatedCoordination
    nodes: list[Machine] = field(default_factory=list)
    controllers: list[Machine] = field(default_factory=list)
    held: list[HeldContainer] = field(default_factory=list)
    start_failures: float = 0.0
    has_slow_leaders: bool = False
    has_late_answers: bool = False
    has_broken_ways: bool = False
    maps: int = 0
    given: int = 0

    def hold(self, container: HeldContainer) -> None:
        self.given += 1
        self.held.append(container)
        self.check_owners()

    def let_go(self, container: HeldContainer) -> None:
        if container in self.held:
            self.held.remove(container)

    def check_owners(self) -> None:
        sure: dict[ContainerId, HeldContainer] = {}
        for each in self.held:
            if each.is_sure:
                other = sure.setdefault(each.container_id, each)
                assert other is each, (
                    f"two nodes are sure of one container={each.container_id}"
                    f" {other.session.node.node_id} {each.session.node.node_id}"
                )

    def map_changed(self, path: str) -> None:
        if path != ASSIGNMENT_PATH:
            return
        self.maps += 1
        found = decode_assignment(self.coordination.values[ASSIGNMENT_PATH].value)
        epoch = decode_epoch(self.coordination.values[EPOCH_PATH].value)
        assert found.leader_epoch <= epoch, f"a map of no leader {found.leader_epoch=} {epoch=}"
        assert found.leader_epoch == epoch, (
            f"a write of a leader that is over landed {found.leader_epoch=} {epoch=}"
        )
        found.check()
        self.loop.trace("map", found.version, {c: e.node for c, e in found.containers.items()})

    # --- processes --------------------------------------------------------------------------------

    def boot(self, machine: Machine) -> None:
        run = self._run_node if machine in self.nodes else self._run_controller
        machine.session = machine.registry = None
        # The process is known to the machine before it runs for the first time.
        machine.process = self.loop.start(machine.name, run(machine))

    async def _connect(self, machine: Machine) -> SimulatedSession:
        return await SimulatedSession.connect(self.coordination, machine.network)

    async def _run_node(self, machine: Machine) -> None:
        random = Random(self.random.random())
        reach = Tier2Reach(
            answers=lambda: machine.tier2_answers,
            ask=machine.ask_tier2,
            silent_seconds=SILENT_SECONDS_MIN,
        )
        while True:
            try:
                session = await NodeSession.register(
                    partial(self._connect, machine),
                    name=machine.name,
                    http=f"{machine.name}:80",
                    wire=f"{machine.name}:81",
                    capacity=0,
                    version="1",
                    random=random,
                    on_lost=lambda: None,
                    tier2_state=lambda: reach.state,
                )
            except CoordinationUnavailableError:
                await asyncio.sleep(0.5)
                continue
            registry = ContainerRegistry(container_count=_CONTAINERS)
            machine.session, machine.registry = session, registry
            manager = ContainerManager(
                host_id=session.node.node_id,
                assignments=session.assignments,
                registry=registry,
                shorten_seconds=_SHORTEN_SECONDS,
                create_container=lambda c, session=session: HeldContainer(  # type: ignore[misc]
                    c, self, machine, session
                ),
            )
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(session.run())
                    group.create_task(manager.run())
                    if self.has_broken_ways:
                        group.create_task(reach.run())
            except* SessionLostError:
                self.loop.trace("lost", session.node.node_id)
            await session.close()

    async def _run_controller(self, machine: Machine) -> None:
        async def work(leadership: Leadership) -> None:
            self.loop.trace("leads", machine.name, leadership.epoch)
            await Assigner(leadership, container_count=_CONTAINERS, settings=_SETTINGS).run()

        await Election(
            connect=partial(self._connect, machine),
            leader=LeaderRecord(machine.name, f"{machine.name}:90"),
            work=work,
            random=Random(self.random.random()),
        ).run()

    def slow_leaders(self) -> None:
        """A leader needs seconds to read what it decides by; it stands still behind a write that comes late."""
        self.has_slow_leaders = True
        self.coordination.late_commits = 0.3
        self.coordination.on_late_commit = self._stop_this_process
        for machine in self.controllers:
            machine.network.message_seconds = 0.15

    def late_answers(self) -> None:
        """One node hears seconds later that a request had its effect, and loses the store again and again."""
        self.has_late_answers = True
        self.coordination.watch_seconds_max = 0.0
        self.nodes[0].network.message_seconds = 1.0
        self.nodes[0].network.timeout_seconds = 6.0

    def broken_ways(self) -> None:
        """Nodes lose their ways to Tier 2 for a while, each alone or all together, besides all else."""
        self.has_broken_ways = True

    def _stop_this_process(self) -> None:
        process = current_node()
        if process is not None:
            self.loop.call_soon(self.loop.pause, process, context=Context())
            self.loop.call_later(20.0, self.loop.resume, process, context=Context())

    # --- troubles ---------------------------------------------------------------------------------

    def trouble(self) -> None:
        """One fault, which is over by itself after a while; others begin meanwhile."""
        random = self.random
        machine = random.choice(self.nodes + self.controllers)
        seconds = random.choice([0.5, 3.0, 6.0, 8.0, 12.0, 20.0]) * random.uniform(0.5, 1.5)
        kind = random.choice(
            ["kill", "stop", "stop", "cut", "lose", "late", "store", "fail", "wish", "wish"]
        )
        if self.has_slow_leaders and machine in self.controllers:
            kind = random.choice(["stop", "kill", "wish", "fail"])
        if self.has_late_answers:
            machine, kind, seconds = self.nodes[0], "cut", seconds + 10.0
        if self.has_broken_ways and random.random() < 0.5:
            kind, seconds = random.choice(["way", "ways"]), seconds + SILENT_SECONDS_MIN
            machine = random.choice(self.nodes)
        self.loop.trace(kind, machine.name, f"{seconds:.1f}")
        process, network = machine.process, machine.network
        assert process is not None
        match kind:
            case "kill":
                self.loop.crash(process)
                self.held = [each for each in self.held if each.process is not process]
                self.later(
                    seconds, lambda: None if process is not machine.process else self.boot(machine)
                )
            case "stop":
                self.loop.pause(process)
                self.later(seconds, lambda: self.loop.resume(process))
            case "cut":
                network.metadata_down = True
                self.later(seconds, self._heal(machine))
            case "lose":
                network.lost_request = network.lost_answer = random.choice([0.1, 0.5])
                self.later(seconds, self._heal(machine))
            case "late":
                network.late = random.choice([0.2, 0.5])
                self.later(seconds, self._heal(machine))
            case "store":
                self._set_store(is_down=True)
                self.later(
                    min(seconds, random.choice([3.0, 15.0])), lambda: self._set_store(is_down=False)
                )
            case "way" | "ways":
                cut = [machine] if kind == "way" else self.nodes
                self._set_tier2(cut, has=False)
                self.later(seconds, lambda: self._set_tier2(cut, has=True))
            case "fail":
                self._fail_a_container()
            case _:
                self._wish()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.loop.call_later(seconds, call)

    def _heal(self, machine: Machine) -> Callable[[], None]:
        def heal() -> None:
            network = machine.network
            network.metadata_down = self.coordination.is_down
            network.lost_request = network.lost_answer = network.late = 0.0

        return heal

    def _set_tier2(self, machines: list[Machine], *, has: bool) -> None:
        for machine in machines:
            machine.has_tier2 = has

    def _set_store(self, *, is_down: bool) -> None:
        for machine in self.nodes + self.controllers:
            machine.network.metadata_down = is_down
        if is_down:
            self.coordination.is_down = True
        elif self.coordination.is_down:
            self.coordination.come_back()

    def _fail_a_container(self) -> None:
        running = [
            each
            for each in self.held
            if each._failure is not None and not each._failure.done() and each.is_sure
        ]
        if running:
            each = self.random.choice(running)
            self.loop.trace("failed", each.container_id, each.session.node.node_id)
            each.fail(StorageError("it ends by itself"))

    def _wish(self) -> None:
        random = self.random
        names = [machine.name for machine in self.nodes]
        found = self.coordination.values.get(WISHES_PATH)
        before = Wishes() if found is None else decode_wishes(found.value)
        self.wish(
            replace(
                before,
                drained=random.sample(names, random.randrange(3)),
                pinned={
                    ContainerId(random.randrange(_CONTAINERS)): random.choice(names)
                    for _ in range(random.randrange(3))
                },
                rebalance=before.rebalance + random.randrange(2),
            )
        )

    def wish(self, wishes: Wishes) -> None:
        value = encode_wishes(wishes)
        found = self.coordination.values.get(WISHES_PATH)
        version = None if found is None else found.version
        self.coordination.commit(
            [
                CreateValue(WISHES_PATH, value)
                if version is None
                else SetValue(WISHES_PATH, value, version)
            ]
        )

    # --- the end ----------------------------------------------------------------------------------

    def heal_all(self) -> None:
        self._set_store(is_down=False)
        self._set_tier2(self.nodes, has=True)
        self.start_failures = self.coordination.late_commits = 0.0
        if self.has_late_answers:
            self.nodes[0].network.message_seconds = 0.0
        for machine in self.nodes + self.controllers:
            self._heal(machine)()
            assert machine.process is not None
            self.loop.resume(machine.process)
            if not machine.process.alive:
                self.boot(machine)

    def is_converged(self) -> bool:
        found = self.coordination.values.get(ASSIGNMENT_PATH)
        if found is None:
            return False
        # One that lost its session while its answers came late tells the store of its end before it comes back.
        registered = [
            path for path in self.coordination.values if path.startswith(f"{NODES_PATH}/")
        ]
        if len(registered) < len(self.nodes):
            return False
        assignment = decode_assignment(found.value)
        for container_id, given in assignment.containers.items():
            holders = [each for each in self.held if each.container_id == container_id]
            if len(holders) != 1 or holders[0].session.node.node_id != given.node:
                return False
        running = [c for m in self.nodes if m.registry is not None for c in m.registry.running()]
        return sorted(running) == sorted(assignment.containers)

    async def converge(self) -> None:
        """Raises AssertionError if it does not, or does not stay so."""
        deadline = self.loop.time() + _CONVERGE_SECONDS_MAX
        while not self.is_converged():
            assert self.loop.time() < deadline, f"it does not converge {self.describe()}"
            await asyncio.sleep(0.5)
        # Moves that are due may follow, and end; then nothing happens any more.
        while True:
            maps, given = self.maps, self.given
            await asyncio.sleep(_QUIET_SECONDS)
            # A heartbeat that takes as long as a session costs that, now and then, though nothing fails any more.
            if (maps, given) == (self.maps, self.given) and self.is_converged():
                break
            assert self.loop.time() < deadline, f"it does not come to rest {self.describe()}"
        await self._check_view()

    async def _check_view(self) -> None:
        session = await SimulatedSession.connect(self.coordination, Network(Random(0)))
        view = ClusterView(session, container_count=_CONTAINERS, random=Random(0))
        await view.refresh()
        for each in self.held:
            assert view.owner_of(each.container_id) == each.session.node
        assert len(view.nodes()) == len(self.nodes)
        assert view.leader() is not None
        await session.close()

    def describe(self) -> str:
        values = {path: each.value for path, each in self.coordination.values.items()}
        held = [(each.container_id, each.session.node.node_id, each.state) for each in self.held]
        return f"{held=} {values=}"


async def _main(loop: SimLoop, *, seed: int, shape: Callable[[World], None] | None) -> int:
    random = Random(seed)
    coordination = SimulatedCoordination(
        Random(random.random()), watch_seconds_max=random.choice([0.0, 0.1, 4.0])
    )
    world = World(loop, random, coordination, start_failures=random.choice([0.0, 0.2]))
    coordination.on_change = world.map_changed

    def machine(name: str) -> Machine:
        network = Network(Random(random.random()), timeout_seconds=2.0)
        network.message_seconds = random.choice([0.001, 0.02])
        return Machine(name, network)

    world.nodes += [machine(f"n{number}") for number in range(3)]
    world.controllers += [machine(f"c{number}") for number in range(2)]
    if shape is not None:
        shape(world)
    for each in world.nodes + world.controllers:
        world.boot(each)
    loop.watch(50, world.check_owners)
    mean = random.choice([1.0, 3.0, 10.0])
    while loop.time() < _FAULT_SECONDS:
        await asyncio.sleep(random.expovariate(1 / mean))
        world.trouble()
    await asyncio.sleep(40.0)  # the last of them is over
    world.heal_all()
    world.wish(replace(_without_drains(world), retries={}))
    await world.converge()
    for each in world.nodes + world.controllers:
        assert each.process is not None
        loop.crash(each.process)
    return world.maps


def _without_drains(world: World) -> Wishes:
    found = world.coordination.values.get(WISHES_PATH)
    return Wishes() if found is None else replace(decode_wishes(found.value), drained=())


def live(seed: int, *, shape: Callable[[World], None] | None = None, verbose: bool = False) -> int:
    """How many maps were written. Raises AssertionError, SimulationError."""
    world = partial(_main, seed=seed, shape=shape)
    return run_simulation(seed, world, verbose=verbose).result


def main() -> None:
    """Play one seed again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    values = parser.parse_args()
    for seed in range(values.seed, values.seed + values.count):
        sys.stdout.write(f"seed={seed} maps={live(seed, verbose=values.verbose)}\n")


if __name__ == "__main__":
    main()
