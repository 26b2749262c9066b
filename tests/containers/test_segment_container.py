"""The verbs of one container over memory tiers, and what is left of them after a restart."""

import asyncio
from contextlib import aclosing

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    MergeRefusedError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentNotSealedError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    ReadResultEntryKind,
)
from tests.containers.node import MemoryTiers, running

WRITER = AttributeKey(b"writer-1")


async def read_all(container: StreamSegmentContainer, name: str, offset: int = 0) -> bytes:
    """Everything readable now."""
    parts: list[bytes] = []
    async with container.open_segment(name) as segment:
        end = segment.info().length
        while offset < end:
            async with aclosing(segment.read(offset, end - offset)) as entries:
                async for entry in entries:
                    content = await entry.content()
                    parts.append(content)
                    offset += len(content)
    return b"".join(parts)


async def append(container: StreamSegmentContainer, name: str, *pieces: bytes) -> int:
    end = 0
    async with container.open_segment(name) as segment:
        for future in [segment.append(piece) for piece in pieces]:
            end = await future
    return end


async def test_acked_bytes_are_readable_at_once_and_after_a_restart() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        assert await append(container, "a", b"one", b"two", b"three") == 11
        assert await read_all(container, "a") == b"onetwothree"
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"onetwothree"
        assert await append(container, "a", b"!") == 12
        assert await read_all(container, "a") == b"onetwothree!"


async def test_flushed_bytes_come_back_from_tier_2_when_the_log_is_gone() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        await append(container, "a", b"x" * 100_000, b"y" * 100_000)
        await container.flush()
        assert (await container.info("a")).storage_length == 200_000
    async with running(tiers, cache_bytes=1 << 20) as container:
        assert await read_all(container, "a") == b"x" * 100_000 + b"y" * 100_000


async def test_creating_twice_is_refused_also_after_eviction_and_restart() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        with pytest.raises(SegmentExistsError):
            await container.create("a")
        await container.flush()
    async with running(tiers) as container:
        with pytest.raises(SegmentExistsError):
            await container.create("a")


