"""Bookies and ZooKeeper come and go, and the log goes on, waits or ends as its settings say; in virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.errors import DurableDataLogError, ErrorKind, LogNotPrimaryError
from segmentstore.contracts.identifiers import BufferView, LogAddress
from segmentstore.runtime.cancellation import fail_unless_done
from tests.contracts.durable_data_log_suite import entries
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedLedgerClient, SimulatedLedgerWriter
from tests.tier1.bookkeeper.simulated_network import Network
from tests.tier1.bookkeeper.worlds import SMALL, BookKeeperLogWorld
from tier1.bookkeeper.ledger_maker import LedgerEnd, LedgerMaker
from tier1.bookkeeper.ledgers import (
    LedgerId,
    LedgerUnavailableError,
    LedgerWriter,
    Quorum,
    TooFewBookiesError,
)
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.log_record import LedgerInLog, LogRecord, encode_record, entry_of
from tier1.bookkeeper.metadata_store import MetadataUnavailableError
from tier1.bookkeeper.settings import GiveUpSettings

MINUTE = 60.0


@pytest.fixture
def world() -> BookKeeperLogWorld:
    return BookKeeperLogWorld(
        settings=replace(SMALL, look_again_seconds=1.0),
        network=Network(Random(3), message_seconds=0.001, timeout_seconds=2.0),
        sync_seconds=0.001,
    )


@pytest.fixture
def closings(monkeypatch: pytest.MonkeyPatch) -> list[LedgerId]:
    """Ledgers that a writer has closed, or was about to."""
    closed: list[LedgerId] = []
    honest = SimulatedLedgerWriter.close

    async def close(self: SimulatedLedgerWriter) -> None:
        closed.append(self.ledger_id)
        await honest(self)

    monkeypatch.setattr(SimulatedLedgerWriter, "close", close)
    return closed


async def own(world: BookKeeperLogWorld) -> BookKeeperDurableDataLog:
    log = world.log()
    await log.initialize()
    return log


def sequence(address: LogAddress) -> int:
    return entry_of(address)[0]


async def append_for(
    log: BookKeeperDurableDataLog,
    seconds: float,
    kept: list[tuple[LogAddress, bytes]] | None = None,
) -> list[float]:
    """How long each append took; `kept` gets their addresses and bytes."""
    loop = asyncio.get_running_loop()
    took = []
    end = loop.time() + seconds
    while loop.time() < end:
        began = loop.time()
        address = await log.append([bytes(1000)])
        if kept is not None:
            kept.append((address, bytes(1000)))
        took.append(loop.time() - began)
        await asyncio.sleep(0.1)
    return took


# --- bookies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(4))
async def test_the_death_of_one_bookie_of_four_delays_no_append(
    world: BookKeeperLogWorld, number: int
) -> None:
    log = await own(world)
    await log.append([b"x"])
    world.bookies.kill(number)
    assert max(await append_for(log, 3.0)) < 0.5
    world.bookies.restart(number)
    await log.close()


@pytest.mark.parametrize("number", range(3))
async def test_a_bookie_that_hangs_delays_no_append(world: BookKeeperLogWorld, number: int) -> None:
    log = await own(world)
    await log.append([b"x"])
    world.bookies.hang(number, 10.0)
    assert max(await append_for(log, 12.0)) < 0.5
    await log.close()


async def test_too_few_bookies_make_appends_wait_until_there_are_enough(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    kept = [(await log.append([b"before"]), b"before")]
    for number in (0, 1, 2):
        world.bookies.kill(number)
    futures = [log.append([bytes([number])]) for number in range(30)]
    await asyncio.sleep(10.0)
    assert not any(future.done() for future in futures)
    state = log.writer_state()
    assert state is not None
    assert 9.0 < state.waiting_seconds < 11.0
    assert state.waiting_for
    for number in (0, 1, 2):
        world.bookies.restart(number)
    addresses = await asyncio.gather(*futures)
    kept += [(address, bytes([number])) for number, address in enumerate(addresses)]
    state = log.writer_state()
    assert state is not None
    assert (state.waiting_seconds, state.waiting_for) == (0.0, "")
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept
    await successor.close()


async def test_a_log_that_is_closed_says_no_more_what_its_appends_wait_for(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    for number in (0, 1, 2):
        world.bookies.kill(number)
    appended = log.append([b"x"])
    await asyncio.sleep(10.0)
    assert log.writer_state() is not None
    await log.close()
    with pytest.raises(DurableDataLogError):
        await appended
    assert log.writer_state() is None


async def test_l3_after_retry_seconds_max_the_log_fails_and_stays_failed(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    await log.append([b"x"])
    for number in range(4):
        world.bookies.kill(number)
    began = asyncio.get_running_loop().time()
    first = log.append([b"y"])
    with pytest.raises(DurableDataLogError) as caught:
        await first
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    took = asyncio.get_running_loop().time() - began
    assert world.settings.retry_seconds_max <= took < world.settings.retry_seconds_max + 10
    for number in range(4):
        world.bookies.restart(number)
    with pytest.raises(DurableDataLogError):
        await log.append([b"z"])
    with pytest.raises(DurableDataLogError):
        await log.truncate(LogAddress(1 << 32))
    await log.close()
    successor = await own(world)
    await successor.append([b"w"])
    await successor.close()


async def test_appends_that_others_could_take_are_given_up_sooner_and_an_opening_is_not(
    world: BookKeeperLogWorld,
) -> None:
    world.settings = replace(world.settings, give_up=GiveUpSettings(4.0, 60.0))
    log = await own(world)
    await log.append([b"x"])
    for number in range(4):
        world.bookies.kill(number)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DurableDataLogError) as caught:
        await log.append([b"y"])
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert 4.0 <= asyncio.get_running_loop().time() - began < 8.0
    await log.close()
    opening = asyncio.ensure_future(own(world))
    await asyncio.sleep(15.0)
    assert not opening.done()
    for number in range(4):
        world.bookies.restart(number)
    successor = await opening
    await successor.append([b"z"])
    await successor.close()


async def test_a_recovery_that_another_process_could_make_is_given_up_and_loses_nothing(
    world: BookKeeperLogWorld,
) -> None:
    """The bookies are lost while the log is read: as to a node that is cut off from them."""
    world.settings = replace(world.settings, retry_seconds_max=1000.0)
    log = await own(world)
    await log.append([b"x"])
    await log.close()
    world.settings = replace(world.settings, give_up=GiveUpSettings(5.0, 10.0))
    opened = await own(world)
    loop = asyncio.get_running_loop()
    for number in range(4):
        world.bookies.kill(number)
    for step in (entries(opened), own(world)):
        began = loop.time()
        with pytest.raises(DurableDataLogError) as caught:
            await step
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert 10.0 <= loop.time() - began < 20.0
    await opened.close()
    for number in range(4):
        world.bookies.restart(number)
    successor = await own(world)
    assert [payload for _, payload in await entries(successor)] == [b"x"]
    await successor.close()


async def test_the_time_of_appends_counts_from_the_first_failure_of_a_ledger(
    world: BookKeeperLogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that bookies do not answer: each ledger can be made and closed, and fails behind a time-out."""
    world.settings = replace(world.settings, give_up=GiveUpSettings(3.0, 60.0))
    log = await own(world)
    await log.append([b"x"])
    loop = asyncio.get_running_loop()

    def unanswered(
        writer: SimulatedLedgerWriter, entry: Sequence[BufferView]
    ) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = loop.create_future()
        error = LedgerUnavailableError(f"no answer ledger={writer.ledger_id} {len(entry)=}")
        loop.call_later(2.0, fail_unless_done, answer, error)
        return answer

    monkeypatch.setattr(SimulatedLedgerWriter, "append", unanswered)
    began = loop.time()
    with pytest.raises(LedgerUnavailableError):
        await log.append([b"y"])
    # The first failure behind two seconds, the second at four; the third is behind the time.
    assert 6.0 <= loop.time() - began < 7.0
    await log.close()


