"""The leader's loop over a store: what its clock decides."""

import asyncio
from contextvars import Context
from random import Random

from segmentstore.cluster.assigner import Assigner, AssignerSettings
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    WISHES_PATH,
    AssignmentMap,
    FailureReport,
    LeaderRecord,
    NodeReport,
    Wishes,
    decode_assignment,
    encode_node,
    encode_report,
    encode_wishes,
    node_path,
    report_path,
)
from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network

ZERO = ContainerId(0)
PAUSE_SECONDS = 60.0
FAILING_SECONDS = 2.0
"""Of a start that fails for want of bookies."""


class Cluster:
    """A leader of some containers, and nodes by hand."""

    def __init__(
        self, loop: SimLoop, *, container_count: int = 1, settings: AssignerSettings
    ) -> None:
        self.loop = loop
        self.container_count = container_count
        self.settings = settings
        self.world = SimulatedCoordination(Random(0))
        self.sessions: dict[HostId, SimulatedSession] = {}
        self.tier2: dict[HostId, Tier2State] = {}

    async def connect(self) -> SimulatedSession:
        # Its session lasts for as long as nothing ends it.
        return await SimulatedSession.connect(self.world, Network(Random(1), message_seconds=0.01))

    async def lead(self) -> None:
        async def work(leadership: Leadership) -> None:
            await Assigner(
                leadership, container_count=self.container_count, settings=self.settings
            ).run()

        await Election(
            connect=self.connect, leader=LeaderRecord("c0", "c0:90"), work=work, random=Random(2)
        ).run()

    async def register(self, name: str) -> None:
        node_id = HostId(name)
        session = self.sessions[node_id] = await self.connect()
        node = ClusterNode(node_id=node_id, http="h:1", wire="h:2", capacity=0, version="1")
        await session.create(report_path(node_id), encode_report(NodeReport()), ephemeral=True)
        await session.create(node_path(node_id), encode_node(node), ephemeral=True)

    async def report(self, node_id: HostId, report: NodeReport) -> None:
        path = report_path(node_id)
        version = self.world.values[path].version
        await self.sessions[node_id].compare_and_set(path, encode_report(report), version=version)

    def map(self) -> AssignmentMap | None:
        found = self.world.values.get(ASSIGNMENT_PATH)
        return None if found is None else decode_assignment(found.value)

    def owner(self) -> HostId | None:
        found = self.map()
        return None if found is None else found.containers[ZERO].node

    def has_failed(self) -> bool:
        """Whether the map has failures of the first container."""
        found = self.map()
        return found is not None and found.containers[ZERO].failure is not None

    def count_at(self, node_id: HostId) -> int:
        found = self.map()
        return 0 if found is None else len(found.given_to(node_id))

    async def follow(self, node_id: HostId, *, failing: asyncio.Event | None = None) -> None:
        """The node runs what it is given; while it is `failing`, what it is given fails there."""
        told: NodeReport | None = None
        failing = asyncio.Event() if failing is None else failing
        while True:
            following = self.map()
            if following is not None:
                given = following.given_to(node_id)
                failed = {
                    c: FailureReport(since, "no bookie answers", "passing")
                    for c, since in given.items()
                    if failing.is_set()
                }
                held = {c: since for c, since in given.items() if c not in failed}
                tier2 = self.tier2.get(node_id, Tier2State.REACHED)
                report = NodeReport(following.version, held, sorted(held), failed, tier2=tier2)
                if report != told:
                    if failed:
                        await asyncio.sleep(FAILING_SECONDS)
                    await self.report(node_id, report)
                    told = report
            await asyncio.sleep(0.1)

    async def until_owned(self, *, other_than: HostId | None = None) -> tuple[HostId, float]:
        """By whom, and behind how many seconds."""
        began = self.loop.time()
        while (owner := self.owner()) in (None, other_than):
            await asyncio.sleep(0.1)
        assert owner is not None
        return owner, self.loop.time() - began

    async def keep(self) -> None:
        """All sessions of nodes that are there."""
        while True:
            for session in list(self.sessions.values()):
                await session.heartbeat()
            await asyncio.sleep(1.0)


class _CountedLooks(SimulatedCoordination):
    """Counts how often all nodes are read."""

    looks = 0

    def children(self, path: str, changed: asyncio.Event | None, context: Context) -> list[str]:
        self.looks += 1
        return super().children(path, changed, context)


def test_a_leader_without_nodes_waits_for_the_first_one() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings()
        cluster = Cluster(loop, settings=settings)
        cluster.world = counted = _CountedLooks(Random(0))
        leader = loop.start("c0", cluster.lead())
        await asyncio.sleep(60.0)
        assert counted.looks <= 60.0 / settings.look_seconds_max + 2
        await cluster.register("a")
        keeping = asyncio.create_task(cluster.keep())
        _, seconds = await cluster.until_owned()
        assert seconds < settings.first_assignment_seconds + 1
        keeping.cancel()
        loop.crash(leader)

    run_simulation(1, main)


