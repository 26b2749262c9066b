"""Leases and leaders over a store that goes away, answers late, or meets a process that stood still."""

import asyncio
from functools import partial
from random import Random

import pytest

from segmentstore.cluster.leader import Election, Leadership, LeadershipLostError
from segmentstore.cluster.records import (
    EPOCH_PATH,
    LEADER_PATH,
    NODES_PATH,
    LeaderRecord,
    decode_epoch,
)
from segmentstore.cluster.session_lease import LEASE_SHARE, SessionLease
from segmentstore.coordination.coordination_store import SessionLostError, SetValue
from tests.cluster.planted import write_without_a_check_of_the_epoch
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network

SESSION = 10.0


class Process:
    """A lease in a process of its own, and what became of it."""

    def __init__(self, loop: SimLoop, world: SimulatedCoordination) -> None:
        self.network = Network(Random(1), message_seconds=0.01, timeout_seconds=1.0)
        self.lost_at = 0.0
        self.lease: SessionLease | None = None
        self._loop = loop
        self._world = world
        self.process = loop.start("node", self._run())

    async def _run(self) -> None:
        session = await SimulatedSession.connect(self._world, self.network)
        await session.create(f"{NODES_PATH}/n", b"", ephemeral=True)
        self.lease = SessionLease(session, on_lost=self._note)
        await self.lease.begin()
        with pytest.raises(SessionLostError):
            await self.lease.run()

    def _note(self) -> None:
        self.lost_at = self._loop.time()

    @property
    def is_registered(self) -> bool:
        return f"{NODES_PATH}/n" in self._world.values


def test_h83_a_session_outlives_a_store_that_is_gone_for_three_seconds() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        node = Process(loop, world)
        for _ in range(5):
            await asyncio.sleep(loop.random.uniform(5.0, 10.0))
            world.is_down = node.network.metadata_down = True
            await asyncio.sleep(3.0)
            node.network.metadata_down = False
            world.come_back()
            await asyncio.sleep(3.0)
            assert node.lease is not None
            assert node.lease.is_valid()
        assert node.is_registered
        loop.crash(node.process)

    run_simulation(1, main)


def test_h83_a_lease_ends_before_the_session_of_a_process_that_hears_nothing() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        node = Process(loop, world)
        await asyncio.sleep(20.0)
        node.network.metadata_down = True
        cut = loop.time()
        await asyncio.sleep(LEASE_SHARE * SESSION + 0.1)
        assert cut < node.lost_at <= cut + LEASE_SHARE * SESSION
        assert node.is_registered, "the store has not given it up yet"
        await asyncio.sleep(SESSION)
        assert not node.is_registered

    run_simulation(1, main)


def test_h83_a_process_that_stood_still_has_lost_its_lease_when_it_goes_on() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        node = Process(loop, world)
        await asyncio.sleep(20.0)
        loop.pause(node.process)
        await asyncio.sleep(LEASE_SHARE * SESSION + 0.1)
        loop.resume(node.process)
        assert node.lease is not None
        assert not node.lease.is_valid(), "in the very turn in which it goes on"
        await asyncio.sleep(0.1)
        assert node.lost_at
        assert node.lease.seconds_left == 0.0

    run_simulation(1, main)


def test_h83_a_process_that_stood_still_for_less_goes_on() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        node = Process(loop, world)
        await asyncio.sleep(20.0)
        loop.pause(node.process)
        await asyncio.sleep(5.0)
        loop.resume(node.process)
        await asyncio.sleep(20.0)
        assert node.lease is not None
        assert node.lease.is_valid()
        loop.crash(node.process)

    run_simulation(1, main)


def test_h84_nothing_of_a_leader_that_stood_still_lands_when_another_leads() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        led: list[tuple[str, Leadership]] = []

        async def work(name: str, leadership: Leadership) -> None:
            led.append((name, leadership))
            await asyncio.sleep(1000)

        async def connect() -> SimulatedSession:
            return await SimulatedSession.connect(world, Network(Random(1), message_seconds=0.01))

        def election(name: str) -> Election:
            return Election(
                connect=connect,
                leader=LeaderRecord(name, f"{name}:90"),
                work=partial(work, name),
                random=Random(2),
            )

        first = loop.start("c0", election("c0").run())
        await asyncio.sleep(1.0)
        second = loop.start("c1", election("c1").run())
        await asyncio.sleep(30.0)
        assert [name for name, _ in led] == ["c0"], "a leader leads for as long as it lives"
        stale = led[0][1]
        await stale.session.create("cluster/value", b"0")
        await stale.commit([SetValue("cluster/value", b"1", 0)])
        loop.pause(first)
        await asyncio.sleep(SESSION + 6.0)
        assert [name for name, _ in led] == ["c0", "c1"]
        assert stale.epoch < led[1][1].epoch == decode_epoch(world.values[EPOCH_PATH].value)
        # What the first had sent before it stood still, and what it sends when it goes on: in a session that is over.
        with pytest.raises(LeadershipLostError):
            await Leadership(await connect(), stale.lease, stale.epoch, stale.epoch_version).commit(
                [SetValue("cluster/value", b"2", 1)]
            )
        loop.resume(first)
        await asyncio.sleep(10.0)
        assert world.values["cluster/value"].value == b"1"
        await led[1][1].commit([SetValue("cluster/value", b"3", 1)])
        assert b"c1" in world.values[LEADER_PATH].value
        assert len(led) == 2, "the first is a candidate again"
        for each in (first, second):
            loop.crash(each)

    run_simulation(1, main)


def test_a_leader_that_lost_its_lease_is_followed_as_soon_as_the_store_is_back() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedCoordination(Random(0))
        network = Network(Random(1), message_seconds=0.01, timeout_seconds=0.5)
        led: list[Leadership] = []

        async def work(leadership: Leadership) -> None:
            led.append(leadership)
            await asyncio.sleep(1000)

        controllers = [
            loop.start(
                name,
                Election(
                    connect=lambda: SimulatedSession.connect(world, network),
                    leader=LeaderRecord(name, f"{name}:90"),
                    work=work,
                    random=Random(2),
                ).run(),
            )
            for name in ("c0", "c1")
        ]
        await asyncio.sleep(20.0)
        assert len(led) == 1
        world.is_down = network.metadata_down = True
        await asyncio.sleep(LEASE_SHARE * SESSION + 1.0)
        assert not led[0].lease.is_valid()
        network.metadata_down = False
        world.come_back()
        await asyncio.sleep(SESSION / 3)
        assert len(led) == 2, "the former leader's value would last for a session longer"
        for each in controllers:
            loop.crash(each)

    run_simulation(1, main)


def test_h84_a_leader_that_writes_without_a_check_of_the_epoch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_without_a_check_of_the_epoch(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_h84_nothing_of_a_leader_that_stood_still_lands_when_another_leads()
