"""Consumers of one group while the container of the offsets moves between processes, and takes no members along.

Consumers ask the process that they believe to coordinate: each believes what it heard last, and looks again when it is
told so. A process that lost the container goes on for a while: it reads the table as it was when it lost it, and what
it writes is refused by the log, late. Commits and questions are under way while the container moves. Processes are
started again.

Invariants:

- An offset that was acknowledged is never lost, and never set back: every later question that is answered shows it, or
  one that was submitted behind it.
- Of one generation of one coordinator no two members own a partition; each owns what the leader of it gave.
- A process that has not got the container acknowledges nothing and tells no offset.
- In calm all consumers are in one generation of the process that has the container, and all partitions are owned.
"""

import asyncio
from asyncio import Future, Task
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any, Final

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.tables import Table, TableEntry
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE, TopicPartition
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import GroupState, Joined, JoinRequest, Protocol
from segmentstore.topics.groups.groups import Groups, OffsetToCommit
from segmentstore.topics.topics import Topics
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.topics.groups.random_schedule import SubmittingTable
from tests.topics.several_processes import Process, Processes

GROUP: Final = "group"
PROCESSES: Final = 3
PLACES: Final = [TopicPartition("t", number) for number in range(12)]
SESSION_SECONDS: Final = 6.0
REBALANCE_SECONDS: Final = 10.0
ROUNDS: Final = 25


class FencedTables:
    """The table of offsets as one process has it: the present one, or behind a loss what was there then."""

    def __init__(self, world: "World", process: Process) -> None:
        self._world = world
        self._process = process
        self._newest: Future[Any] | None = None
        self._as_lost: MemoryTables | None = None

    def lose(self) -> None:
        """The container moves: from now on it knows no more than it does now."""
        if self._process.is_here(OFFSETS_TABLE):
            self._as_lost = self._world.store.tables.restarted()

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        await asyncio.sleep(self._world.random.choice([0.0, 0.0, 0.001, 0.3]))
        tables = self._world.store.tables
        if not self._process.is_here(OFFSETS_TABLE):
            if self._as_lost is None:
                self._process.require(OFFSETS_TABLE)
                raise AssertionError("it is not here")
            tables = self._as_lost
        async with tables.open_table(name) as table:
            yield SubmittingTable(table, self.submit)  # type: ignore[misc]

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._open(name)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        self._process.require(name)
        await self._world.store.tables.create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        raise AssertionError("no table is deleted")

    def submit(self, entries: Sequence[TableEntry]) -> "Future[Sequence[int]]":
        before, seconds = self._newest, self._world.random.expovariate(5)

        async def write() -> Sequence[int]:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await asyncio.sleep(seconds)
            if not self._process.is_here(OFFSETS_TABLE):
                self._world.seen["refused by the log"] += 1
                raise ContainerStoppedError("another process has the log")
            async with self._world.store.tables.open_table(OFFSETS_TABLE) as table:
                return await table.update(entries)

        self._newest = asyncio.ensure_future(write())
        return self._newest


