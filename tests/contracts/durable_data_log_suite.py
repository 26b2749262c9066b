"""What every DurableDataLog must do. Subclass one of two suites, by what the log does without space for entries:

- LogWithReserveSuite: it refuses ordinary entries, and keeps a reserve for internal ones;
- LogWithoutReserveSuite: it refuses none; all of them wait for space.

Give it one fixture:

- `world`: a LogWorld over an empty log; every open() is a new owner on the same storage, like a restarted process.

Test names say which guarantee (L1 to L8 of the door) they hold.
"""

import asyncio
from contextlib import aclosing
from typing import Protocol

import pytest

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    DurableDataLogError,
    ErrorKind,
    LogDisabledError,
    LogFullError,
    LogNotPrimaryError,
)
from segmentstore.contracts.identifiers import BufferView, LogAddress


class LogWorld(Protocol):
    """One log's storage, and ways to own it."""

    def log(self) -> DurableDataLog:
        """A log object of a new process, not initialised."""

    async def kill(self, log: DurableDataLog) -> None:
        """Its process dies without a word."""

    def take_over(self) -> DurableDataLog:
        """As log(), for a process that may take the log from a living owner that stands still."""

    def fill(self) -> None:
        """Take all space away."""

    def free(self) -> None:
        """Give it back."""


async def opened(world: LogWorld) -> DurableDataLog:
    log = world.log()
    await log.initialize()
    return log


async def entries(log: DurableDataLog) -> list[tuple[LogAddress, bytes]]:
    async with aclosing(log.read()) as found:
        return [(entry.address, bytes(entry.payload)) async for entry in found]


async def payloads(log: DurableDataLog) -> list[bytes]:
    return [payload for _, payload in await entries(log)]