def test_the_pause_behind_a_failure_is_over_when_the_container_was_given_away() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings(
            failure_pause_seconds=PAUSE_SECONDS, failure_pause_seconds_max=PAUSE_SECONDS
        )
        cluster = Cluster(loop, settings=settings)
        leader = loop.start("c0", cluster.lead())
        await cluster.register("a")
        keeping = asyncio.create_task(cluster.keep())
        first, _ = await cluster.until_owned()
        given = cluster.map()
        assert given is not None
        failed = FailureReport(given.containers[ZERO].since, "no bookie answers", "passing")
        await cluster.report(first, NodeReport(version=given.version, failed={ZERO: failed}))
        while not cluster.has_failed():
            await asyncio.sleep(0.1)
        second, seconds = await cluster.until_owned()
        assert second == first, "there is no other"
        assert seconds >= PAUSE_SECONDS - 1, "it had just failed"
        # The node is gone: that is no failure of the container.
        await cluster.register("b")
        gone = cluster.sessions.pop(second)
        await gone.close()
        third, seconds = await cluster.until_owned(other_than=second)
        assert third == HostId("b")
        assert seconds < PAUSE_SECONDS / 4
        keeping.cancel()
        loop.crash(leader)

    run_simulation(1, main)


def test_a_container_that_moves_while_leaders_change_does_not_wait_for_a_pause() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings(
            failure_pause_seconds=PAUSE_SECONDS, failure_pause_seconds_max=PAUSE_SECONDS
        )
        cluster = Cluster(loop, settings=settings)
        leaders = [loop.start("c0", cluster.lead())]
        await cluster.register("a")
        await cluster.register("b")
        keeping = asyncio.create_task(cluster.keep())
        first, _ = await cluster.until_owned()
        found = cluster.map()
        assert found is not None
        failed = FailureReport(found.containers[ZERO].since, "no bookie answers", "passing")
        await cluster.report(first, NodeReport(version=found.version, failed={ZERO: failed}))
        second, _ = await cluster.until_owned(other_than=first)
        wishes = encode_wishes(Wishes(drained=[second]))
        await cluster.sessions[second].create(WISHES_PATH, wishes)
        while cluster.owner() is not None:
            await asyncio.sleep(0.1)
        # It ends at the old node only when there is another leader.
        loop.crash(leaders[0])
        leaders.append(loop.start("c1", cluster.lead()))
        await asyncio.sleep(20.0)
        found = cluster.map()
        assert found is not None
        assert found.containers[ZERO].leaving == second
        await cluster.report(second, NodeReport(version=found.version))
        third, seconds = await cluster.until_owned()
        assert third == first
        assert seconds < PAUSE_SECONDS / 4, "it did not fail: it moves"
        keeping.cancel()
        loop.crash(leaders[1])

    run_simulation(1, main)


def test_a_container_that_runs_is_forgiven_though_it_was_moved_meanwhile() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings(forgive_after_seconds=100.0)
        cluster = Cluster(loop, settings=settings)
        leader = loop.start("c0", cluster.lead())
        failing = asyncio.Event()
        failing.set()
        await cluster.register("a")
        tasks = [asyncio.create_task(cluster.keep())]
        tasks.append(asyncio.create_task(cluster.follow(HostId("a"), failing=failing)))
        while not cluster.has_failed():
            await asyncio.sleep(0.1)
        failing.clear()
        while not (cluster.owner() and cluster.has_failed()):
            await asyncio.sleep(0.1)
        runs_since = loop.time()
        node_id = HostId("a")
        for number in range(4):
            # It is at another node each time, for a shorter time than what is asked of it.
            await asyncio.sleep(20.0)
            await cluster.register(f"b{number}")
            tasks.append(asyncio.create_task(cluster.follow(HostId(f"b{number}"))))
            await cluster.sessions.pop(node_id).close()
            node_id = HostId(f"b{number}")
            await cluster.until_owned(other_than=HostId("a"))
            assert cluster.has_failed()
        while cluster.has_failed():
            assert loop.time() < runs_since + settings.forgive_after_seconds + 10
            await asyncio.sleep(0.1)
        assert loop.time() >= runs_since + settings.forgive_after_seconds
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.crash(leader)

    run_simulation(1, main)


