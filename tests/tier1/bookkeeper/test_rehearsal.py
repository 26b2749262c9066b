"""A rehearsal of ledgers changes no log, leaves no ledger, and is in no one's way when it fails."""

import asyncio
from random import Random

import pytest

from tests.contracts.durable_data_log_suite import entries
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedLedgerReader
from tests.tier1.bookkeeper.simulated_network import Network
from tests.tier1.bookkeeper.worlds import PATH, BookKeeperLogWorld
from tier1.bookkeeper.rehearsal import rehearse


@pytest.fixture
def world() -> BookKeeperLogWorld:
    return BookKeeperLogWorld(
        network=Network(Random(3), message_seconds=0.001, timeout_seconds=2.0), sync_seconds=0.001
    )


async def rehearsed(world: BookKeeperLogWorld) -> float:
    """How long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await rehearse(
        [f"{PATH}-of-none", PATH],
        ledgers=world.bookies.client(),
        metadata=world.metadata,
        settings=world.settings,
    )
    return loop.time() - began


async def test_a_log_that_is_written_meanwhile_keeps_its_owner_and_its_ledgers(
    world: BookKeeperLogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.log()
    await first.initialize()
    kept = [(await first.append([b"first"]), b"first")]
    await first.close()
    owner = world.log()
    await owner.initialize()
    kept.append((await owner.append([b"second"]), b"second"))
    before, record = set(world.bookies.ledgers), world.metadata.values[PATH]
    read: list[tuple[int, int]] = []
    honest = SimulatedLedgerReader.read

    async def noted(reader: SimulatedLedgerReader, first: int, last: int) -> list[memoryview]:
        read.append((first, last))
        return await honest(reader, first, last)

    monkeypatch.setattr(SimulatedLedgerReader, "read", noted)
    await rehearsed(world)
    assert read == [(0, 0)]
    assert set(world.bookies.ledgers) == before
    assert world.metadata.values[PATH] == record
    kept.append((await owner.append([b"third"]), b"third"))
    await owner.close()
    successor = world.log()
    await successor.initialize()
    assert await entries(successor) == kept
    await successor.close()


async def test_it_ends_early_without_bookies_and_without_zookeeper(
    world: BookKeeperLogWorld,
) -> None:
    log = world.log()
    await log.initialize()
    await log.close()
    for number in range(4):
        world.bookies.kill(number)
    assert await rehearsed(world) < 5.0
    world.network.metadata_down = True
    world.network.timeout_seconds = 60.0
    assert await rehearsed(world) < 11.0


async def test_a_new_store_has_nothing_to_rehearse_with(world: BookKeeperLogWorld) -> None:
    await rehearsed(world)
    assert not world.bookies.ledgers
