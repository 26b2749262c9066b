"""Whole lives of a container, chosen at random, against a model in a dictionary (H13, H17, H20, H30, H32, H74, H76).

Each run is a few lives over the same two tiers. A life ends without a word, as with kill -9, or by close(). Settings
turn every corner quickly: frames of one operation, checkpoints that span frames, four active segments, publications
of fifty bytes. Whatever was acknowledged has to be there, and nothing else, before and after every end.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import BLOCK_BYTES_MIN, CacheStorage
from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, SHORT_LIVED, AttributeKey
from segmentstore.contracts.segments import (
    AttributeUpdate,
    AttributeUpdateType,
    SegmentProperties,
)
from tests.containers.random_lives import ContainerLives
from tests.containers.test_segment_container import read_all
from tier1.memory_log import MemoryDurableDataLog
from tier2.tiered_storage import TieredStorage

NAMES = ["a", "b", "c", "d", "e", "e#transaction." + "0" * 32]
KEYS = [AttributeKey(b"short"), AttributeKey(b"w" * 16)]


@dataclass(slots=True)
class ModelSegment:
    """What a segment must be."""

    content: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    sealed: bool = False
    attributes: dict[AttributeKey, int] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)
    """Offset at which an event begins, as far as that was declared -> its number (H76)."""
    merged: dict[str, int] = field(default_factory=dict)
    """What was merged into it -> its length behind that (H74)."""

    @property
    def event_count(self) -> int:
        return self.attributes.get(EVENT_COUNT, 0)

    def count_events(self, count: int) -> None:
        self.attributes[EVENT_COUNT] = self.event_count + count


class RandomLives(ContainerLives):
    """The model, and one container after another that has to agree with it."""

    steps_max = 50

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.model: dict[str, ModelSegment] = {}
        self.events_seen = 0

    def settings(self) -> ContainerSettings:
        return self.corner_settings(
            active_segments=[4, 100],
            writer={"remembered_records_max": [1, 1000], "publication_segments_max": [1, 1000]},
        )

    async def compare(self, container: StreamSegmentContainer) -> None:
        for name in NAMES:
            expected = self.model.get(name)
            if expected is None:
                with pytest.raises(SegmentNotFoundError):
                    await container.info(name)
                continue
            info = await container.info(name)
            assert (info.length, info.start_offset, info.sealed) == (
                len(expected.content),
                expected.start_offset,
                expected.sealed,
            )
            content = await read_all(container, name, expected.start_offset)
            assert content == expected.content[expected.start_offset :]
            assert await container.attributes(name) == expected.attributes
            await self.compare_blocks(container, info, expected)
        listed = [found.name for found in await container.list_segments()]
        assert listed == sorted(self.model)
        container.check()

    async def compare_blocks(
        self, container: StreamSegmentContainer, info: SegmentProperties, expected: ModelSegment
    ) -> None:
        """What Tier 2 says of events is true, whatever it leaves out."""
        storage = container._recovered.storage
        assert isinstance(storage, TieredStorage)
        record = await storage.find(info.name)
        if record is None or record.segment_id != info.segment_id:
            return
        if record.start_offset == record.length:
            return
        blocks = storage.list_blocks(record.segment_id, record.start_offset, record.length)
        try:
            async with aclosing(blocks):
                async for block in blocks:
                    if block.first_event_offset is not None:
                        self.events_seen += 1
                        assert expected.events[block.first_event_offset] == block.event_number
        except SegmentTruncatedError:
            return  # a truncation of before was published meanwhile

    async def step(self, container: StreamSegmentContainer) -> None:
        random, name = self.random, self.random.choice(NAMES)
        segment = self.model.get(name)
        match random.choice(["append"] * 6 + ["create"] * 3 + ["merge"] * 2 + REST):
            case "create":
                try:
                    # Attributes of half of the names.
                    attributes = {SHORT_LIVED: 1} if name in NAMES[::2] else {}
                    updates = [AttributeUpdate(key, value) for key, value in attributes.items()]
                    await container.create(name, updates)
                except SegmentExistsError:
                    assert segment is not None
                else:
                    assert segment is None
                    self.model[name] = ModelSegment()
                    self.model[name].attributes.update(attributes)
                    for each in self.model.values():
                        each.merged.pop(name, None)
            case "append" if segment is not None and not segment.sealed:
                await self.append(container, name, segment)
            case "seal" if segment is not None:
                assert await container.seal(name) == len(segment.content)
                segment.sealed = True
            case "truncate" if segment is not None:
                offset = random.randrange(len(segment.content) + 1)
                await container.truncate(name, offset)
                segment.start_offset = max(segment.start_offset, offset)
            case "merge" if segment is not None and not segment.start_offset:
                await self.merge(container, name, segment)
            case "merge many" if segment is not None and not segment.sealed:
                await self.merge_many(container, name, segment)
            case "delete" if segment is not None:
                await container.delete(name)
                del self.model[name]
            case "merge again" if segment is not None and segment.merged:
                source = random.choice(sorted(segment.merged))
                if source not in self.model:
                    assert await container.merge(name, source) == segment.merged[source]
                elif random.random() < 0.5:
                    await container.forget_merged(name, [source])
                    del segment.merged[source]
            case other:
                await self.look_after(container, other)

    async def append(
        self, container: StreamSegmentContainer, name: str, model: ModelSegment
    ) -> None:
        random = self.random
        async with container.open_segment(name) as segment:
            futures = []
            for _ in range(random.randrange(1, 4)):
                data = random.randbytes(random.choice([0, 1, 10, 100, 2000]))
                key = random.choice(KEYS)
                update = AttributeUpdate(key, 1, AttributeUpdateType.ACCUMULATE)
                model.sealed = random.random() < 0.05
                events = None
                if len(data) >= 10 and random.random() < 0.5:
                    events = len(data) // 10
                    model.events[len(model.content)] = model.event_count
                    model.count_events(events)
                futures.append(
                    segment.append(
                        data, attribute_updates=[update], seal=model.sealed, events=events
                    )
                )
                model.content += data
                model.attributes[key] = model.attributes.get(key, 0) + 1
                if model.sealed:
                    break
            assert [await future for future in futures][-1] == len(model.content)

    async def merge(
        self, container: StreamSegmentContainer, name: str, source: ModelSegment
    ) -> None:
        target_name = self.random.choice(NAMES)
        target = self.model.get(target_name)
        if target is None or target is source or target.sealed:
            return
        if self.random.random() < 0.5:
            await container.seal(name)
        self.take_in(target, name)
        length = await container.merge(target_name, name, seal_source=True)
        assert length == len(target.content)

    async def merge_many(
        self, container: StreamSegmentContainer, name: str, target: ModelSegment
    ) -> None:
        """Everything that can be merged, and what has been, in any order."""
        sources = [each for each in NAMES if each != name and self.may_merge(target, each)]
        self.random.shuffle(sources)
        for source in sources:
            if source in self.model:
                self.take_in(target, source)
        lengths = await container.merge_all(name, sources, seal_sources=True)
        assert list(lengths) == [target.merged[source] for source in sources]

    def may_merge(self, target: ModelSegment, source: str) -> bool:
        """Whether it has its whole content still, or is remembered."""
        model = self.model.get(source)
        return not model.start_offset if model is not None else source in target.merged

    def take_in(self, target: ModelSegment, name: str) -> None:
        source = self.model.pop(name)
        for offset, number in source.events.items():
            target.events[len(target.content) + offset] = target.event_count + number
        target.content += source.content
        if EVENT_COUNT in source.attributes:
            target.count_events(source.event_count)
        target.merged[name] = len(target.content)


REST = [
    "merge many",
    "merge again",
    "seal",
    "truncate",
    "delete",
    "flush",
    "evict",
    "checkpoint",
    "pause",
]


@pytest.mark.parametrize("seed", range(60))
def test_h81_whatever_was_acknowledged_is_there_after_any_number_of_crashes(seed: int) -> None:
    RandomLives(seed).live_all()


class LivesThatRecoverInLittleMemory(RandomLives):
    """A few blocks are left while the log is replayed, so recovery flushes at any place of the log (H38)."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.flushes = 0
        self.refusals = 0

    async def start(self, entry_bytes_max: int) -> StreamSegmentContainer:
        for attempt, blocks_left in enumerate(
            (1, 1, 1, 2, 3, 20, 60)
        ):  # one that is refused tries again with more
            cache = CacheManager(storage=CacheStorage(budget_bytes=1 << 20))
            ballast = cache.shares.open()
            ballast.charge(cache.budget_bytes - blocks_left * BLOCK_BYTES_MIN)
            log = MemoryDurableDataLog(self.tiers.log_store, entry_bytes_max=entry_bytes_max)
            container = self.make(log, cache)
            start = asyncio.ensure_future(container.start())
            for _ in range(self.random.choice([0, 20, 50, 100])):
                await asyncio.sleep(0)
            if attempt < 2 and start.cancel():  # killed somewhere in its recovery
                await asyncio.gather(start, return_exceptions=True)
                continue
            try:
                await start
            except SegmentStoreError as refusal:
                if "start with a larger cache budget" not in str(refusal):
                    raise
                self.refusals += 1
                continue
            ballast.charge(0)
            assert container.recovery_summary is not None
            self.flushes += container.recovery_summary.flushes
            return container
        raise AssertionError("what was written in a life does not fit into 240 KiB")


@pytest.mark.parametrize("seed", range(60))
def test_h38_whatever_was_acknowledged_is_there_though_recovery_flushes_in_between(
    seed: int,
) -> None:
    LivesThatRecoverInLittleMemory(seed).live_all()


def test_the_lives_in_little_memory_flush_while_they_recover() -> None:
    flushes = 0
    for seed in range(5):
        lives = LivesThatRecoverInLittleMemory(seed)
        lives.live_all()
        flushes += lives.flushes
    assert flushes > 5, flushes


def test_the_lives_meet_blocks_of_which_events_are_known() -> None:
    seen = 0
    for seed in range(100, 110):
        lives = RandomLives(seed)
        lives.live_all()
        seen += lives.events_seen
    assert seen > 0
