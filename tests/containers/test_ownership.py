"""A container tells nothing that another owner of its log could contradict, unless it is known to be the owner still.

Two containers over the same tiers: the second one fences the first, which idles and has heard nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerNotFoundError,
    ContainerStoppedError,
    DurableDataLogError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView, LogAddress
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    ReadResultEntryKind,
    Segment,
)
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry, TableKey
from tests.containers.node import MemoryTiers, make_container, running
from tier1.memory_log import MemoryDurableDataLog

KEY = AttributeKey(b"k" * 16)


class SwitchedLease:
    """Valid until it is over."""

    def __init__(self) -> None:
        self.valid = True

    def is_valid(self) -> bool:
        return self.valid


class AskedLog(MemoryDurableDataLog):
    """Counts the looks, and holds them back or fails them."""

    def __init__(self, tiers: MemoryTiers) -> None:
        super().__init__(tiers.log_store)
        self.looks = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    async def check_owner(self) -> None:
        self.looks += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().check_owner()


@asynccontextmanager
async def fenced(tiers: MemoryTiers) -> AsyncIterator[StreamSegmentContainer]:
    """A container that was fenced just now, with a segment `a` of 3 bytes, a sealed one `s` and a table `t`."""
    container = make_container(tiers, lease=None)
    await container.start()
    running_container = asyncio.create_task(container.run())
    await container.create("a", [AttributeUpdate(KEY, 7)])
    await container.create("s")
    await container.seal("s")
    await container.create_table("t")
    async with container.open_segment("a") as segment, container.open_table("t") as table:
        await segment.append(b"abc")
        await table.update([TableEntry(b"key", b"value")])
    await container.flush()
    tiers.log_store.epoch += 1  # what a new owner does first
    try:
        yield container
    finally:
        await container.close()
        await asyncio.gather(running_container, return_exceptions=True)


async def first_kind(segment: Segment, offset: int) -> ReadResultEntryKind:
    async with aclosing(segment.read(offset, 10)) as entries:
        async for entry in entries:
            return entry.kind
    raise AssertionError("no entry")


async def read_at_the_end(container: StreamSegmentContainer) -> object:
    async with container.open_segment("a") as segment:
        return await first_kind(segment, 3)


async def get(container: StreamSegmentContainer) -> object:
    async with container.open_table("t") as table:
        assert table.get_nowait([b"key"]) is None, "answered without asking"
        return await table.get([b"key"])


async def iterate(container: StreamSegmentContainer) -> object:
    async with container.open_table("t") as table:
        return await table.read_entries(count=10)


async def refused_update(container: StreamSegmentContainer) -> object:
    async with container.open_table("t") as table:
        return await table.update([TableEntry(b"key", b"new", NOT_EXISTS)])


async def refused_removal(container: StreamSegmentContainer) -> object:
    async with container.open_table("t") as table:
        await table.remove([TableKey(b"none", 5)])
    return None


TOLD: dict[str, Callable[[StreamSegmentContainer], Awaitable[object]]] = {
    "no such segment, to info": lambda c: c.info("b"),
    "no such segment, to seal": lambda c: c.seal("b"),
    "no such segment, to truncate": lambda c: c.truncate("b", 1),
    "no such segment, to delete": lambda c: c.delete("b"),
    "no such segment, to merge": lambda c: c.merge("a", "b"),
    "no such segment, to an update": lambda c: c.update_attributes("b", []),
    "no such table, to delete_table": lambda c: c.delete_table("u", must_be_empty=False),
    "exists": lambda c: c.create("a"),
    "the table exists": lambda c: c.create_table("t"),
    "a length": lambda c: c.info("a"),
    "attributes": lambda c: c.attributes("a"),
    "one attribute": lambda c: c.attributes("a", [KEY]),
    "sealed already": lambda c: c.seal("s"),
    "truncated already": lambda c: c.truncate("a", 0),
    "an offset past the end": lambda c: c.truncate("a", 9),
    "an attribute's other value": lambda c: c.update_attributes(
        "a", [AttributeUpdate(KEY, 8, AttributeUpdateType.REPLACE_IF_EQUALS, 9)]
    ),
    "a source that is not sealed": lambda c: c.merge("s", "a"),
    "a listing": lambda c: c.list_segments(),
    "not empty": lambda c: c.delete_table("t", must_be_empty=True),
    "nothing yet": read_at_the_end,
    "a value": get,
    "values": iterate,
    "the key exists": refused_update,
    "the key does not exist": refused_removal,
}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD.keys())
async def test_h82_a_fenced_owner_that_has_heard_nothing_tells_nothing_and_ends(
    told: Callable[[StreamSegmentContainer], Awaitable[object]],
) -> None:
    async with fenced(MemoryTiers()) as container:
        with pytest.raises((ContainerNotFoundError, ContainerStoppedError)):
            async with asyncio.timeout(60):
                await told(container)
        while container.health().state is not ContainerState.FAILED:
            await asyncio.sleep(0)


async def test_h82_an_owner_tells_all_of_it_when_its_log_says_so() -> None:
    async with running(MemoryTiers(), lease=None) as container:
        await container.create("a")
        with pytest.raises(SegmentNotFoundError):
            await container.info("b")
        with pytest.raises(SegmentExistsError):
            await container.create("a")
        async with container.open_segment("a") as segment:
            await segment.append(b"abc")
            assert not segment.is_sure()
            assert list(segment.views_nowait(0, 10)) == [b"abc"], "bytes need no proof"
            assert segment.views_nowait(9, 10) == (), "a refusal does"
            assert await first_kind(segment, 0) is ReadResultEntryKind.CACHE
            assert await first_kind(segment, 3) is ReadResultEntryKind.FUTURE
            with pytest.raises(BadOffsetError):
                await first_kind(segment, 9)
            with pytest.raises(BadOffsetError):
                await segment.append(b"d", offset=2)
            assert await segment.barrier() == 3
            await container.seal("a")
            with pytest.raises(SegmentSealedError):
                await segment.append(b"d")


async def test_h82_what_is_kept_open_is_fenced_with_its_container() -> None:
    async with fenced_with_open_segment() as (container, segment):
        with pytest.raises(ContainerNotFoundError):
            await segment.append(b"d", offset=2)
        with pytest.raises(ContainerNotFoundError):
            await first_kind(segment, 3)
        with pytest.raises(ContainerNotFoundError):
            segment.info()
        with pytest.raises(ContainerNotFoundError):
            segment.views_nowait(0, 10)
        del container


@asynccontextmanager
async def fenced_with_open_segment() -> AsyncIterator[tuple[StreamSegmentContainer, Segment]]:
    tiers = MemoryTiers()
    container = make_container(tiers, lease=None)
    await container.start()
    work = asyncio.create_task(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment:
        await segment.append(b"abc")
        tiers.log_store.epoch += 1
        yield container, segment
    await asyncio.gather(work, return_exceptions=True)


async def test_h82_those_that_ask_during_a_look_share_the_next_one() -> None:
    tiers = MemoryTiers()
    log = AskedLog(tiers)
    async with running(tiers, log=log, lease=None) as container:
        await container.create("a")
        log.gate.clear()
        looks = log.looks
        first = asyncio.create_task(container.info("a"))
        while log.looks == looks:
            await asyncio.sleep(0)
        later = [asyncio.create_task(container.info("a")) for _ in range(20)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(each.done() for each in later), (
            "they began behind the look that is under way"
        )
        log.gate.set()
        await asyncio.gather(first, *later)
        assert log.looks == looks + 2


async def test_h82_a_look_that_fails_refuses_those_that_wait_for_it_and_ends_nothing() -> None:
    tiers = MemoryTiers()
    log = AskedLog(tiers)
    async with running(tiers, log=log, lease=None) as container:
        await container.create("a")
        log.failure = DurableDataLogError("no ZooKeeper is connected")
        with pytest.raises(ContainerNotFoundError, match="no ZooKeeper"):
            await container.info("a")
        async with asyncio.timeout(60):
            await container.create("b")  # a write proves itself
        log.failure = None
        assert (await container.info("b")).length == 0


async def test_h82_a_caller_that_leaves_takes_the_look_from_no_other() -> None:
    tiers = MemoryTiers()
    log = AskedLog(tiers)
    async with running(tiers, log=log, lease=None) as container:
        await container.create("a")
        log.gate.clear()
        leaving, staying = (asyncio.create_task(container.info("a")) for _ in range(2))
        for _ in range(5):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        log.gate.set()
        assert (await staying).length == 0


async def test_h82_closing_ends_what_waits_for_a_look() -> None:
    tiers = MemoryTiers()
    log = AskedLog(tiers)
    async with running(tiers, log=log, lease=None) as container:
        await container.create("a")
        log.gate.clear()
        waiting = [asyncio.create_task(container.info("a")) for _ in range(2)]
        for _ in range(5):
            await asyncio.sleep(0)
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(each, ContainerNotFoundError), each


async def test_h83_with_a_valid_lease_the_log_is_never_asked() -> None:
    tiers, lease = MemoryTiers(), SwitchedLease()
    log = AskedLog(tiers)
    async with running(tiers, log=log, lease=lease) as container:
        await container.create_table("t")
        with pytest.raises(SegmentNotFoundError):
            await container.info("b")
        async with container.open_table("t") as table:
            await table.update([TableEntry(b"key", b"value")])
            assert table.get_nowait([b"key"]) is not None
        assert log.looks == 0


async def test_h83_a_lease_that_is_over_refuses_everything_at_once_though_the_log_is_still_its_own() -> (
    None
):
    tiers, lease = MemoryTiers(), SwitchedLease()
    log = AskedLog(tiers)
    async with running(tiers, log=log, lease=lease) as container:
        await container.create("a")
        await container.create_table("t")
        async with container.open_segment("a") as segment, container.open_table("t") as table:
            await segment.append(b"abc")
            await table.update([TableEntry(b"key", b"value")])
            lease.valid = False
            for told in (
                lambda: segment.info(),
                lambda: segment.views_nowait(0, 3),
                lambda: segment.read_nowait(0, 3),
                lambda: table.get_nowait([b"key"]),
                lambda: table.info(),
            ):
                with pytest.raises(ContainerNotFoundError):
                    told()
            for verb in TOLD.values():
                with pytest.raises(ContainerNotFoundError):
                    await verb(container)
            with pytest.raises(ContainerNotFoundError):
                await segment.append(b"d", offset=2)
        assert log.looks == 0


async def test_h83_a_lease_that_ends_between_the_judgement_and_the_answer_is_seen() -> None:
    """A refused append waits behind one that is not durable yet, and the process stands still meanwhile."""
    lease = SwitchedLease()
    async with running(MemoryTiers(), lease=lease) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            stored = segment.append(b"abc")
            refused = segment.append(b"d", offset=1)
            lease.valid = False
            assert await stored == 3, "durable is durable: the next owner has it"
            with pytest.raises(ContainerNotFoundError):
                await refused


class SilentLog(MemoryDurableDataLog):
    """Answers no append from some time on."""

    is_silent = False

    def append(
        self, entry: Sequence[BufferView], *, internal: bool = False
    ) -> "asyncio.Future[LogAddress]":
        if self.is_silent:
            return asyncio.get_running_loop().create_future()
        return super().append(entry, internal=internal)


async def test_without_its_lease_a_container_does_not_wait_for_what_its_log_leaves_unanswered() -> (
    None
):
    tiers, lease = MemoryTiers(), SwitchedLease()
    log = SilentLog(tiers.log_store)
    container = make_container(tiers, log=log, lease=lease)
    await container.start()
    at_work = asyncio.create_task(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment, asyncio.timeout(60):
        log.is_silent = True
        under_way = segment.append(b"unknown")
        await asyncio.sleep(0)
        lease.valid = False
        at_work.cancel()  # as a host does
        with pytest.raises(ContainerStoppedError):
            await under_way
        await asyncio.wait([at_work])
    assert container.health().state is ContainerState.STOPPED