class DurableDataLogSuite:
    """The conformance tests of every log; what comes for want of space is in the two suites below."""

    async def test_a_new_log_is_empty_and_has_the_first_epoch(self, world: LogWorld) -> None:
        log = world.log()
        assert await log.initialize() == 1
        assert log.epoch == 1
        assert len(log.log_id) == 16
        assert await entries(log) == []
        assert log.is_new
        await log.close()
        again = world.log()
        await again.initialize()
        assert not again.is_new, "its first owner left a trace, although it appended nothing"
        await again.close()

    async def test_l1_addresses_grow_in_call_order(self, world: LogWorld) -> None:
        log = await opened(world)
        futures = [log.append([bytes([number])]) for number in range(50)]
        addresses = await asyncio.gather(*futures)
        assert addresses == sorted(set(addresses))
        await log.close()

    async def test_l1_futures_complete_in_call_order(self, world: LogWorld) -> None:
        log = await opened(world)
        done: list[int] = []
        futures = []
        for number in range(50):
            future = log.append([bytes(100 * number)])
            future.add_done_callback(lambda _, number=number: done.append(number))  # type: ignore[misc]  # a default binds the number
            futures.append(future)
            if number % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*futures)
        await asyncio.sleep(0)
        assert done == list(range(50))
        await log.close()

    async def test_append_never_waits(self, world: LogWorld) -> None:
        log = await opened(world)
        future = log.append([b"x"])
        assert not future.done()
        await future
        await log.close()

    async def test_l2_a_completed_append_is_read_by_the_next_owner(self, world: LogWorld) -> None:
        log = await opened(world)
        wanted = [(await log.append([bytes([n]) * n]), bytes([n]) * n) for n in range(20)]
        await world.kill(log)
        successor = await opened(world)
        assert await entries(successor) == wanted
        await successor.close()

    async def test_an_entry_is_the_concatenation_of_its_pieces(self, world: LogWorld) -> None:
        log = await opened(world)
        big = bytes(range(256)) * 128
        pieces: list[BufferView] = [
            b"head",
            memoryview(b"-"),
            memoryview(big)[100:20_000],
            b"",
            b"tail",
            big,
        ]
        await log.append(pieces)
        await log.append([])
        await log.close()
        successor = await opened(world)
        assert await payloads(successor) == [b"head-" + big[100:20_000] + b"tail" + big, b""]
        await successor.close()

    async def test_thousands_of_tiny_pieces_make_one_entry(self, world: LogWorld) -> None:
        log = await opened(world)
        await log.append([b"ab"] * 5000)
        await log.close()
        successor = await opened(world)
        assert await payloads(successor) == [b"ab" * 5000]
        await successor.close()

    async def test_an_entry_of_the_largest_size_fits_and_one_byte_more_does_not(
        self, world: LogWorld
    ) -> None:
        log = await opened(world)
        largest = log.write_settings.entry_bytes_max
        await log.append([bytes(largest)])
        with pytest.raises(AppendTooLargeError):
            await log.append([bytes(largest + 1)])
        await log.append([b"still open"])
        await log.close()

    async def test_a_waiter_that_gives_up_changes_nothing(self, world: LogWorld) -> None:
        log = await opened(world)
        futures = [log.append([bytes([number])]) for number in range(10)]
        futures[3].cancel()
        futures[9].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        # The one before it has no waiter any more; acknowledgements come in order.
        await log.append([b"last"])
        assert log.statistics().outstanding_entries == 0
        assert log.statistics().outstanding_bytes == 0
        await log.close()
        successor = await opened(world)
        assert await payloads(successor) == [*(bytes([number]) for number in range(10)), b"last"]
        await successor.close()

    async def test_l3_a_closed_log_fails_every_append(self, world: LogWorld) -> None:
        log = await opened(world)
        await log.append([b"x"])
        await log.close()
        for _ in range(2):
            with pytest.raises(DurableDataLogError):
                await log.append([b"y"])

    async def test_close_may_be_called_again_and_before_everything_else(
        self, world: LogWorld
    ) -> None:
        never_opened = world.log()
        await never_opened.close()
        await never_opened.close()
        log = await opened(world)
        await log.append([b"x"])
        await log.close()
        await log.close()

    async def test_appends_that_close_overtakes_end_one_way_or_the_other(
        self, world: LogWorld
    ) -> None:
        log = await opened(world)
        futures = [log.append([bytes([number])]) for number in range(40)]
        await asyncio.sleep(0)
        await log.close()
        results = await asyncio.gather(*futures, return_exceptions=True)
        kept = [result for result in results if not isinstance(result, BaseException)]
        assert all(isinstance(result, DurableDataLogError) for result in results[len(kept) :])
        successor = await opened(world)
        assert (await entries(successor))[: len(kept)] == [
            (address, bytes([number])) for number, address in enumerate(kept)
        ]
        await successor.close()

    async def test_l4_a_new_owner_fences_the_old_one(self, world: LogWorld) -> None:
        old = await opened(world)
        await old.append([b"old"])
        new = world.take_over()
        assert await new.initialize() > old.epoch
        with pytest.raises(LogNotPrimaryError) as caught:
            await old.append([b"too late"])
        assert caught.value.kind is ErrorKind.FENCED
        with pytest.raises(LogNotPrimaryError):
            await old.append([b"much too late"])
        assert (await payloads(new))[:1] == [b"old"]
        await new.append([b"new"])
        await new.close()
        await old.close()

    async def test_l8_a_fenced_owner_that_wrote_nothing_since_learns_it_by_asking(
        self, world: LogWorld
    ) -> None:
        first = await opened(world)
        await first.append([b"x"])
        await asyncio.gather(*(first.check_owner() for _ in range(3)))
        second = world.take_over()
        await second.initialize()
        with pytest.raises(LogNotPrimaryError):
            await first.check_owner()
        await second.check_owner()
        assert await payloads(second) == [b"x"]
        await first.close()
        await second.append([b"y"])
        await second.check_owner()
        await second.close()

    async def test_l8_a_closed_log_is_no_owner(self, world: LogWorld) -> None:
        log = await opened(world)
        await log.close()
        with pytest.raises(DurableDataLogError):
            await log.check_owner()

    async def test_epochs_grow_with_every_owner(self, world: LogWorld) -> None:
        epochs = []
        for _ in range(5):
            log = await opened(world)
            epochs.append(log.epoch)
            await log.close()
        assert epochs == sorted(set(epochs))

    async def test_the_log_id_stays(self, world: LogWorld) -> None:
        first = await opened(world)
        await first.close()
        second = await opened(world)
        assert second.log_id == first.log_id
        await second.close()

    async def test_l5_read_starts_behind_the_truncation_point(self, world: LogWorld) -> None:
        log = await opened(world)
        addresses = [await log.append([bytes([number])]) for number in range(10)]
        await log.truncate(addresses[4])
        await log.truncate(addresses[4])
        await log.truncate(addresses[2])
        await world.kill(log)
        successor = await opened(world)
        assert await payloads(successor) == [bytes([number]) for number in range(5, 10)]
        await successor.close()

    async def test_l5_everything_can_be_truncated(self, world: LogWorld) -> None:
        log = await opened(world)
        address = [await log.append([b"x"]) for _ in range(5)][-1]
        await log.truncate(address)
        await log.close()
        successor = await opened(world)
        assert await payloads(successor) == []
        assert await successor.append([b"y"]) > address
        await successor.close()

    async def test_l5_truncation_is_remembered_over_several_owners(self, world: LogWorld) -> None:
        log = await opened(world)
        addresses = [await log.append([bytes([number])]) for number in range(6)]
        await log.truncate(addresses[1])
        await log.close()
        for _ in range(3):
            successor = await opened(world)
            assert await payloads(successor) == [bytes([number]) for number in range(2, 6)]
            await world.kill(successor)

    async def test_l6_what_was_read_once_is_read_again_with_the_same_addresses(
        self, world: LogWorld
    ) -> None:
        log = await opened(world)
        futures = [log.append([bytes([number]) * 300]) for number in range(30)]
        await futures[10]
        await world.kill(log)
        seen: list[tuple[LogAddress, bytes]] = []
        for _ in range(4):
            successor = await opened(world)
            found = await entries(successor)
            assert found[: len(seen)] == seen
            seen = found
            await world.kill(successor)
        assert len(seen) >= 11

    async def test_l6_a_reading_inside_of_another_returns_the_same(self, world: LogWorld) -> None:
        log = await opened(world)
        for number in range(40):
            await log.append([bytes([number]) * 30_000])
        await log.close()
        successor = await opened(world)
        outer: list[tuple[LogAddress, bytes]] = []
        async with aclosing(successor.read()) as found:
            async for entry in found:
                inner = await entries(successor) if len(outer) in (0, 17, 39) else []
                outer.append((entry.address, bytes(entry.payload)))
                assert not inner or inner[: len(outer)] == outer
        assert [payload[:1] for _, payload in outer] == [bytes([number]) for number in range(40)]
        await successor.append([b"and goes on"])
        await successor.close()

    async def test_addresses_never_return(self, world: LogWorld) -> None:
        highest = LogAddress(0)
        for _ in range(4):
            log = await opened(world)
            first = await log.append([b"x"])
            assert first > highest
            highest = await log.append([b"y"])
            await log.truncate(highest)
            await world.kill(log)

    async def test_a_disabled_log_opens_only_after_enable(self, world: LogWorld) -> None:
        log = await opened(world)
        await log.append([b"kept"])
        await log.disable("the first fault")
        await log.disable("what came of it")
        await log.close()
        refused = world.log()
        with pytest.raises(LogDisabledError, match="the first fault") as caught:
            await refused.initialize()
        assert caught.value.kind is ErrorKind.CORRUPT
        await refused.enable()
        await refused.close()
        successor = await opened(world)
        assert await payloads(successor) == [b"kept"]
        await successor.close()

    async def test_statistics_count_what_is_outstanding(self, world: LogWorld) -> None:
        log = await opened(world)
        futures = [log.append([bytes(100)]) for _ in range(7)]
        statistics = log.statistics()
        assert (statistics.outstanding_entries, statistics.outstanding_bytes) == (7, 700)
        await asyncio.gather(*futures)
        statistics = log.statistics()
        assert (statistics.outstanding_entries, statistics.outstanding_bytes) == (0, 0)
        assert statistics.stored_bytes >= 700
        assert not statistics.full
        await log.close()


