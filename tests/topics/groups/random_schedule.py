"""A process with groups, killed now and then, and consumers that join, fall silent, die, come back and commit late.

What is looked at while it goes on:

- Of each generation there is one leader, who alone is told the members, and once; the generation never goes back.
- Each member of a generation gets the part that the leader of that generation made for it, and no other.
- An offset is only submitted for a member of the generation of that moment.
- An offset that was acknowledged is there after a kill, or a later one is.
- A static member that starts again has the part of its former self, or takes part in another generation.

Two of the consumers are static members. What a leader made for one of them is for its instance id, which stays.

Offsets are made of the number of the process, the generation, and a counter, so that each tells where it comes from.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from segmentstore.contracts.tables import Table, TableApi, TableEntry
from segmentstore.topics.groups.committed_offsets import (
    TopicPartition,
    decode_key,
    decode_value,
)
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import GroupState, Joined, JoinRequest, Protocol
from segmentstore.topics.groups.groups import Groups, OffsetToCommit
from segmentstore.topics.groups.settings import GroupSettings
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.node import Node, NodeDiedError

Result = TypeVar("Result")

GROUP = "group"
TOPIC_ID = UUID(int=7)
PLACES = [TopicPartition("topic", number) for number in range(3)]
SESSION_SECONDS = 6.0
REBALANCE_SECONDS = 20.0
_GENERATIONS = 100_000
_COUNTER = 100_000
STATIC = ("static-2", "static-3")
"""Instance ids: of the third and the fourth consumer."""
_RANDOM_LENGTH = 37
"""Of a member id: a hyphen and a UUID."""


class Clock:
    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


class SlowTables:
    """Tables behind a log that takes its time: in order, and what was not written when the process died is lost."""

    def __init__(self, world: "World", tables: TableApi) -> None:
        self._world = world
        self._tables = tables
        self._newest: Future[Any] | None = None

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._open(name)

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        # Longer than a session, now and then: the caller may be no member any more when it goes on.
        longest = 0.5 if self._world.is_calm else 8.0
        await asyncio.sleep(self._world.random.choice([0.0, 0.0, 0.001, 0.5, longest]))
        async with self._tables.open_table(name) as table:
            yield SubmittingTable(table, partial(self.submit, table))  # type: ignore[misc]

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await self._tables.create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        raise AssertionError("no table is deleted")

    def submit(self, table: Table, entries: Sequence[TableEntry]) -> "Future[Sequence[int]]":
        self._world.note_submitted(entries)
        before = self._newest
        seconds = self._world.random.expovariate(20)

        async def write() -> Sequence[int]:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await asyncio.sleep(seconds)
            return await table.update(entries)

        self._newest = asyncio.ensure_future(write())
        return self._newest


class SubmittingTable:
    """What groups use of a table, whose updates go another way."""

    def __init__(
        self, table: Table, update: "Callable[[Sequence[TableEntry]], Future[Sequence[int]]]"
    ) -> None:
        self.get_nowait = table.get_nowait
        self.get = table.get
        self.read_keys = table.read_keys
        self.confirm = table.confirm
        self.update = update


class World:
    """The process of the moment, and all that its consumers were told."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.tables = MemoryTables()
        self.process = 0
        self.node: Node
        self.groups: Groups
        self.counter = 0
        self.leaders: dict[tuple[int, int], str] = {}
        self.parts: dict[tuple[int, int, str], bytes] = {}
        self.submitted: list[int] = []
        self.acknowledged: dict[TopicPartition, int] = {}
        self.newest_generation = 0
        self.is_calm = False
        self.seen: dict[str, int] = {}
        """How often each kind of thing happened."""
        loop.watch(7, self._look)

    def boot(self) -> None:
        self.tables = self.tables.restarted()
        self.process += 1
        self.newest_generation = 0
        self.groups = Groups(
            tables=SlowTables(self, self.tables),
            wall_clock=Clock(),
            random=Random(self.random.random()),
            topic_id_of=lambda name: TOPIC_ID if name == "topic" else None,
            settings=GroupSettings(
                initial_rebalance_delay_seconds=self.random.choice([0.0, 0.3, 3.0])
            ),
        )
        self.node = self.loop.start("groups", self._live(self.groups))

    async def _live(self, groups: Groups) -> None:
        await groups.start()
        await groups.run()

    async def invoke(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await self.loop.invoke(self.node, work)

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def _look(self) -> None:
        if not self.process or not self.node.alive:
            return
        group = self.groups._groups.get(GROUP)
        if group is not None:
            group.check()
            assert group.generation >= self.newest_generation, "a generation went back"
            self.newest_generation = group.generation

    # --- what is told and checked -----------------------------------------------------------------

    def note_joined(self, process: int, joined: Joined) -> None:
        key = (process, joined.generation)
        leader = _who(joined.leader)
        assert self.leaders.setdefault(key, leader) == leader, "two leaders"
        assert bool(joined.members) == (joined.leader == joined.member_id), "who leads is unclear"
        if joined.members and not joined.skip_assignment:
            names = [each.member_id for each in joined.members]
            assert joined.member_id in names, "the leader is no member"
            for each in names:
                part = (process, joined.generation, _who(each))
                assert part not in self.parts, "a leader is told twice"
                self.parts[part] = b"%d/%d/%s" % (process, joined.generation, _who(each).encode())
        self.count("joined")

    def assignments(self, process: int, joined: Joined) -> Mapping[str, bytes]:
        if joined.skip_assignment:
            self.count("assignment skipped")
            return {}
        return {
            each.member_id: self.parts[process, joined.generation, _who(each.member_id)]
            for each in joined.members
        }

    def note_assigned(self, process: int, joined: Joined, assignment: bytes) -> None:
        expected = self.parts.get((process, joined.generation, _who(joined.member_id)))
        assert assignment == expected, f"not its part {assignment!r} {expected!r}"
        self.count("assigned")

    def next_offset(self, process: int, generation: int) -> int:
        self.counter += 1
        return (process * _GENERATIONS + generation) * _COUNTER + self.counter

    def note_submitted(self, entries: Sequence[TableEntry]) -> None:
        shown = self.groups.describe(GROUP)
        for entry in entries:
            assert decode_key(entry.key)[0] == GROUP
            offset = decode_value(entry.value)
            process, generation = divmod(offset.offset // _COUNTER, _GENERATIONS)
            assert process == self.process, "an offset of a dead process"
            assert generation == shown.generation, "an offset of an old generation"
            assert shown.state is not GroupState.COMPLETING, "an offset between two assignments"
            assert offset.metadata in [each.member_id for each in shown.members], "of a stranger"
            self.submitted.append(offset.offset)

    async def check_offsets(self) -> None:
        while not self.groups._is_loaded:
            await asyncio.sleep(0.1)
        before = dict(self.acknowledged)
        found = await self.invoke(self.groups.committed(GROUP))
        for place, offset in before.items():
            assert place in found, f"an offset is lost {place}"
            order = self.submitted.index
            assert order(found[place].offset) >= order(offset), f"an offset is old {place}"


def _who(member_id: str) -> str:
    """Whose id it is: of a static member its instance id, of another the id itself."""
    name = member_id[:-_RANDOM_LENGTH]
    return name if name in STATIC else member_id


class Consumer:
    """One client. While the world is not calm it does whatever clients do when things go wrong."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._random = world.random
        self._name = name
        self._instance_id = name if name in STATIC else None
        self._member_id = ""
        self.generation = 0
        self.process = 0
        self._before: list[tuple[int, str, int]] = []
        """Memberships of before: process, member id, generation."""

    async def run(self) -> None:
        while True:
            try:
                await self._one_membership()
            except NodeDiedError:
                await asyncio.sleep(0.2)
            except GroupError as error:
                await self._after(error)
            except TimeoutError:
                self._world.count("connection lost")

    async def _after(self, error: GroupError) -> None:
        self._world.count(error.problem.name)
        match error.problem:
            case GroupProblem.MEMBER_ID_REQUIRED:
                self._member_id = error.member_id
            case GroupProblem.UNKNOWN_MEMBER_ID | GroupProblem.FENCED_INSTANCE_ID:
                self._member_id = ""
            case GroupProblem.ILLEGAL_GENERATION | GroupProblem.REBALANCE_IN_PROGRESS:
                pass
            case _:
                await asyncio.sleep(0.1)

    def _now_and_then(self, share: float) -> bool:
        return not self._world.is_calm and self._random.random() < share

    async def _one_membership(self) -> None:
        world, groups, process = self._world, self._world.groups, self._world.process
        request = self._request()
        joined = await self._perhaps_cut_off(groups.join(GROUP, request))
        world.note_joined(process, joined)
        if self._instance_id is not None and not request.member_id and self._before:
            world.count("started again")
            if self._before[-1][::2] == (process, joined.generation):
                world.count("came back without a rebalance")
        self._member_id = joined.member_id
        self._before.append((process, joined.member_id, joined.generation))
        if self._now_and_then(0.2):
            await asyncio.sleep(self._random.choice([0.1, 5.0, 30.0]))
        assignment = await self._perhaps_cut_off(
            groups.sync(
                GROUP,
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=world.assignments(process, joined),
                instance_id=self._instance_id,
            )
        )
        world.note_assigned(process, joined, assignment)
        self.process, self.generation = process, joined.generation
        while True:
            await asyncio.sleep(self._random.uniform(0.1, 2.0))
            await self._heartbeat(joined)
            if self._random.random() < 0.5:
                await self._commit(process, joined.member_id, joined.generation)
            await self._mischief(joined)

    def _request(self) -> JoinRequest:
        tag = self._random.choice([b"1", b"1", b"2"]) if not self._world.is_calm else b"1"
        return JoinRequest(
            member_id=self._member_id,
            client_id=self._name,
            client_host="",
            session_timeout_ms=round(SESSION_SECONDS * 1000),
            rebalance_timeout_ms=round(REBALANCE_SECONDS * 1000),
            protocol_type="consumer",
            protocols=[Protocol("range", tag)],
            requires_known_id=self._random.random() < 0.7,
            instance_id=self._instance_id,
            can_skip_assignment=self._random.random() < 0.5,
        )

    async def _heartbeat(self, joined: Joined) -> None:
        async def beat() -> None:
            self._world.groups.heartbeat(
                GROUP,
                member_id=joined.member_id,
                generation=joined.generation,
                instance_id=self._instance_id,
            )

        await self._world.invoke(beat())

    async def _commit(self, process: int, member_id: str, generation: int) -> None:
        world = self._world
        place = self._random.choice(PLACES)
        offset = world.next_offset(process, generation)
        commit = world.groups.commit(
            GROUP,
            member_id=member_id,
            generation=generation,
            offsets={place: OffsetToCommit(offset=offset, metadata=member_id)},
            instance_id=self._instance_id,
        )
        refused = await world.invoke(commit)
        assert not refused, refused
        world.count("committed")
        # Answers may overtake one another on their way.
        known = world.acknowledged.get(place, offset)
        world.acknowledged[place] = max(offset, known, key=world.submitted.index)

    async def _mischief(self, joined: Joined) -> None:
        if self._now_and_then(0.1):
            self._world.count("silent")
            await asyncio.sleep(self._random.uniform(1.0, 3 * SESSION_SECONDS))
        if self._now_and_then(0.1):
            await self._as_a_zombie()
        if self._now_and_then(0.05):
            self._world.count("left")
            await self._leave(joined)
            self._member_id = ""
            raise TimeoutError
        if self._now_and_then(0.05):
            self._world.count("died")
            self._member_id = ""
            raise TimeoutError

    async def _leave(self, joined: Joined) -> None:
        async def leave() -> None:
            self._world.groups.leave(
                GROUP, member_id=joined.member_id, instance_id=self._instance_id
            )

        await self._world.invoke(leave())

    async def _as_a_zombie(self) -> None:
        """A membership of before commits, and brings assignments."""
        process, member_id, generation = self._random.choice(self._before)
        if process != self._world.process:
            return
        with self._counting_refusals():
            await self._commit(process, member_id, generation)
        with self._counting_refusals():
            stale = b"stale %d" % generation
            sync = self._world.groups.sync(
                GROUP,
                member_id=member_id,
                generation=generation,
                assignments={each: stale for *_, each in self._world.parts},
                instance_id=self._instance_id,
            )
            await self._perhaps_cut_off(sync)
        self._world.count("zombie")

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except GroupError as error:
            self._world.count(error.problem.name)

    async def _perhaps_cut_off(self, work: Coroutine[Any, Any, Result]) -> Result:
        if not self._now_and_then(0.15):
            return await self._world.invoke(work)
        async with asyncio.timeout(self._random.choice([0.0, 0.01, 1.0, 10.0])):
            return await self._world.invoke(work)


async def one_schedule(loop: SimLoop, seed: int) -> Mapping[str, int]:
    """Some minutes of trouble, then calm: in the end all consumers share one generation."""
    world = World(loop, seed)
    world.boot()
    names = ("consumer-0", "consumer-1", *STATIC)
    consumers = [Consumer(world, each) for each in names]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in consumers]
        for _ in range(4):
            await asyncio.sleep(world.random.uniform(5.0, 60.0))
            if world.random.random() < 0.5:
                loop.crash(world.node)
                world.boot()
                world.count("killed")
                await asyncio.sleep(1.0)
                await world.check_offsets()
        world.is_calm = True
        await asyncio.sleep(4 * (SESSION_SECONDS + REBALANCE_SECONDS) + 60.0)
        shown = world.groups.describe(GROUP)
        assert shown.state is GroupState.STABLE, shown
        assert len(shown.members) == len(consumers), shown
        assert {(each.process, each.generation) for each in consumers} == {
            (world.process, shown.generation)
        }
        for each in running:
            each.cancel()
    await world.check_offsets()
    loop.crash(world.node)
    return world.seen
