"""What every LedgerClient must do. Subclass LedgerClientSuite and give it one fixture:

- `world`: a LedgerWorld over a cluster of four bookies; every client() is one of another process.

Test names say which guarantee (G1 to G5 of the door) they hold.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import pytest

from segmentstore.contracts.errors import DurableDataLogError, LogCorruptedError
from segmentstore.contracts.identifiers import BufferView
from tier1.bookkeeper.ledgers import (
    LedgerClient,
    LedgerFencedError,
    LedgerId,
    LedgerNotFoundError,
    LedgerReader,
    LedgerWriter,
    Quorum,
    TooFewBookiesError,
)

BOOKIE_COUNT = 4


class LedgerWorld(Protocol):
    """One cluster."""

    async def client(self) -> LedgerClient:
        """Of a process of its own, with the password of all of them."""

    async def stranger(self) -> LedgerClient:
        """The same with another password."""


async def written(client: LedgerClient, entries: int = 0) -> LedgerWriter:
    writer = await client.create(Quorum(), labels={"of": b"the suite"})
    await asyncio.gather(*(writer.append([b"%d" % number]) for number in range(entries)))
    return writer


async def content(reader: LedgerReader) -> list[bytes]:
    if reader.last_entry < 0:
        return []
    return [bytes(entry) for entry in await reader.read(0, reader.last_entry)]


async def outcomes(futures: "list[asyncio.Future[int]]") -> list[int | BaseException]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*futures, return_exceptions=True)


class LedgerClientSuite:
    """The conformance tests."""

    async def test_g1_ids_and_completions_are_in_the_order_of_the_calls(
        self, world: LedgerWorld
    ) -> None:
        writer = await written(await world.client())
        done: list[int] = []
        futures = []
        for number in range(200):
            future = writer.append([bytes(number * 300 % 40_000)])
            future.add_done_callback(lambda _, number=number: done.append(number))  # type: ignore[misc]  # a default binds the number
            futures.append(future)
            if number % 13 == 0:
                await asyncio.sleep(0)
        assert await asyncio.gather(*futures) == list(range(200))
        await asyncio.sleep(0)
        assert done == list(range(200))
        await writer.close()

    async def test_g1_ledgers_that_are_written_together_do_not_mix(
        self, world: LedgerWorld
    ) -> None:
        client = await world.client()
        writers = [await written(client) for _ in range(3)]
        futures = [
            writer.append([b"%d of %d" % (number, place)])
            for number in range(30)
            for place, writer in enumerate(writers)
        ]
        await asyncio.gather(*futures)
        for place, writer in enumerate(writers):
            await writer.close()
            reader = await client.open_fenced(writer.ledger_id)
            assert await content(reader) == [b"%d of %d" % (number, place) for number in range(30)]
            await reader.close()

    async def test_a_ledger_is_looked_at_beside_its_writer(self, world: LedgerWorld) -> None:
        client, other = await world.client(), await world.client()
        writer = await written(client)
        await asyncio.gather(*[writer.append([b"%d" % number]) for number in range(20)])
        await writer.append([b"last"])
        reader = await other.open_unfenced(writer.ledger_id)
        # The last entry may not be known to be acknowledged yet.
        assert reader.last_entry >= 19
        assert [bytes(each) for each in await reader.read(0, 19)] == [b"%d" % n for n in range(20)]
        await reader.close()
        assert await writer.append([b"goes on"]) == 21
        await writer.close()

    async def test_an_append_never_waits(self, world: LedgerWorld) -> None:
        writer = await written(await world.client())
        future = writer.append([b"x"])
        assert not future.done()
        assert await future == 0
        await writer.close()

    async def test_an_entry_is_the_concatenation_of_its_pieces_as_they_were(
        self, world: LedgerWorld
    ) -> None:
        client = await world.client()
        writer = await written(client)
        mutable = bytearray(b"before")
        big = bytes(range(256)) * 1024
        pieces: list[BufferView] = [b"head", memoryview(mutable), b"", memoryview(big)[5:]]
        first = writer.append(pieces)
        mutable[:] = b"after!"
        await asyncio.gather(first, writer.append([]), writer.append([b"ab"] * 5000))
        await writer.close()
        reader = await client.open_fenced(writer.ledger_id)
        assert await content(reader) == [b"headbefore" + big[5:], b"", b"ab" * 5000]
        await reader.close()

    async def test_entries_of_a_megabyte_are_read_as_they_were(self, world: LedgerWorld) -> None:
        client = await world.client()
        writer = await written(client)
        entries = [bytes([number]) * (1 << 20) for number in range(12)]
        await asyncio.gather(*(writer.append([entry]) for entry in entries))
        await writer.close()
        reader = await client.open_fenced(writer.ledger_id)
        assert await content(reader) == entries
        assert [bytes(entry) for entry in await reader.read(3, 4)] == entries[3:5]
        assert reader.length == 12 << 20
        await reader.close()

    async def test_a_waiter_that_gives_up_changes_nothing(self, world: LedgerWorld) -> None:
        client = await world.client()
        writer = await written(client)
        futures = [writer.append([b"%d" % number]) for number in range(10)]
        futures[3].cancel()
        futures[9].cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert await writer.append([b"10"]) == 10
        await writer.close()
        reader = await client.open_fenced(writer.ledger_id)
        assert await content(reader) == [b"%d" % number for number in range(11)]
        await reader.close()

    async def test_close_waits_for_what_was_appended(self, world: LedgerWorld) -> None:
        client = await world.client()
        writer = await written(client)
        futures = [writer.append([b"%d" % number]) for number in range(50)]
        await writer.close()
        await writer.close()
        assert [future.result() for future in futures] == list(range(50))
        with pytest.raises(DurableDataLogError):
            await writer.append([b"too late"])
        reader = await (await world.client()).open_fenced(writer.ledger_id)
        assert reader.last_entry == 49
        assert reader.length == sum(len(b"%d" % number) for number in range(50))
        await reader.close()

    async def test_an_empty_ledger_has_no_last_entry(self, world: LedgerWorld) -> None:
        client = await world.client()
        closed, open_one = await written(client), await written(client)
        await closed.close()
        for writer in (closed, open_one):
            reader = await (await world.client()).open_fenced(writer.ledger_id)
            assert (reader.last_entry, reader.length) == (-1, 0)
            await reader.close()
            await reader.close()

    async def test_g3_an_old_writer_completes_nothing_that_it_appends_later(
        self, world: LedgerWorld
    ) -> None:
        writer = await written(await world.client(), 20)
        other = await world.client()
        reader = await other.open_fenced(writer.ledger_id)
        assert await content(reader) == [b"%d" % number for number in range(20)]
        late = await outcomes([writer.append([b"too late"]) for _ in range(5)])
        assert all(isinstance(each, LedgerFencedError) for each in late), late
        again = await other.open_fenced(writer.ledger_id)
        assert again.last_entry == 19

    async def test_g2_after_one_failure_every_later_append_fails_alike(
        self, world: LedgerWorld
    ) -> None:
        writer = await written(await world.client(), 1)
        await (await world.client()).open_fenced(writer.ledger_id)
        await outcomes([writer.append([b"x"])])
        for _ in range(3):
            with pytest.raises(LedgerFencedError):
                await writer.append([b"y"])

    async def test_g3_what_completed_while_it_was_fenced_is_before_the_last_entry(
        self, world: LedgerWorld
    ) -> None:
        writer = await written(await world.client())
        other = await world.client()
        futures = [writer.append([b"%d" % number + bytes(4000)]) for number in range(300)]
        await futures[20]
        reader = await other.open_fenced(writer.ledger_id)
        found = await outcomes(futures)
        completed = [each for each in found if isinstance(each, int)]
        assert completed == list(range(len(completed)))
        assert all(isinstance(each, LedgerFencedError) for each in found[len(completed) :]), found
        assert reader.last_entry >= completed[-1]
        entries = await content(reader)
        assert entries == [b"%d" % number + bytes(4000) for number in range(reader.last_entry + 1)]

    async def test_g3_of_two_that_fence_at_once_both_find_the_same(
        self, world: LedgerWorld
    ) -> None:
        writer = await written(await world.client())
        first, second = await world.client(), await world.client()
        futures = [writer.append([bytes(2000)]) for _ in range(100)]
        await futures[5]
        readers = await asyncio.gather(
            *(self._opened(each, writer.ledger_id) for each in (first, second))
        )
        await outcomes(futures)
        third = await self._opened(await world.client(), writer.ledger_id)
        assert {each.last_entry for each in readers} == {third.last_entry}
        assert await content(readers[0]) == await content(readers[1]) == await content(third)

    async def _opened(self, client: LedgerClient, ledger_id: LedgerId) -> LedgerReader:
        """Two that recover a ledger may get into one another's way: then it is to be tried again."""
        for _ in range(600):
            try:
                return await client.open_fenced(ledger_id)
            except LedgerNotFoundError:
                raise
            except DurableDataLogError:
                await asyncio.sleep(0.1)
        return await client.open_fenced(ledger_id)

    async def test_a_deleted_ledger_is_not_found_and_may_be_deleted_again(
        self, world: LedgerWorld
    ) -> None:
        client = await world.client()
        writer = await written(client, 3)
        await writer.close()
        reader = await client.open_fenced(writer.ledger_id)
        for _ in range(2):
            await client.delete(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await client.open_fenced(writer.ledger_id)
        with suppress(LedgerNotFoundError):  # the other answer that is allowed
            assert await content(reader) == [b"0", b"1", b"2"]

    async def test_a_ledger_that_never_was_is_not_found(self, world: LedgerWorld) -> None:
        client = await world.client()
        with pytest.raises(LedgerNotFoundError):
            await client.open_fenced(LedgerId(2**40))

    async def test_g5_ids_do_not_return(self, world: LedgerWorld) -> None:
        seen: list[LedgerId] = []
        for _ in range(3):
            client = await world.client()
            writers = [await written(client) for _ in range(2)]
            seen += [writer.ledger_id for writer in writers]
            await client.delete(writers[1].ledger_id)
            await client.close()
        assert len(set(seen)) == len(seen)

    async def test_ledgers_are_found_by_their_labels_while_they_exist(
        self, world: LedgerWorld
    ) -> None:
        client = await world.client()
        wanted = {"log": b"found by its labels", "owner": b"1"}
        mine = [
            await client.create(Quorum(), labels={**wanted, "of": name}) for name in (b"a", b"b")
        ]
        await client.create(Quorum(), labels={**wanted, "owner": b"2"})
        await client.create(Quorum(), labels={})
        await mine[0].close()
        found = {each.ledger_id: dict(each.labels) for each in await client.find_labelled(wanted)}
        assert set(found) == {writer.ledger_id for writer in mine}
        assert found[mine[0].ledger_id].items() >= {**wanted, "of": b"a"}.items()
        await client.delete(mine[0].ledger_id)
        left = await client.find_labelled(wanted)
        assert [each.ledger_id for each in left] == [mine[1].ledger_id]

    async def test_more_bookies_than_live_are_too_few(self, world: LedgerWorld) -> None:
        client = await world.client()
        assert await client.living_bookies() == BOOKIE_COUNT
        with pytest.raises(TooFewBookiesError):
            await client.create(Quorum(BOOKIE_COUNT + 1, 3, 2), labels={})

    async def test_another_password_opens_nothing(self, world: LedgerWorld) -> None:
        writer = await written(await world.client(), 1)
        stranger = await world.stranger()
        with pytest.raises(LogCorruptedError, match="password"):
            await stranger.open_fenced(writer.ledger_id)
        assert await writer.append([b"not fenced"]) == 1

    async def test_a_closed_client_fails_what_waits_and_what_comes(
        self, world: LedgerWorld
    ) -> None:
        client = await world.client()
        writer = await written(client, 2)
        futures = [writer.append([bytes(100_000)]) for _ in range(30)]
        await client.close()
        await client.close()
        found = await outcomes([*futures, writer.append([b"later"])])
        completed = [each for each in found if isinstance(each, int)]
        assert all(isinstance(each, DurableDataLogError) for each in found[len(completed) :])
        later: list[Callable[[], Awaitable[object]]] = [
            lambda: client.open_fenced(writer.ledger_id),
            lambda: client.create(Quorum(), labels={}),
            lambda: client.delete(writer.ledger_id),
            client.living_bookies,
        ]
        for call in later:
            with pytest.raises(DurableDataLogError):
                await call()
