"""A bug in a callback of the loop ends the container with its cause, and nothing waits for ever.

Goal: work that no task does (the pump, completions, slices of a checkpoint, memory that is given back) has no one who
would see its exception. Each must end the container as a failed task does: it says why, answers everything that is
under way, and closes.

Method: a scenario that uses most of the container is run again and again; each time another one of the calls that the
container's code makes from plain callbacks of the loop raises.
"""

import asyncio
import inspect
import sys
from contextlib import aclosing
from pathlib import PurePath
from random import Random
from types import FrameType

import pytest

import containers
from containers.container_settings import (
    CheckpointSettings,
    ContainerSettings,
    ReadIndexSettings,
)
from containers.log import checkpoints
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.contracts.tables import TableEntry
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container

PATIENCE_SECONDS = 60.0
"""Only ever waited for by a test that is about to fail."""

SETTINGS = ContainerSettings(
    writer=FAST_FLUSH,
    checkpoints=CheckpointSettings(operations_max=20),
    read_index=ReadIndexSettings(discards_per_turn=1),
    housekeeping_seconds=0.01,
)

CALLS = 2000
"""Fewer than the scenario makes."""

FOLDER = str(PurePath(containers.__file__ or "").parent)

HARMLESS = frozenset(
    {"_wake_slice", "_delay_over", "_time_is_up", "_waiter_left", "unpin", "appended"}
)
"""Callbacks that set the results of futures that are not done, or count, and do nothing else; what a table's `appended`
raises is its caller's answer."""


class CallbackError(Exception):
    """Raised where none of ours would be."""


class CallbackFault:
    """A profile function: raises in the `number`-th call that the container's code makes from a plain callback."""

    def __init__(self, number: int = -1) -> None:
        self.number = number
        self.calls = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(FOLDER):
            return
        # A generator is entered once more when it is thrown away before its end, and what it raises then Python only
        # reports: no code of ours runs there. What generators call raises like all else.
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        try:
            if asyncio.current_task() is not None:
                return
        except RuntimeError:
            return  # no loop runs
        root = frame
        while root.f_back is not None and root.f_back.f_code.co_filename != asyncio.events.__file__:
            root = root.f_back
        if root.f_back is None or root.f_code.co_name in HARMLESS:
            return
        self.calls += 1
        if self.calls == self.number:
            self.where = f"{frame.f_code.co_qualname} in {root.f_code.co_qualname}"
            raise CallbackError(self.where)


async def append_all(container: StreamSegmentContainer, name: str) -> None:
    async with container.open_segment(name) as segment:
        for number in range(25):
            update = AttributeUpdate(AttributeKey(b"writer"), number)
            await segment.append(b"e" * 3000, attribute_updates=[update])


async def follow(container: StreamSegmentContainer, name: str) -> None:
    async with container.open_segment(name) as segment:
        offset = 0
        while True:
            async with aclosing(segment.read(offset, 1 << 20)) as entries:
                async for entry in entries:
                    content = await entry.content()
                    if not content:
                        return
                    offset += len(content)


async def put_all(container: StreamSegmentContainer, name: str) -> None:
    await container.create_table(name)
    async with container.open_table(name) as table:
        for number in range(20):
            await table.update([TableEntry(b"key%d" % (number % 5), b"v" * 100)])


async def come_and_go(container: StreamSegmentContainer, name: str) -> None:
    for _ in range(4):
        await container.create(name)
        async with container.open_segment(name) as segment:
            await asyncio.gather(*(segment.append(b"t" * 5000) for _ in range(4)))
        await container.truncate(name, 7000)
        await container.flush(name)
        await container.delete(name)


async def merge_all(container: StreamSegmentContainer, target: str) -> None:
    for number in range(4):
        source = f"{target}#transaction.{number:032x}"
        await container.create(source)
        async with container.open_segment(source) as segment:
            await segment.append(b"m" * 9000)
        await container.merge(target, source, seal_source=True)


async def scenario(container: StreamSegmentContainer) -> None:
    try:
        await container.create("a")
        await container.create("b")
        async with asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(follow(container, "a"))
            tasks.create_task(put_all(container, "table"))
            tasks.create_task(come_and_go(container, "c"))
            tasks.create_task(merge_all(container, "b"))
            await append_all(container, "a")
            await container.seal("a")
            await follower
    except* SegmentStoreError:
        pass


async def life(fault: CallbackFault) -> None:
    """The scenario in a container of its own, which is closed then."""
    reports: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    container = make_container(MemoryTiers(), settings=SETTINGS)
    await container.start()
    run = loop.create_task(container.run())
    sys.setprofile(fault)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await scenario(container)
            if fault.where:
                await asyncio.wait([run])
            await container.close()
    finally:
        sys.setprofile(None)
    if fault.where:
        with pytest.raises(CallbackError):
            await run
        assert container.health().state is ContainerState.FAILED
        assert container.health().cause == fault.where
    else:
        await run
    assert not reports, f"{fault.where}: {reports}"
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a few segments is prepared in several turns of the loop."""
    monkeypatch.setattr(checkpoints, "SLICE_COUNT", 1)


@pytest.mark.parametrize("seed", range(30))
async def test_h22_a_bug_in_any_callback_ends_the_container_with_its_cause(seed: int) -> None:
    fault = CallbackFault(Random(seed).randrange(1, CALLS))
    await life(fault)
    assert fault.where


async def test_a_life_without_a_bug_in_a_callback_ends_in_order() -> None:
    counted = CallbackFault()
    await life(counted)
    assert counted.calls > CALLS, "the scenario has fewer callbacks than it had"
