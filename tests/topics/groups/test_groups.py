"""Groups over tables: requests that wait, time-outs by the loop's clock, offsets, deletion and expiry."""

import asyncio
from asyncio import Future, Task
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import UUID

import pytest

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.tables import TableEntry
from segmentstore.topics.errors import TopicsUnavailableError
from segmentstore.topics.groups.committed_offsets import TopicPartition
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import Group, GroupState, Joined, JoinRequest, Protocol
from segmentstore.topics.groups.groups import GroupListing, Groups, OffsetToCommit
from segmentstore.topics.groups.settings import GroupSettings
from tests.reference.memory_tables import MemoryTable, MemoryTables
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

PLACE = TopicPartition("topic", 0)
ONE = {PLACE: OffsetToCommit(offset=1, metadata="m")}
SESSION = 10.0


class Clock:
    def now_ms(self) -> int:
        return 5


class World:
    """Tables that outlive a process, and the topics that exist."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.topics = {"topic": UUID(int=1), "other": UUID(int=2)}
        """That are known here."""
        self.made_elsewhere: dict[str, UUID] = {}
        self.catalogue_is_away = False

    async def refresh_topics(self) -> None:
        await asyncio.sleep(0)
        if self.catalogue_is_away:
            raise TopicsUnavailableError("away")
        self.topics |= self.made_elsewhere

    def groups(self, settings: GroupSettings | None = None) -> Groups:
        return Groups(
            tables=self.tables,
            wall_clock=Clock(),
            random=Random(3),
            topic_id_of=self.topics.get,
            refresh_topics=self.refresh_topics,
            settings=settings or GroupSettings(initial_rebalance_delay_seconds=0.0),
        )

    @asynccontextmanager
    async def running(self, settings: GroupSettings | None = None) -> AsyncIterator[Groups]:
        groups = self.groups(settings)
        await groups.start()
        run = asyncio.ensure_future(groups.run())
        try:
            yield groups
            await asyncio.sleep(0.001)
            groups.check()
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await groups.close()
            self.tables = self.tables.restarted()


def a_request(member_id: str = "", *, known: bool = False) -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=round(SESSION * 1000),
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[Protocol("range", b"")],
        requires_known_id=known,
    )


def simulated(work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    run_simulation(1, lambda loop: work(World()))


async def problem_of(work: Awaitable[object]) -> GroupProblem:
    with pytest.raises(GroupError) as refused:
        await work
    return refused.value.problem


def problem_in(step: Callable[[], object]) -> GroupProblem:
    with pytest.raises(GroupError) as refused:
        step()
    return refused.value.problem


async def commit(
    groups: Groups, group: str = "g", *, member_id: str = "", generation: int = -1
) -> None:
    refused = await groups.commit(group, member_id=member_id, generation=generation, offsets=ONE)
    assert not refused


async def a_stable_member(groups: Groups, group: str = "g") -> Joined:
    joined = await groups.join(group, a_request())
    part = await groups.sync(
        group,
        member_id=joined.member_id,
        generation=joined.generation,
        assignments={joined.member_id: b"all"},
    )
    assert part == b"all"
    return joined


def test_answers_to_many_members_take_no_look_at_all_members_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    next_deadline = Group.next_deadline

    def counted(group: Group) -> float:
        nonlocal looks
        looks += 1
        return next_deadline(group)

    async def work(world: World) -> None:
        nonlocal looks
        settings = GroupSettings(initial_rebalance_delay_seconds=1.0)
        async with world.running(settings) as groups:
            joining = [asyncio.ensure_future(groups.join("g", a_request())) for _ in range(100)]
            await asyncio.sleep(0.5)
            monkeypatch.setattr(Group, "next_deadline", counted)
            members = await asyncio.gather(*joining)
            leader, *others = sorted(members, key=lambda each: each.member_id != each.leader)

            async def sync(member: Joined, assignments: dict[str, bytes]) -> bytes:
                return await groups.sync(
                    "g",
                    member_id=member.member_id,
                    generation=member.generation,
                    assignments=assignments,
                )

            assert looks < 10
            waiting = [asyncio.ensure_future(sync(each, {})) for each in others]
            await asyncio.sleep(0.001)
            looks = 0
            await sync(leader, {each.member_id: b"part" for each in members})
            assert await asyncio.gather(*waiting) == [b"part"] * len(others)
            assert looks < 10

    simulated(work)


def test_a_member_joins_is_assigned_commits_and_leaves() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            joined = await a_stable_member(groups)
            assert joined.member_id.startswith("client-")
            groups.heartbeat("g", member_id=joined.member_id, generation=1)
            await commit(groups, member_id=joined.member_id, generation=1)
            assert groups.describe("g").state is GroupState.STABLE
            assert groups.listing() == [GroupListing("g", "consumer", GroupState.STABLE)]
            assert await problem_of(groups.delete("g")) is GroupProblem.NON_EMPTY_GROUP
            groups.leave("g", member_id=joined.member_id)
            assert groups.describe("g").state is GroupState.EMPTY
            found = await groups.committed("g")
            assert (found[PLACE].offset, found[PLACE].metadata) == (1, "m")
            assert found[PLACE].commit_time_ms == 5
            await groups.delete("g")
            assert groups.listing() == []
            assert await groups.committed("g") == {}
            assert await problem_of(groups.delete("g")) is GroupProblem.GROUP_ID_NOT_FOUND

    simulated(work)


def test_a_second_member_waits_for_the_first_to_hear_of_it() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            first = await a_stable_member(groups)
            second = asyncio.ensure_future(groups.join("g", a_request()))
            await asyncio.sleep(3)
            assert not second.done()
            again = problem_in(
                lambda: groups.heartbeat("g", member_id=first.member_id, generation=1)
            )
            assert again is GroupProblem.REBALANCE_IN_PROGRESS
            rejoined = await groups.join("g", a_request(first.member_id))
            assert (await second).generation == rejoined.generation == 2
            waits = asyncio.ensure_future(
                groups.sync("g", member_id=(await second).member_id, generation=2, assignments={})
            )
            await asyncio.sleep(1)
            await groups.sync(
                "g",
                member_id=first.member_id,
                generation=2,
                assignments={(await second).member_id: b"x"},
            )
            assert await waits == b"x"

    simulated(work)


def test_a_new_member_is_told_its_id_first() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            with pytest.raises(GroupError) as refused:
                await groups.join("g", a_request(known=True))
            assert refused.value.problem is GroupProblem.MEMBER_ID_REQUIRED
            joined = await groups.join("g", a_request(refused.value.member_id, known=True))
            assert joined.member_id == refused.value.member_id
            with pytest.raises(GroupError):
                await groups.join("h", a_request(known=True))
            assert [each.group_id for each in groups.listing()] == ["g", "h"]
            # An id that is not used is not kept for longer than a session, nor is its group.
            await asyncio.sleep(SESSION)
            await asyncio.sleep(0.001)
            assert groups.listing() == []

    simulated(work)


def test_a_silent_member_is_removed_when_its_session_is_over() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            joined = await a_stable_member(groups)
            for _ in range(3):
                await asyncio.sleep(SESSION - 0.001)
                groups.heartbeat("g", member_id=joined.member_id, generation=1)
            await asyncio.sleep(SESSION + 0.001)
            assert groups.describe("g").state is GroupState.DEAD

    simulated(work)


def test_a_request_whose_connection_is_gone_leaves_a_member_for_a_session() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            first = await a_stable_member(groups)
            gone = asyncio.ensure_future(groups.join("g", a_request()))
            await asyncio.sleep(1)
            gone.cancel()
            await asyncio.sleep(0)
            rejoined = await groups.join("g", a_request(first.member_id))
            assert asyncio.get_running_loop().time() == pytest.approx(1 + SESSION, abs=0.1)
            assert len(rejoined.members) == 1
            assert groups.statistics().waiting_requests == 0

    simulated(work)


def test_the_first_generation_waits_for_others_that_start() -> None:
    async def work(world: World) -> None:
        async with world.running(GroupSettings(initial_rebalance_delay_seconds=0.5)) as groups:
            first = asyncio.ensure_future(groups.join("g", a_request()))
            await asyncio.sleep(0.25)
            second = await groups.join("g", a_request())
            assert (await first).generation == second.generation == 1
            assert asyncio.get_running_loop().time() == pytest.approx(0.75, abs=0.01)

    simulated(work)


def test_members_are_strangers_after_a_restart_and_offsets_are_there() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            joined = await a_stable_member(groups)
            await commit(groups, member_id=joined.member_id, generation=1)
        async with world.running() as groups:
            assert [each.group_id for each in groups.listing()] == ["g"]
            stranger = GroupProblem.UNKNOWN_MEMBER_ID
            member = joined.member_id
            beat = problem_in(lambda: groups.heartbeat("g", member_id=member, generation=1))
            assert beat is stranger
            assert await problem_of(commit(groups, member_id=member, generation=1)) is stranger
            assert await problem_of(groups.join("g", a_request(member))) is stranger
            assert (await groups.committed("g"))[PLACE].offset == 1
            assert (await a_stable_member(groups)).generation == 1

    simulated(work)


def test_members_of_a_group_without_offsets_keep_their_ids_over_a_restart() -> None:
    """Workers of Kafka Connect commit nothing, and wait minutes for those of them that seem to have gone."""

    async def work(world: World) -> None:
        settings = GroupSettings(former_members_seconds=60, former_rebalance_delay_seconds=6)
        async with world.running(settings) as groups:
            before = await asyncio.gather(*(groups.join("g", a_request()) for _ in range(2)))
        async with world.running(settings) as groups:
            again, stranger = GroupProblem.REBALANCE_IN_PROGRESS, GroupProblem.UNKNOWN_MEMBER_ID
            one, other = [each.member_id for each in before]

            def beat_of(member: str) -> GroupProblem:
                return problem_in(lambda: groups.heartbeat("g", member_id=member, generation=7))

            assert beat_of(one) is again
            assert groups.listing() == []
            first = asyncio.ensure_future(groups.join("g", a_request(one)))
            # The other one has stopped its work before it comes.
            await asyncio.sleep(5)
            assert [beat_of(one), beat_of(other)] == [again, again]
            second = await groups.join("g", a_request(other))
            assert [(await first).member_id, second.member_id] == [one, other]
            assert (await first).generation == second.generation == 1
            assert len((await first).members) == 2
            assert beat_of("late") is again
            await asyncio.sleep(60)
            assert beat_of("later") is stranger
            assert await problem_of(groups.join("g", a_request("later"))) is stranger

    simulated(work)


def test_a_member_that_heartbeats_while_others_join_stays_a_member_also_behind_a_start() -> None:
    """It is still at work, and has the whole time of a rebalance for that, not of a session."""

    async def work(world: World) -> None:
        async with world.running() as groups:
            busy = await groups.join("g", a_request())
            await groups.sync("g", member_id=busy.member_id, generation=1, assignments={})
            joining = asyncio.ensure_future(groups.join("g", a_request()))
            for _ in range(15):
                await asyncio.sleep(1)
                problem = problem_in(
                    lambda: groups.heartbeat("g", member_id=busy.member_id, generation=1)
                )
                assert problem is GroupProblem.REBALANCE_IN_PROGRESS
            assert not joining.done()
            again = await groups.join("g", a_request(busy.member_id))
            assert (again.member_id, again.generation) == (busy.member_id, 2)
            assert (await joining).generation == 2

    simulated(work)


def test_nothing_is_answered_before_the_offsets_are_looked_up_or_after_the_end() -> None:
    async def work(world: World) -> None:
        groups = world.groups()
        loading = GroupProblem.COORDINATOR_LOAD_IN_PROGRESS
        assert await problem_of(groups.join("g", a_request())) is loading
        assert await problem_of(groups.committed("g")) is loading
        assert await problem_of(commit(groups)) is loading
        assert problem_in(groups.listing) is loading
        assert problem_in(lambda: groups.describe("g")) is loading
        await groups.start()
        first = await a_stable_member(groups)
        waiting = asyncio.ensure_future(groups.join("g", a_request()))
        await asyncio.sleep(0)
        await groups.close()
        assert await problem_of(_outcome(waiting)) is GroupProblem.COORDINATOR_NOT_AVAILABLE
        assert await problem_of(groups.committed("g")) is loading
        await groups.start()
        again = await groups.join("g", a_request())
        assert again.generation > first.generation

    simulated(work)


async def _outcome(task: "Task[Joined]") -> Joined:
    return await task


def test_a_consumer_without_a_membership_commits_while_there_are_no_members() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            await commit(groups)
            assert groups.describe("g").state is GroupState.EMPTY
            joined = await a_stable_member(groups)
            assert await problem_of(commit(groups)) is GroupProblem.UNKNOWN_MEMBER_ID
            groups.leave("g", member_id=joined.member_id)
            await commit(groups)

    simulated(work)


def test_a_commit_that_is_refused_leaves_no_group_behind() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            stranger = GroupProblem.UNKNOWN_MEMBER_ID
            assert await problem_of(commit(groups, generation=-2)) is stranger
            assert groups.listing() == []

    simulated(work)


def test_what_cannot_be_committed_is_told_for_each_place() -> None:
    async def work(world: World) -> None:
        settings = GroupSettings(offset_metadata_bytes_max=3, offsets_max=2)
        async with world.running(settings) as groups:
            offsets = {
                PLACE: OffsetToCommit(offset=1, metadata="éé"),
                TopicPartition("topic", 1): OffsetToCommit(offset=1, metadata="é1"),
                TopicPartition("unknown", 0): OffsetToCommit(offset=1),
                TopicPartition("topic", -1): OffsetToCommit(offset=1),
                TopicPartition("topic", 2): OffsetToCommit(offset=-3),
                TopicPartition("topic", 3): OffsetToCommit(offset=0),
                TopicPartition("topic", 4): OffsetToCommit(offset=0),
            }
            refused = await groups.commit("g", member_id="", generation=-1, offsets=offsets)
            assert refused == {
                PLACE: GroupProblem.OFFSET_METADATA_TOO_LARGE,
                TopicPartition("unknown", 0): GroupProblem.UNKNOWN_TOPIC_OR_PARTITION,
                TopicPartition("topic", -1): GroupProblem.UNKNOWN_TOPIC_OR_PARTITION,
                TopicPartition("topic", 2): GroupProblem.INVALID_REQUEST,
                TopicPartition("topic", 4): GroupProblem.POLICY_VIOLATION,
            }
            assert set(await groups.committed("g")) == {
                TopicPartition("topic", 1),
                TopicPartition("topic", 3),
            }
            known = {TopicPartition("topic", 3): OffsetToCommit(offset=9)}
            assert not await groups.commit("g", member_id="", generation=-1, offsets=known)
            nothing = {TopicPartition("unknown", 0): OffsetToCommit(offset=1)}
            await groups.commit("h", member_id="", generation=-1, offsets=nothing)
            assert [each.group_id for each in groups.listing()] == ["g"]

    simulated(work)


def test_a_group_may_be_set_to_the_ends_by_their_numbers() -> None:
    """kafkajs does so in `admin.resetOffsets`; its consumers take both for "nothing committed"."""

    async def work(world: World) -> None:
        async with world.running() as groups:
            ends = {
                TopicPartition("topic", index): OffsetToCommit(offset=offset)
                for index, offset in enumerate((-1, -2))
            }
            assert not await groups.commit("g", member_id="", generation=-1, offsets=ends)
            found = await groups.committed("g")
            assert {place.partition: each.offset for place, each in found.items()} == {0: -1, 1: -2}

    simulated(work)


def test_long_commits_at_once_keep_to_the_bound_of_all_offsets() -> None:
    """Others run while one of them is looked at."""

    async def work(world: World) -> None:
        async with world.running(GroupSettings(offsets_max=2_000)) as groups:
            places = [TopicPartition("topic", index) for index in range(1_500)]
            offsets = {place: OffsetToCommit(offset=1) for place in places}
            first, second = await asyncio.gather(
                *(
                    groups.commit(group, member_id="", generation=-1, offsets=offsets)
                    for group in ("g", "h")
                ),
                return_exceptions=True,
            )
            assert first == {}
            assert isinstance(second, GroupError)
            assert second.problem is GroupProblem.POLICY_VIOLATION
            assert groups.statistics().offsets == 1_500
            assert len(await groups.committed("g")) == 1_500
            assert [each.group_id for each in groups.listing()] == ["g"]
            again = await groups.commit("g", member_id="", generation=-1, offsets=offsets)
            assert not again, "what is known takes no more room"

    simulated(work)


def test_offsets_of_a_topic_that_was_deleted_do_not_count_for_another_of_its_name() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            await commit(groups)
            world.topics["topic"] = UUID(int=9)
            assert await groups.committed("g", [PLACE]) == {}
            await commit(groups)
            assert (await groups.committed("g", [PLACE]))[PLACE].topic_id == UUID(int=9)
            del world.topics["topic"]
            assert await groups.committed("g") == {}

    simulated(work)


def test_groups_and_their_names_are_bounded() -> None:
    async def work(world: World) -> None:
        settings = GroupSettings(groups_max=1, group_id_bytes_max=2)
        async with world.running(settings) as groups:
            assert await problem_of(groups.join("", a_request())) is GroupProblem.INVALID_GROUP_ID
            assert await problem_of(commit(groups, "éé")) is GroupProblem.INVALID_GROUP_ID
            assert await problem_of(commit(groups, "\ud800")) is GroupProblem.INVALID_GROUP_ID
            await commit(groups, "é")
            assert await problem_of(commit(groups, "h")) is GroupProblem.POLICY_VIOLATION
            joining = groups.join("h", a_request())
            assert await problem_of(joining) is GroupProblem.POLICY_VIOLATION
            await groups.delete("é")
            await commit(groups, "h")

    simulated(work)


def test_a_group_that_was_made_again_goes_on_above_the_generations_of_before() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            before = await a_stable_member(groups)
            groups.leave("g", member_id=before.member_id)
            assert groups.describe("g").state is GroupState.DEAD
            assert (await a_stable_member(groups)).generation > before.generation

    simulated(work)


def test_offsets_go_when_their_group_is_not_used_for_the_retention() -> None:
    async def work(world: World) -> None:
        settings = GroupSettings(
            initial_rebalance_delay_seconds=0.0, offset_retention_seconds=100.0, sweep_seconds=1.0
        )
        async with world.running(settings) as groups:
            joined = await a_stable_member(groups)
            await commit(groups, member_id=joined.member_id, generation=1)
            for _ in range(40):
                await asyncio.sleep(5)
                groups.heartbeat("g", member_id=joined.member_id, generation=1)
            assert await groups.committed("g"), "a group that has members keeps its offsets"
            groups.leave("g", member_id=joined.member_id)
            await asyncio.sleep(50)
            await commit(groups)
            await asyncio.sleep(98)
            assert await groups.committed("g")
            await asyncio.sleep(4)
            assert await groups.committed("g") == {}
            assert groups.listing() == []
            await commit(groups)
        # What an earlier process saw does not count.
        async with world.running(settings) as groups:
            await asyncio.sleep(98)
            assert await groups.committed("g")
            await asyncio.sleep(4)
            assert groups.listing() == []

    simulated(work)


def test_offsets_of_topics_that_were_deleted_go_though_their_group_has_members() -> None:
    settings = GroupSettings(initial_rebalance_delay_seconds=0.0, sweep_seconds=1.0, offsets_max=3)
    kept, gone, more = PLACE, TopicPartition("other", 0), TopicPartition("other", 1)

    async def work(world: World) -> None:
        async with world.running(settings) as groups:
            member = await a_stable_member(groups)

            async def commit_of(*places: TopicPartition) -> None:
                refused = await groups.commit(
                    "g",
                    member_id=member.member_id,
                    generation=member.generation,
                    offsets=dict.fromkeys(places, OffsetToCommit(offset=1)),
                )
                assert not refused

            await commit_of(kept, gone, more)
            world.catalogue_is_away = True
            del world.topics["other"]
            await asyncio.sleep(2.5)
            assert groups.statistics().offsets == 3, "whether it was deleted is not known"
            world.catalogue_is_away = False
            world.made_elsewhere["other"] = UUID(int=2)
            await asyncio.sleep(1)
            assert groups.statistics().offsets == 3, "it is there, and was not known here"
            world.made_elsewhere.clear()
            world.topics.pop("other", None)
            await asyncio.sleep(1)
            assert groups.statistics().offsets == 1
            world.topics["new"] = UUID(int=3)
            await commit_of(TopicPartition("new", 0), TopicPartition("new", 1))
            assert len(await groups.committed("g")) == 3
            del world.topics["topic"], world.topics["new"]
            groups.leave("g", member_id=member.member_id)
            await asyncio.sleep(1)
            assert groups.listing() == []

    simulated(work)


def test_a_member_that_is_replaced_while_its_commit_waits_moves_no_offset() -> None:
    async def work(world: World) -> None:
        async with world.running() as groups:
            joined = await a_stable_member(groups)
            late = asyncio.ensure_future(commit(groups, member_id=joined.member_id, generation=1))
            await asyncio.sleep(0)
            groups.leave("g", member_id=joined.member_id)
            with pytest.raises(GroupError):
                await late
            assert await groups.committed("g") == {}
            assert groups.listing() == []

    simulated(work)


def test_a_table_that_does_not_answer_is_told_as_not_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: MemoryTable, entries: Sequence[TableEntry]) -> "Future[Sequence[int]]":
        future: Future[Sequence[int]] = asyncio.get_running_loop().create_future()
        future.set_exception(ContainerStoppedError("stopped"))
        return future

    async def work(world: World) -> None:
        async with world.running() as groups:
            await commit(groups)
            with monkeypatch.context() as patch:
                patch.setattr(MemoryTable, "update", fail)
                unavailable = GroupProblem.COORDINATOR_NOT_AVAILABLE
                assert await problem_of(commit(groups)) is unavailable
            assert (await groups.committed("g"))[PLACE].offset == 1
            world.tables.stop()
            assert await problem_of(groups.committed("g")) is GroupProblem.COORDINATOR_NOT_AVAILABLE
            assert await problem_of(groups.delete("g")) is GroupProblem.COORDINATOR_NOT_AVAILABLE
            joined = await groups.join("h", a_request())
            assert joined.generation == 1, "members need no table"
            groups.leave("h", member_id=joined.member_id)

    simulated(work)


class HeldTables(MemoryTables):
    """Tables that open when they are told to."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__()
        self._tables = tables._tables
        self.opens = asyncio.Event()
        self.opens.set()
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[MemoryTable]:
        self.asked.set()
        await self.opens.wait()
        async with super()._open(name) as table:
            assert isinstance(table, MemoryTable)
            yield table


def test_what_another_coordinator_committed_meanwhile_is_not_left_out() -> None:
    """A question is under way while the offsets are at another process, and come back."""

    async def work(world: World) -> None:
        held = HeldTables(world.tables)
        first, second = world.groups(), world.groups()
        first._offsets._tables = held
        await first.start()
        await first.commit("g", member_id="", generation=-1, offsets=ONE)
        held.opens.clear()
        held.asked.clear()
        asked = asyncio.ensure_future(first.committed("g"))
        await held.asked.wait()
        first.lose()
        assert await problem_of(first.committed("g")) is GroupProblem.COORDINATOR_LOAD_IN_PROGRESS
        await second.start()
        other = {TopicPartition("other", 0): OffsetToCommit(offset=9)}
        await second.commit("g", member_id="", generation=-1, offsets=other)
        await second.close()
        await first.close()
        first._offsets._tables = world.tables
        await first.start()
        held.opens.set()
        problem = await problem_of(asked)
        assert problem is GroupProblem.COORDINATOR_LOAD_IN_PROGRESS, "it knew one of two offsets"
        assert len(await first.committed("g")) == 2

    simulated(work)