class Coordinator:
    """A process, and a run of its groups for as long as it has the container and has noticed nothing else."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.process: Process = world.store.processes[number]
        self.topics: Topics
        self.groups: Groups
        self.run_number = 0
        self._running: Task[None] | None = None
        self._is_lost = False

    async def boot(self) -> None:
        self.process = self.world.store.processes[self.number]
        self.topics = self.world.store.topics(self.process)
        await self.topics.start()
        self._new_groups()

    def _new_groups(self) -> None:
        self.tables = FencedTables(self.world, self.process)
        self.groups = self.world.store.groups(
            self.process, self.topics, OFFSETS_TABLE, tables=self.tables
        )

    def lose(self) -> None:
        self.groups.lose()
        self._is_lost = True

    async def notice(self) -> None:
        """What a supervisor does when containers come and go."""
        is_here = self.process.is_here(OFFSETS_TABLE)
        if self._running is not None and (self._running.done() or self._is_lost):
            await self.stop()
        if is_here and self._running is None:
            self.world.runs += 1
            self.run_number = self.world.runs
            self._is_lost = False
            self._running = asyncio.ensure_future(self._run())
        elif not is_here and self._running is not None:
            await self.stop()

    async def _run(self) -> None:
        await self.topics.refresh()
        await self.groups.start()
        await self.groups.run()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        await self.groups.close()

    async def restart(self) -> None:
        """It forgets everything; another process has its place."""
        self.world.store.restart(self.number)
        await self.stop()
        await self.topics.close()
        await self.boot()


class World:
    """The processes, the consumers, and what these were told."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Processes(PROCESSES, seed=seed)
        self.coordinators = [Coordinator(self, number) for number in range(PROCESSES)]
        self.runs = 0
        self.counter = 0
        self.acknowledged: dict[TopicPartition, int] = {}
        """Offsets grow with each commit of any consumer, so a lower one is an older one."""
        self.owned: dict[tuple[int, int], dict[int, str]] = {}
        """By run of a coordinator and generation: the owner of each partition."""
        self.is_calm = False
        self.seen: Counter[str] = Counter()

    async def start(self) -> None:
        for each in self.coordinators:
            await each.boot()
        await self.coordinators[0].topics.create("t", len(PLACES), {})
        for each in self.coordinators:
            await each.topics.refresh()
            await each.notice()

    def move(self, number: int | None) -> None:
        if number == self.owner():
            return
        for each in self.coordinators:
            each.tables.lose()
        if number is not None:
            # A container begins in a process behind its end there, of which the process was told at once.
            self.coordinators[number].lose()
        self.store.move(OFFSETS_TABLE, number)

    def owner(self) -> int | None:
        return self.store.owner_of(OFFSETS_TABLE)

    def note_owned(self, run: int, joined: Joined, assignment: bytes) -> None:
        owned = self.owned.setdefault((run, joined.generation), {})
        for partition in assignment:
            before = owned.setdefault(partition, joined.member_id)
            assert before == joined.member_id, f"two members own {partition=} {joined.generation=}"
        self.seen["assigned"] += 1

    async def look(self) -> None:
        """Any process may be asked for what is committed."""
        coordinator = self.random.choice(self.coordinators)
        known = dict(self.acknowledged)
        try:
            found = await coordinator.groups.committed(GROUP)
        except GroupError as error:
            self.seen[f"not told {error.problem.name}"] += 1
            return
        for place, offset in known.items():
            assert place in found, f"an acknowledged offset is lost {place}"
            assert found[place].offset >= offset, f"set back {place} {found[place]} {offset=}"
        self.seen["told"] += 1

    async def trouble(self) -> None:
        choice = self.random.random()
        if choice < 0.35:
            self.move(self.random.choice([None, *range(PROCESSES)]))
            self.seen["moved"] += 1
        elif choice < 0.45:
            await self.random.choice(self.coordinators).restart()
            self.seen["restarted"] += 1
        elif choice < 0.7:
            await self.random.choice(self.coordinators).notice()
        else:
            await self.look()