class LogWithReserveSuite(DurableDataLogSuite):
    """Of a log that refuses ordinary entries while it is full."""

    async def test_h52_a_full_log_refuses_entries_but_takes_internal_ones_and_recovers(
        self, world: LogWorld
    ) -> None:
        log = await opened(world)
        addresses = [await log.append([bytes(500)])]
        world.fill()
        addresses += await self._append_until_refused(log)
        assert log.statistics().full
        addresses.append(await log.append([b"checkpoint"], internal=True))
        await log.truncate(addresses[-1])
        world.free()
        await self._until_accepted(log)
        await log.close()

    async def _append_until_refused(self, log: DurableDataLog) -> list[LogAddress]:
        addresses: list[LogAddress] = []
        for _ in range(10_000):
            future = log.append([bytes(500)])
            await asyncio.gather(future, return_exceptions=True)
            error = future.exception()
            if isinstance(error, LogFullError) and error.kind is ErrorKind.FULL:
                return addresses
            addresses.append(future.result())
        raise AssertionError("the log never became full")

    async def _until_accepted(self, log: DurableDataLog) -> None:
        for _ in range(6000):
            try:
                await log.append([b"there is room again"])
            except LogFullError:
                await asyncio.sleep(0.01)
            else:
                return
        pytest.fail("the log stayed full although there is room again")


class LogWithoutReserveSuite(DurableDataLogSuite):
    """Of a log whose entries wait while there is no space."""

    async def test_h52_without_a_reserve_entries_wait_for_space_in_order_and_none_is_refused(
        self, world: LogWorld
    ) -> None:
        log = await opened(world)
        wanted = [(await log.append([b"before"]), b"before")]
        world.fill()
        payloads = [bytes([number]) * 500 for number in range(20)]
        futures = [
            log.append([payload], internal=number % 2 == 0)
            for number, payload in enumerate(payloads)
        ]
        await asyncio.sleep(0.2)
        assert not any(future.done() for future in futures)
        statistics = log.statistics()
        assert statistics.outstanding_entries == 20
        assert not statistics.full
        world.free()
        addresses = await asyncio.gather(*futures)
        assert addresses == sorted(set(addresses))
        await log.close()
        successor = await opened(world)
        assert await entries(successor) == wanted + list(zip(addresses, payloads, strict=True))
        await successor.close()