def test_a_node_that_fails_its_containers_is_given_no_others_until_it_has_been_left_alone() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings()
        cluster = Cluster(loop, container_count=6, settings=settings)
        leader = loop.start("c0", cluster.lead())
        failing = {HostId(name): asyncio.Event() for name in ("a", "b", "c")}
        for node_id in failing:
            await cluster.register(node_id)
        tasks = [asyncio.create_task(cluster.keep())]
        tasks += [
            asyncio.create_task(cluster.follow(node_id, failing=event))
            for node_id, event in failing.items()
        ]
        cut = HostId("b")
        while cluster.count_at(cut) < 2:
            await asyncio.sleep(0.1)
        failing[cut].set()
        trusted_at = 0.0
        # As the emptiest by far it would be given others, and would fail them: each time it is left alone for longer.
        for attempt in range(4):
            failed_at = loop.time()
            while sum(cluster.count_at(node_id) for node_id in failing if node_id != cut) < 6:
                assert loop.time() < failed_at + FAILING_SECONDS + 5 + attempt
                await asyncio.sleep(0.1)
            trusted_at = failed_at + settings.suspect_seconds * 2**attempt
            while loop.time() < trusted_at:
                assert cluster.count_at(cut) == 0, (
                    f"{loop.time() - failed_at:.1f} s behind its failures"
                )
                await asyncio.sleep(0.1)
            if attempt == 3:
                failing[cut].clear()
            while cluster.count_at(cut) == 0:
                assert loop.time() < trusted_at + settings.look_seconds_max + 5, "it is trusted"
                await asyncio.sleep(0.1)
        while cluster.count_at(cut) < 2:
            assert loop.time() < trusted_at + 15, "it is well"
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        loop.crash(leader)

    run_simulation(1, main)


def test_a_node_whose_way_to_tier2_comes_and_goes_is_left_alone_for_longer_each_time() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings()
        cluster = Cluster(loop, container_count=6, settings=settings)
        leader = loop.start("c0", cluster.lead())
        nodes = [HostId(name) for name in ("a", "b", "c")]
        for node_id in nodes:
            await cluster.register(node_id)
        tasks = [asyncio.create_task(cluster.keep())]
        tasks += [asyncio.create_task(cluster.follow(node_id)) for node_id in nodes]
        cut = HostId("b")

        async def until(count: int, seconds_max: float) -> float:
            began = loop.time()
            while cluster.count_at(cut) != count:
                assert loop.time() - began < seconds_max, f"{cluster.count_at(cut)} of {count}"
                await asyncio.sleep(0.1)
            return loop.time() - began

        await until(2, 10)
        for attempt in range(3):
            cluster.tier2[cut] = Tier2State.SILENT
            await until(0, 10)
            await asyncio.sleep(100)
            assert cluster.count_at(cut) == 0
            cluster.tier2[cut] = Tier2State.REACHED
            trusted = settings.suspect_seconds * 2**attempt
            seconds = await until(2, trusted + settings.look_seconds_max + 10)
            assert seconds > trusted - settings.look_seconds_max - 1
        # Away for all: no container is better off elsewhere.
        version = cluster.map()
        # Each has ceased to say that it is answered before one is silent: they do not turn in the same moment.
        for state in (Tier2State.UNKNOWN, Tier2State.SILENT):
            cluster.tier2 = dict.fromkeys(nodes, state)
            await asyncio.sleep(300)
        assert cluster.map() == version
        for task in tasks:
            task.cancel()
        loop.crash(leader)

    run_simulation(1, main)


def test_a_container_that_is_pinned_to_such_a_node_stays_elsewhere_for_longer_each_time() -> None:
    async def main(loop: SimLoop) -> None:
        settings = AssignerSettings()
        cluster = Cluster(loop, settings=settings)
        leader = loop.start("c0", cluster.lead())
        there, other = HostId("a"), HostId("b")
        for node_id in (there, other):
            await cluster.register(node_id)
        tasks = [asyncio.create_task(cluster.keep())]
        tasks += [asyncio.create_task(cluster.follow(node_id)) for node_id in (there, other)]
        wishes = encode_wishes(Wishes(pinned={ZERO: there}))
        await cluster.sessions[there].create(WISHES_PATH, wishes)
        await cluster.until_owned(other_than=other)
        for attempt in range(3):
            cluster.tier2[there] = Tier2State.SILENT
            await cluster.until_owned(other_than=there)
            await asyncio.sleep(100)
            assert cluster.owner() == other
            cluster.tier2[there] = Tier2State.REACHED
            trusted = settings.suspect_seconds * 2**attempt
            _, seconds = await cluster.until_owned(other_than=other)
            assert trusted - settings.look_seconds_max - 1 < seconds
            assert seconds < trusted + settings.look_seconds_max + 1
        for task in tasks:
            task.cancel()
        loop.crash(leader)

    run_simulation(1, main)