async def test_the_close_of_a_log_waits_neither_for_zookeeper_nor_for_bookies(
    world: BookKeeperLogWorld,
) -> None:
    world.network.timeout_seconds = 20.0
    world.settings = replace(world.settings, close_seconds_max=1.0)
    loop = asyncio.get_running_loop()
    without_zookeeper, without_bookies = await own(world), world.log()
    address = await without_zookeeper.append([b"kept"])
    world.network.metadata_down = True
    began = loop.time()
    await without_zookeeper.close()
    assert loop.time() - began < 1.5
    world.network.metadata_down = False
    await without_bookies.initialize()
    for number in range(4):
        world.bookies.hang(number, 10.0)
    under_way = without_bookies.append([b"unknown"])
    await asyncio.sleep(0.1)
    began = loop.time()
    await without_bookies.close()
    assert loop.time() - began < 1.5
    with pytest.raises(DurableDataLogError):
        await under_way
    await asyncio.sleep(10.0)
    successor = await own(world)
    found = await entries(successor)
    assert found[0] == (address, b"kept")
    assert [payload for _, payload in found[1:]] in ([], [b"unknown"])
    await successor.close()


async def test_a_log_that_had_failed_lets_its_ledger_go_when_it_is_closed(
    world: BookKeeperLogWorld, closings: list[LedgerId]
) -> None:
    """As its owner learns from the record that it is one no more: no bookie has told the writer so."""
    failed = await own(world)
    address = await failed.append([b"x"])
    ledger_id = failed.record.ledgers[-1].ledger_id
    successor = await own(world)
    with pytest.raises(LogNotPrimaryError):
        await failed.truncate(address)
    await failed.close()
    assert closings == [ledger_id]
    assert await entries(successor) == [(address, b"x")]
    await successor.close()