class Consumer:
    """One client: joins, commits, and looks for the coordinator whenever it is told to, or not answered."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._random = world.random
        self._name = name
        self._member_id = ""
        self._believed = 0
        self.place: tuple[int, int] | None = None
        """Run and generation that it is in."""
        self.owned: bytes = b""

    async def run(self) -> None:
        while True:
            coordinator = self._world.coordinators[self._believed]
            try:
                async with asyncio.timeout(3 * REBALANCE_SECONDS):
                    joined = await self._joined(coordinator)
                while True:
                    await asyncio.sleep(self._random.uniform(0.1, 2.0))
                    await self._live(coordinator, joined)
            except GroupError as error:
                self._after(error)
            except TimeoutError:
                self._world.seen["not answered"] += 1
            self.place = None
            await asyncio.sleep(0.2)

    def _after(self, error: GroupError) -> None:
        self._world.seen[error.problem.name] += 1
        match error.problem:
            case GroupProblem.NOT_COORDINATOR | GroupProblem.COORDINATOR_NOT_AVAILABLE:
                owner = self._world.owner()
                is_told = owner is not None and self._random.random() < 0.8
                self._believed = owner if is_told and owner is not None else self._any()
            case GroupProblem.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            case _:
                pass

    def _any(self) -> int:
        return self._random.randrange(PROCESSES)

    async def _joined(self, coordinator: Coordinator) -> Joined:
        world, run = self._world, coordinator.run_number
        joined = await coordinator.groups.join(
            GROUP,
            JoinRequest(
                member_id=self._member_id,
                client_id=self._name,
                client_host="",
                session_timeout_ms=round(SESSION_SECONDS * 1000),
                rebalance_timeout_ms=round(REBALANCE_SECONDS * 1000),
                protocol_type="consumer",
                protocols=[Protocol("range", b"")],
                requires_known_id=False,
            ),
        )
        self._member_id = joined.member_id
        members = [each.member_id for each in joined.members]
        parts: dict[str, list[int]] = {each: [] for each in members}
        for number, place in enumerate(PLACES if members else []):
            parts[members[number % len(members)]].append(place.partition)
        if not world.is_calm and self._random.random() < 0.1:
            await asyncio.sleep(self._random.uniform(0.0, 2 * SESSION_SECONDS))
        self.owned = await coordinator.groups.sync(
            GROUP,
            member_id=joined.member_id,
            generation=joined.generation,
            assignments={each: bytes(part) for each, part in parts.items()},
        )
        world.note_owned(run, joined, self.owned)
        self.place = (run, joined.generation)
        return joined

    async def _live(self, coordinator: Coordinator, joined: Joined) -> None:
        world = self._world
        coordinator.groups.heartbeat(
            GROUP, member_id=joined.member_id, generation=joined.generation
        )
        if self.owned:
            await self._commit(coordinator, joined)
        if not world.is_calm and self._random.random() < 0.05:
            world.seen["silent"] += 1
            await asyncio.sleep(self._random.uniform(1.0, 2 * SESSION_SECONDS))

    async def _commit(self, coordinator: Coordinator, joined: Joined) -> None:
        world = self._world
        place = PLACES[self._random.choice(self.owned)]
        world.counter += 1
        offset = world.counter
        moving: Task[None] | None = None
        if not world.is_calm and self._random.random() < 0.15:
            moving = asyncio.ensure_future(self._move_now())
        try:
            refused = await coordinator.groups.commit(
                GROUP,
                member_id=joined.member_id,
                generation=joined.generation,
                offsets={place: OffsetToCommit(offset=offset)},
            )
        finally:
            if moving is not None:
                await moving
        assert not refused, refused
        world.acknowledged[place] = max(offset, world.acknowledged.get(place, 0))
        world.seen["committed"] += 1

    async def _move_now(self) -> None:
        """While a commit is under way."""
        await asyncio.sleep(self._random.random() * 0.3)
        if not self._world.is_calm:
            self._world.move(self._random.randrange(PROCESSES))
            self._world.seen["moved under way"] += 1


async def one_schedule(loop: SimLoop, seed: int) -> Counter[str]:
    """What happened, by word."""
    del loop
    world = World(seed)
    await world.start()
    consumers = [Consumer(world, f"consumer-{number}") for number in range(4)]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in consumers]
        for _ in range(ROUNDS):
            await asyncio.sleep(world.random.uniform(0.1, 8.0))
            await world.trouble()
        world.is_calm = True
        world.move(seed % PROCESSES)
        for each in world.coordinators:
            await each.stop()  # each notices, and begins anew where the container is
            await each.notice()
        await asyncio.sleep(6 * (SESSION_SECONDS + REBALANCE_SECONDS))
        places = {each.place for each in consumers}
        assert len(places) == 1, f"not in one generation {places}"
        owned = sorted(b"".join(each.owned for each in consumers))
        assert owned == [each.partition for each in PLACES], f"{owned=} {places=}"
        shown = world.coordinators[seed % PROCESSES].groups.describe(GROUP)
        assert shown.state is GroupState.STABLE, shown
        for task in running:
            task.cancel()
    found = await world.coordinators[seed % PROCESSES].groups.committed(GROUP)
    for place, offset in world.acknowledged.items():
        assert found[place].offset >= offset, f"{place} {offset=}"
    for each in world.coordinators:
        await each.stop()
        await each.topics.close()
    return world.seen
