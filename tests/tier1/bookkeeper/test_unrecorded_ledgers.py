"""Ledgers that died with their owner before the record named them are deleted, and none that an owner may still write
down.
"""

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from segmentstore.contracts.errors import DurableDataLogError
from tests.contracts.durable_data_log_suite import entries
from tests.tier1.bookkeeper.test_steps import Steps, StepWorld
from tests.tier1.bookkeeper.worlds import PATH, SMALL, BookKeeperLogWorld
from tier1.bookkeeper.ledgers import LedgerId, LedgerWriter, Quorum
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.log_record import LedgerInLog, ledger_labels
from tier1.bookkeeper.metadata_store import MetadataUnavailableError
from tier1.bookkeeper.unrecorded_ledgers import UnrecordedLedger, delete_unrecorded_ledgers


async def own(world: BookKeeperLogWorld) -> BookKeeperDurableDataLog:
    log = world.log()
    await log.initialize()
    return log


async def sweep(world: BookKeeperLogWorld) -> list[UnrecordedLedger]:
    unrecorded = delete_unrecorded_ledgers(
        PATH, ledgers=world.bookies.client(), metadata=world.metadata
    )
    async with aclosing(unrecorded) as found:
        return [ledger async for ledger in found]


def unrecorded(world: BookKeeperLogWorld, recorded: tuple[LedgerInLog, ...]) -> set[LedgerId]:
    return set(world.bookies.ledgers) - {each.ledger_id for each in recorded}


async def opening_killed_between_create_and_record(world: StepWorld) -> None:
    steps = Steps()
    log = world.stepped(steps)
    # claim, fence the ledger before, create, and the record is not written
    steps.fails_at = 4
    with pytest.raises(DurableDataLogError):
        async with asyncio.timeout(60):
            await log.initialize()
    await world.kill(log)


async def test_a_ledger_whose_owner_died_before_it_was_recorded_is_deleted_and_no_other() -> None:
    world = StepWorld(settings=SMALL)
    first = await own(world)
    kept = {await first.append([b"first"]): b"first"}
    await world.kill(first)
    await opening_killed_between_create_and_record(world)
    successor = await own(world)
    kept[await successor.append([b"second"])] = b"second"
    left = unrecorded(world, successor.record.ledgers)
    assert len(left) == 1
    found = await sweep(world)
    assert [each.ledger_id for each in found] == list(left)
    assert [each.entries for each in found] == [0]
    assert not unrecorded(world, successor.record.ledgers)
    assert await sweep(world) == []
    kept[await successor.append([b"third"])] = b"third"
    await successor.close()
    last = await own(world)
    assert dict(await entries(last)) == kept
    await last.close()


async def test_before_a_successor_has_claimed_the_log_nothing_is_deleted() -> None:
    world = StepWorld(settings=SMALL)
    first = await own(world)
    await first.append([b"first"])
    await world.kill(first)
    await opening_killed_between_create_and_record(world)
    before = set(world.bookies.ledgers)
    assert await sweep(world) == [], "the owner that made it may be alive and about to record it"
    assert set(world.bookies.ledgers) == before


async def test_a_ledger_that_its_owner_is_about_to_record_stays_and_takes_entries() -> None:
    world = BookKeeperLogWorld()
    log = await own(world)
    maker = log._maker
    honest = maker.enter_ahead
    may_record = asyncio.Event()
    made: list[LedgerId] = []

    async def enter_ahead(writer: LedgerWriter) -> LedgerInLog:
        made.append(writer.ledger_id)
        await may_record.wait()
        return await honest(writer)

    maker.enter_ahead = enter_ahead  # type: ignore[method-assign]
    kept = [(await log.append([bytes(40_000)]), bytes(40_000)) for _ in range(2)]
    await asyncio.sleep(1.0)
    assert unrecorded(world, log.record.ledgers) == set(made) != set()
    assert await sweep(world) == []
    may_record.set()
    await asyncio.sleep(1.0)
    assert log.record.ledgers[-1].ledger_id == made[0]
    kept.append((await log.append([b"in it"]), b"in it"))
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept
    await successor.close()


async def test_a_ledger_with_entries_is_named_and_stays() -> None:
    world = BookKeeperLogWorld()
    log = await own(world)
    labels = ledger_labels(PATH, log.record)
    await log.close()
    stray = await world.bookies.client().create(Quorum(), labels=labels)
    await stray.append([b"acknowledged by somebody"])
    successor = await own(world)
    (found,) = await sweep(world)
    assert (found.ledger_id, found.entries) == (stray.ledger_id, 1)
    assert stray.ledger_id in world.bookies.ledgers
    await successor.close()


async def test_ledgers_of_another_log_at_the_same_place_are_left_alone() -> None:
    world = BookKeeperLogWorld()
    log = await own(world)
    labels = ledger_labels(PATH, log.record)
    labels["log_id"] = Random(9).randbytes(16).hex().encode()
    other = await world.bookies.client().create(Quorum(), labels=labels)
    await log.close()
    successor = await own(world)
    assert await sweep(world) == []
    assert other.ledger_id in world.bookies.ledgers
    await successor.close()


async def test_without_zookeeper_or_a_record_nothing_is_deleted() -> None:
    world = BookKeeperLogWorld()
    assert await sweep(world) == []
    log = await own(world)
    world.network.metadata_down = True
    with pytest.raises(MetadataUnavailableError):
        await sweep(world)
    world.network.metadata_down = False
    await log.close()