async def test_a_ledger_that_is_made_as_its_log_fails_is_let_go_when_the_log_is_closed(
    world: BookKeeperLogWorld, closings: list[LedgerId], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await own(world)
    await log.append([b"x"])
    made: list[LedgerId] = []
    honest = LedgerMaker.enter

    async def enter(
        self: LedgerMaker, writer: LedgerWriter, *, ends: Sequence[LedgerEnd]
    ) -> LedgerInLog:
        entered = await honest(self, writer, ends=ends)
        made.append(writer.ledger_id)
        assert log._appends is not None
        log._appends.fail(DurableDataLogError("another part of the log failed"))
        return entered

    monkeypatch.setattr(LedgerMaker, "enter", enter)
    for number in range(3):
        world.bookies.kill(number)
    last = log.append([b"y"])
    await asyncio.sleep(1.0)
    for number in range(3):
        world.bookies.restart(number)
    with pytest.raises(DurableDataLogError, match="another part"):
        await last
    await log.close()
    assert made
    assert set(made) <= set(closings)


async def test_a_ledger_that_hangs_as_a_log_is_closed_keeps_no_other_open(
    world: BookKeeperLogWorld, closings: list[LedgerId], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await own(world)
    honest = SimulatedLedgerWriter.close

    async def close(self: SimulatedLedgerWriter) -> None:
        if self.ledger_id == first:
            await asyncio.Event().wait()
        await honest(self)

    monkeypatch.setattr(SimulatedLedgerWriter, "close", close)
    first = log.record.ledgers[-1].ledger_id
    for number in range(4):
        await log.append([bytes([number]) * 30_000])
        await asyncio.sleep(0.1)
    newest = log.record.ledgers[-1].ledger_id
    assert newest != first
    loop = asyncio.get_running_loop()
    began = loop.time()
    await log.close()
    assert loop.time() - began < world.settings.close_seconds_max + 0.5
    assert closings == [newest]


async def test_an_opening_waits_for_bookies_and_says_what_is_missing(
    world: BookKeeperLogWorld,
) -> None:
    for number in range(2):
        world.bookies.kill(number)
    waiting = asyncio.ensure_future(own(world))
    await asyncio.sleep(5.0)
    assert not waiting.done()
    world.bookies.restart(0)
    await (await waiting).close()
    world.bookies.kill(0)
    with pytest.raises(TooFewBookiesError, match="bookies=2 needed=3"):
        await own(world)


async def test_with_few_bookies_the_log_goes_on_with_fewer_and_returns_when_there_are_enough(
    world: BookKeeperLogWorld,
) -> None:
    world.settings = replace(world.settings, quorum_with_few_bookies=Quorum(2, 2, 2))
    for number in range(2):
        world.bookies.kill(number)
    log = await own(world)
    state = log.writer_state()
    assert state is not None
    assert state.has_few_bookies
    assert state.ledger.quorum == Quorum(2, 2, 2)
    await append_for(log, 3.0)
    world.bookies.restart(0)
    assert max(await append_for(log, 3.0)) < 0.5
    state = log.writer_state()
    assert state is not None
    assert not state.has_few_bookies
    assert state.ledger.quorum == Quorum(3, 3, 2)
    await log.close()


@pytest.mark.parametrize("begins_with_few", [True, False])
async def test_a_ledger_that_is_full_while_bookies_are_few_is_followed_and_gives_its_space_back(
    world: BookKeeperLogWorld, *, begins_with_few: bool
) -> None:
    world.settings = replace(world.settings, quorum_with_few_bookies=Quorum(2, 2, 2))
    if begins_with_few:
        for number in range(2):
            world.bookies.kill(number)
        log = await own(world)
    else:
        log = await own(world)
        (ledger,) = world.bookies.ledgers.values()
        members = ledger.ensembles[-1][1]
        (outside,) = {bookie.number for bookie in world.bookies.bookies} - set(members)
        world.bookies.kill(outside)
        world.bookies.kill(members[0])
    kept = []
    for number in range(12):
        payload = bytes([number]) * 40_000
        kept.append((await log.append([payload]), payload))
        await asyncio.sleep(world.settings.look_again_seconds)
    assert len(log.record.ledgers) >= 4
    assert log.record.ledgers[-1].quorum == Quorum(2, 2, 2)
    await log.truncate(kept[-2][0])
    await asyncio.sleep(2 * world.settings.look_again_seconds)
    assert len(world.bookies.ledgers) <= 2
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept[-1:]
    await successor.close()


async def test_h51_a_ledger_that_fails_is_replaced_and_no_entry_is_lost_repeated_or_out_of_order(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    kept: list[tuple[LogAddress, bytes]] = []
    for round_number in range(20):
        payloads = [bytes([round_number, number]) for number in range(20)]
        futures = [log.append([payload]) for payload in payloads]
        await asyncio.sleep(0.0005 * round_number)
        for number in (0, 1, 2):
            world.bookies.kill(number)
        await asyncio.sleep(0.05)
        for number in (0, 1, 2):
            world.bookies.restart(number)
        kept += zip(await asyncio.gather(*futures), payloads, strict=True)
        log.check()
    assert sequence(kept[-1][0]) >= 10
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept
    await successor.close()


async def test_l3_an_entry_that_cannot_be_sent_ends_all_that_waited_for_a_ledger_with_it(
    world: BookKeeperLogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces are no bytes any more, say: nothing may be sent behind it, and none may wait for ever."""
    log = await own(world)
    await log.append([b"x"])
    for number in range(4):
        world.bookies.kill(number)
    futures = [log.append([bytes([number])]) for number in range(5)]
    await asyncio.sleep(1.0)
    honest = SimulatedLedgerWriter.append

    def append(self: SimulatedLedgerWriter, entry: Sequence[BufferView]) -> "asyncio.Future[int]":
        if bytes(entry[0]) == b"\2":
            raise ValueError("operation forbidden on released memoryview object")
        return honest(self, entry)

    monkeypatch.setattr(SimulatedLedgerWriter, "append", append)
    for number in range(4):
        world.bookies.restart(number)
    _, waiting = await asyncio.wait(futures, timeout=10.0)
    assert not waiting
    for future in futures[2:]:
        assert isinstance(future.exception(), DurableDataLogError)
    await log.close()


# --- ZooKeeper -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3.0, MINUTE])
async def test_a_log_goes_on_without_zookeeper_and_makes_up_for_it_afterwards(
    world: BookKeeperLogWorld, seconds: float
) -> None:
    log = await own(world)
    addresses = [await log.append([bytes(60_000)]), await log.append([b"in the second ledger"])]
    world.network.metadata_down = True
    await log.truncate(addresses[0])
    assert log.record.truncated_up_to == 0
    assert max(await append_for(log, seconds)) < 0.5
    assert log.record.last_sequence <= 2, "no ledger is made without ZooKeeper"
    world.network.metadata_down = False
    await append_for(log, 5.0)
    assert log.record.truncated_up_to == addresses[0]
    assert log.record.last_sequence >= 2
    await log.close()


@pytest.mark.parametrize("step", ["enter_ahead", "end"])
async def test_zookeeper_that_goes_in_the_middle_of_a_rollover_delays_no_append(
    world: BookKeeperLogWorld, step: str
) -> None:
    log = await own(world)
    maker = log._maker
    honest = getattr(maker, step)
    gone: list[str] = []

    async def takes_zookeeper_away(*arguments: object) -> object:
        if not gone:
            gone.append(step)
            world.network.metadata_down = True
        return await honest(*arguments)

    setattr(maker, step, takes_zookeeper_away)
    kept = []
    for number in range(5):
        payload = bytes([number]) * 30_000
        kept.append((await log.append([payload]), payload))
    assert max(await append_for(log, MINUTE, kept)) < 0.5
    assert gone
    world.network.metadata_down = False
    await asyncio.sleep(10.0)
    still_open = [ledger for ledger in log.record.ledgers if ledger.is_open]
    assert len(still_open) == 1, "the end of the former ledger is written down afterwards"
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept
    await successor.close()


async def test_an_owner_that_dies_with_two_ledgers_open_leaves_every_entry_of_both(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)

    async def never(end: LedgerEnd) -> None:
        raise MetadataUnavailableError("ZooKeeper does not answer")

    log._maker.end = never  # type: ignore[method-assign]
    kept = []
    for number in range(5):
        payload = bytes([number]) * 30_000
        kept.append((await log.append([payload]), payload))
        await asyncio.sleep(0.1)
    assert len([ledger for ledger in log.record.ledgers if ledger.is_open]) == 2
    assert entry_of(kept[0][0])[0] < entry_of(kept[-1][0])[0], "entries are in both"
    await world.kill(log)
    successor = await own(world)
    assert await entries(successor) == kept
    assert not any(ledger.is_open for ledger in successor.record.ledgers[:-1])
    await successor.close()


async def test_a_ledger_that_fails_behind_one_that_is_not_settled_is_replaced(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    honest = log._maker.end
    is_held = True

    async def end(end: LedgerEnd) -> None:
        if is_held:
            raise MetadataUnavailableError("ZooKeeper does not answer")
        await honest(end)

    log._maker.end = end  # type: ignore[method-assign]
    kept = []
    for number in range(5):
        payload = bytes([number]) * 30_000
        kept.append((await log.append([payload]), payload))
        await asyncio.sleep(0.1)
    newest = log.record.ledgers[-1].ledger_id
    tool = world.bookies.client()
    await (await tool.open_fenced(newest)).close()
    waiting = log.append([b"to the next one"])
    await asyncio.sleep(1.0)
    assert not waiting.done(), (
        "nothing is acknowledged before the end of the former is written down"
    )
    is_held = False
    kept.append((await waiting, b"to the next one"))
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept
    await successor.close()


async def test_an_opening_without_zookeeper_ends_in_time_and_in_words(
    world: BookKeeperLogWorld,
) -> None:
    world.network.metadata_down = True
    with pytest.raises(MetadataUnavailableError, match="does not answer"):
        await own(world)


@pytest.mark.parametrize("is_zookeeper_gone", [False, True])
async def test_an_opening_that_is_cancelled_lets_its_ledger_go_and_waits_for_no_answer(
    world: BookKeeperLogWorld,
    closings: list[LedgerId],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_zookeeper_gone: bool,
) -> None:
    world.network.timeout_seconds = 20.0
    world.settings = replace(world.settings, close_seconds_max=1.0)
    loop = asyncio.get_running_loop()
    log = world.log()
    is_asked = asyncio.Event()

    async def unanswered(*_: object, **__: object) -> LogRecord:
        is_asked.set()
        world.network.metadata_down = is_zookeeper_gone
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled")

    monkeypatch.setattr(log._record, "change", unanswered)
    opening = asyncio.create_task(log.initialize())
    await is_asked.wait()
    began = loop.time()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert loop.time() - began < 1.5
    assert closings == list(world.bookies.ledgers)
    assert len(closings) == 1
    world.network.metadata_down = False
    successor = await own(world)
    assert await entries(successor) == []
    await successor.close()


async def test_a_fenced_owner_that_cannot_read_the_record_stops_at_once(
    world: BookKeeperLogWorld,
) -> None:
    old = await own(world)
    await old.append([b"x"])
    new = await own(world)
    world.network.metadata_down = True
    began = asyncio.get_running_loop().time()
    with pytest.raises(LogNotPrimaryError):
        await old.append([b"too late"])
    assert asyncio.get_running_loop().time() - began < 2 * world.network.timeout_seconds
    world.network.metadata_down = False
    await old.close()
    await new.close()


async def test_a_ledger_that_a_tool_has_fenced_is_replaced_and_the_log_goes_on(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    kept = [(await log.append([b"x"]), b"x")]
    await world.bookies.client().open_fenced(log.record.ledgers[-1].ledger_id)
    kept.append((await log.append([b"y"]), b"y"))
    assert sequence(kept[1][0]) == 2
    await log.close()
    successor = await own(world)
    assert await entries(successor) == kept
    await successor.close()


# --- ledgers -------------------------------------------------------------------------------------


async def test_an_old_ledger_is_followed_by_another_unless_it_is_empty(
    world: BookKeeperLogWorld,
) -> None:
    log = await own(world)
    await asyncio.sleep(10 * world.settings.ledger_age_seconds_max)
    assert log.record.last_sequence == 1
    await log.append([b"x"])
    await asyncio.sleep(2 * world.settings.look_again_seconds)
    assert log.record.last_sequence == 2
    await log.close()


async def test_a_log_that_is_not_truncated_keeps_room_in_its_record_for_its_next_owners() -> None:
    """A record that is as large as ZooKeeper takes could be opened by no process any more."""
    world = BookKeeperLogWorld(settings=replace(SMALL, rollover_record_bytes_max=400))
    log = await own(world)
    appended = {}
    for _ in range(40):
        appended[await log.append([bytes(40_000)])] = bytes(40_000)
        await asyncio.sleep(2 * world.settings.look_again_seconds)
    assert 400 < log.record.encoded_bytes < 500
    assert log.record.encoded_bytes == len(encode_record(log.record))
    await log.close()
    successor = await own(world)
    assert dict(await entries(successor)) == appended
    # What is truncated makes room.
    addresses = [await successor.append([bytes(40_000)]) for _ in range(2)]
    sequence = successor.record.last_sequence
    await asyncio.sleep(2 * world.settings.look_again_seconds)
    assert successor.record.last_sequence == sequence
    await successor.truncate(max(appended))
    await asyncio.sleep(4 * world.settings.look_again_seconds)
    await successor.truncate(addresses[-1])
    await asyncio.sleep(4 * world.settings.look_again_seconds)
    assert successor.record.last_sequence > sequence
    await successor.close()


async def test_truncated_ledgers_are_deleted_and_forgotten(world: BookKeeperLogWorld) -> None:
    log = await own(world)
    addresses = [await log.append([bytes(40_000)]) for _ in range(12)]
    assert len(log.record.ledgers) >= 4
    assert log.statistics().stored_bytes == 12 * 40_000
    await log.truncate(addresses[-2])
    await asyncio.sleep(1.0)
    await log.truncate(addresses[-1])
    await asyncio.sleep(2 * world.settings.look_again_seconds)
    assert len(world.bookies.ledgers) <= 2
    assert log.statistics().stored_bytes <= 2 * 40_000
    await log.close()


async def test_a_ledger_that_cannot_be_deleted_holds_no_other_up(
    world: BookKeeperLogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await own(world)
    addresses = []
    for _ in range(12):
        addresses.append(await log.append([bytes(40_000)]))
        await asyncio.sleep(0.1)
    kept = {each.ledger_id for each in log.record.ledgers[:2]}
    assert len(log.record.ledgers) >= 5
    honest = SimulatedLedgerClient.delete

    async def delete(self: SimulatedLedgerClient, ledger_id: LedgerId) -> None:
        if ledger_id in kept:
            raise LedgerUnavailableError(f"a part of ZooKeeper is damaged ledger={ledger_id}")
        await honest(self, ledger_id)

    monkeypatch.setattr(SimulatedLedgerClient, "delete", delete)
    await log.truncate(addresses[-2])
    await asyncio.sleep(5 * world.settings.look_again_seconds)
    assert kept <= set(world.bookies.ledgers)
    assert len(world.bookies.ledgers) <= len(kept) + 2
    kept.pop()
    await asyncio.sleep(5 * world.settings.look_again_seconds)
    assert len(world.bookies.ledgers) <= len(kept) + 2, "each of them is tried again"
    await log.close()


async def test_restarts_without_entries_leave_no_ledgers(world: BookKeeperLogWorld) -> None:
    for _ in range(20):
        log = await own(world)
        await world.kill(log)
    log = await own(world)
    await asyncio.sleep(2 * world.settings.look_again_seconds)
    assert len(log.record.ledgers) == 1
    assert len(world.bookies.ledgers) == 1
    await log.close()