async def test_h63_of_several_concurrent_creates_exactly_one_wins() -> None:
    async with running(MemoryTiers()) as container:
        results = await asyncio.gather(
            *(container.create("a") for _ in range(20)), return_exceptions=True
        )
        winners = [result for result in results if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert all(isinstance(r, SegmentExistsError) for r in results if isinstance(r, Exception))


async def test_what_does_not_exist_is_not_found() -> None:
    async with running(MemoryTiers()) as container:
        with pytest.raises(SegmentNotFoundError):
            await container.info("nothing")
        with pytest.raises(SegmentNotFoundError):
            await append(container, "nothing", b"x")
        with pytest.raises(SegmentNotFoundError):
            await container.delete("nothing")


async def test_a_conditional_append_meets_the_offset_or_is_refused_with_the_real_one() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            first = segment.append(b"12345", offset=0)
            second = segment.append(b"67890", offset=5)
            third = segment.append(b"again", offset=5)
            assert (await first, await second) == (5, 10)
            with pytest.raises(BadOffsetError) as refusal:
                await third
            assert refusal.value.expected == 10


async def test_a_writer_id_makes_appends_idempotent() -> None:
    tiers = MemoryTiers()

    def event(number: int) -> AttributeUpdate:
        return AttributeUpdate(WRITER, number, AttributeUpdateType.REPLACE_IF_GREATER)

    async with running(tiers) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            await segment.append(b"one", attribute_updates=[event(1)])
            await segment.append(b"two", attribute_updates=[event(2)])
            with pytest.raises(BadAttributeUpdateError) as refusal:
                await segment.append(b"two", attribute_updates=[event(2)])
            assert refusal.value.current == 2
        await container.flush()
    async with running(tiers) as container:
        async with container.open_segment("a") as segment:
            with pytest.raises(BadAttributeUpdateError):
                await segment.append(b"two", attribute_updates=[event(2)])
            await segment.append(b"three", attribute_updates=[event(3)])
        assert await read_all(container, "a") == b"onetwothree"


async def test_seal_ends_appends_and_readers() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            await segment.append(b"last")
            async with aclosing(segment.read(4, 100)) as entries:
                entry = await anext(aiter(entries))
                assert entry.kind is ReadResultEntryKind.FUTURE
                waiting = asyncio.ensure_future(entry.content())
                await asyncio.sleep(0)
                assert await container.seal("a") == 4
                assert await waiting == b""
            with pytest.raises(SegmentSealedError) as refusal:
                await segment.append(b"more")
            assert refusal.value.length == 4
            async with aclosing(segment.read(4, 100)) as entries:
                assert (await anext(aiter(entries))).kind is ReadResultEntryKind.END_OF_SEGMENT
        assert await container.seal("a") == 4
    async with running(tiers) as container:
        assert (await container.info("a")).sealed


async def test_append_and_seal_are_one_operation() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            assert await segment.append(b"end", seal=True) == 3
            assert segment.info().sealed
    async with running(tiers) as container:
        info = await container.info("a")
        assert (info.sealed, info.length) == (True, 3)
        await container.flush()
        assert (await container.info("a")).sealed_in_storage


async def test_truncated_bytes_are_gone_everywhere() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        await append(container, "a", b"0123456789")
        await container.truncate("a", 4)
        async with container.open_segment("a") as segment, aclosing(segment.read(3, 10)) as entries:
            entry = await anext(aiter(entries))
            assert entry.kind is ReadResultEntryKind.TRUNCATED
            with pytest.raises(SegmentTruncatedError):
                await entry.content()
        assert await read_all(container, "a", 4) == b"456789"
        with pytest.raises(BadOffsetError):
            await container.truncate("a", 11)
        await container.truncate("a", 2)
        assert (await container.info("a")).start_offset == 4
        await container.flush()
    async with running(tiers) as container:
        assert (await container.info("a")).start_offset == 4
        assert await read_all(container, "a", 4) == b"456789"


@pytest.mark.parametrize("flushed_first", [False, True])
async def test_a_merge_moves_the_source_to_the_end_of_the_target(flushed_first: bool) -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("target")
        await container.create("source")
        await append(container, "target", b"abc")
        await append(container, "source", b"defg")
        with pytest.raises(SegmentNotSealedError):
            await container.merge("target", "source")
        await container.seal("source")
        if flushed_first:
            await container.flush()
        assert await container.merge("target", "source") == 7
        assert await append(container, "target", b"hi") == 9
        assert await read_all(container, "target") == b"abcdefghi"
        with pytest.raises(SegmentNotFoundError):
            await container.info("source")
        await container.flush()
        assert await read_all(container, "target") == b"abcdefghi"
        await container.create("source")
        assert await read_all(container, "source") == b""
    async with running(tiers) as container:
        assert await read_all(container, "target") == b"abcdefghi"
        names = [found.name for found in await container.list_segments()]
        assert names == ["source", "target"]


async def test_merges_that_make_no_sense_are_refused() -> None:
    async with running(MemoryTiers()) as container:
        for name in ("a", "b", "c"):
            await container.create(name)
        await append(container, "b", b"12345")
        await container.seal("b")
        await container.truncate("b", 2)
        with pytest.raises(SegmentTruncatedError):
            await container.merge("a", "b")
        with pytest.raises(MergeRefusedError):
            await container.merge("a", "a")
        await container.seal("a")
        await container.seal("c")
        with pytest.raises(SegmentSealedError):
            await container.merge("a", "c")


async def test_h20_a_recreated_name_is_another_segment() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        for round_number in range(5):
            created = await container.create("a", [AttributeUpdate(WRITER, round_number)])
            assert created.length == 0
            await append(container, "a", b"round %d" % round_number)
            if round_number % 2:
                await container.flush()
            await container.delete("a")
            with pytest.raises(SegmentNotFoundError):
                await container.info("a")
        await container.create("a")
        assert await container.attributes("a") == {}
        await append(container, "a", b"new")
        await container.flush()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"new"


async def test_deleting_ends_waiting_readers_with_not_found() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with (
            container.open_segment("a") as segment,
            aclosing(segment.read(0, 100)) as entries,
        ):
            entry = await anext(aiter(entries))
            waiting = asyncio.ensure_future(entry.content())
            await asyncio.sleep(0)
            await container.delete("a")
            with pytest.raises(SegmentNotFoundError):
                await waiting


async def test_attributes_survive_flush_truncation_of_the_log_and_restart() -> None:
    tiers = MemoryTiers()
    values = {AttributeKey(b"k%d" % n): n for n in range(50)}
    async with running(tiers) as container:
        await container.create("a")
        await container.update_attributes("a", [AttributeUpdate(k, v) for k, v in values.items()])
        await container.update_attributes("a", [AttributeUpdate(AttributeKey(b"k7"), None)])
        await container.flush()
    del values[AttributeKey(b"k7")]
    async with running(tiers) as container:
        assert await container.attributes("a") == values
        async with container.open_segment("a") as segment:
            found = await segment.load_attributes([AttributeKey(b"k3"), AttributeKey(b"k7")])
            assert found == {b"k3": 3}


async def test_h24_a_refusal_waits_for_what_it_was_judged_against() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            accepted = segment.append(b"x", offset=0)
            refused = segment.append(b"y", offset=0)
            assert not refused.done()
            with pytest.raises(BadOffsetError):
                await refused
            assert accepted.done()


async def test_h25_a_barrier_answers_after_everything_before_it() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            appends = [segment.append(b"12345") for _ in range(100)]
            assert await segment.barrier() == 500
            assert all(future.done() for future in appends)


async def test_listing_pages_through_memory_and_tier_2_in_name_order() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        for number in range(30):
            await container.create(f"s/{number:02}")
        await container.create("t")
        await container.flush()
        await container.delete("s/07")
    async with running(tiers) as container:
        first = await container.list_segments("s/", "", 10)
        second = await container.list_segments("s/", first[-1].name, 100)
        names = [found.name for found in [*first, *second]]
        assert names == [f"s/{number:02}" for number in range(30) if number != 7]


async def test_a_container_that_runs_checks_out() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        await append(container, "a", *[b"x" * 1000] * 50)
        container.check()
        await container.flush()
        container.check()
        assert container.health().ready
        assert container.metrics()["append_bytes_total"] == 50_000
