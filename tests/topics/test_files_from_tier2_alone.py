"""Goal: whatever Tier 2 names is there. All of Tier 1 may be lost at any moment, and a store that is recovered from
Tier 2 alone has every record that was published, but those that were deleted.

Method: a partition over a real container whose flushes come late. Files are replaced and forgotten, objects are due at
once; then Tier 1 is thrown away. At chosen moments, and in random schedules, in which bugs are planted as well.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import SegmentHandle
from segmentstore.codec.record_fields import Record
from segmentstore.codec.topic_files import RecordFileName
from segmentstore.contracts.errors import StorageFullError
from segmentstore.contracts.identifiers import EVENT_COUNT, BufferView
from segmentstore.contracts.segments import AttributeUpdate, PublishingProgress
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_files import PartitionFiles
from segmentstore.topics.record_files.kept_objects import KeptObjects
from segmentstore.topics.topic_config import make_config
from tests.containers.node import MemoryTiers, running
from tests.containers.test_recovery_from_tier2_alone import lose_tier1
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.faulty_store import FaultyStore
from tests.topics.batches import SEGMENT, SMALL, Clock, batch_of, files_in, known
from tests.topics.planted_bugs import require_found
from tests.topics.test_key_compaction import CONFIG, keyed, last_values, read_all
from tests.topics.test_topics_over_a_container import topics_over
from tier2.object_stores.memory import MemoryObjectStore

SETTINGS = replace(SMALL, file_bytes=2_000, file_sweep_seconds=0.0)
LATE_SECONDS = 120.0
"""By then everything is published, and objects are due."""


class Tiers(MemoryTiers):
    """And one partition in them."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.random = Random(seed)
        self.clock = Clock()
        self.config = dict(CONFIG)

    @asynccontextmanager
    async def container(self) -> AsyncIterator[StreamSegmentContainer]:
        """Whose flushes come as late as they do by default."""
        async with running(self, settings=ContainerSettings()) as container:
            yield container

    @asynccontextmanager
    async def partition(self) -> AsyncIterator[tuple[StreamSegmentContainer, Partition]]:
        """In a process that lives as long."""
        async with self.container() as container:
            if not await container.list_segments(SEGMENT):
                await container.create(SEGMENT, [AttributeUpdate(EVENT_COUNT, 0)])
                await container.flush()
            partition = Partition(
                topic="t",
                index=0,
                segment_name=SEGMENT,
                segments=container,
                wall_clock=self.clock,
                random=self.random,
                config=make_config(self.config, bytes_max=10_000),
                settings=SETTINGS,
                record_files=files_in(self.object_store),
            )
            await partition.recover()
            yield container, partition
            await partition.close()

    async def lose_tier1(self) -> None:
        await lose_tier1(self, FaultyStore(self.object_store))

    async def files(self) -> list[str]:
        return [info.key async for info in self.object_store.list("topics/")]


async def with_published_files(
    container: StreamSegmentContainer, partition: Partition
) -> list[Record]:
    """Six files of which compaction makes five smaller, as Tier 2 has published them."""
    for n in range(6):
        await partition.produce(keyed((b"a", b"%d" % n), (b"%d" % n, b"x")))
        assert await partition.make_file()
    await container.flush()
    return await read_all(partition)


def in_simulation(main: Callable[[Tiers], object]) -> Callable[[], None]:
    """Virtual time, so that a flush is as late as it is said to be."""

    def test() -> None:
        run_simulation(1, lambda _: main(Tiers()))  # type: ignore[arg-type, return-value]

    test.__name__, test.__doc__ = main.__name__, main.__doc__
    return test


@in_simulation
async def test_a_replaced_file_is_there_until_tier_2_names_the_other_one(tiers: Tiers) -> None:
    async with tiers.partition() as (container, partition):
        records = await with_published_files(container, partition)
        assert await partition.compact(age_is_known=known) == 5
        await partition.delete_doomed()
    await tiers.lose_tier1()
    async with tiers.partition() as (_, partition):
        assert await read_all(partition) == records


@in_simulation
async def test_a_forgotten_file_is_there_until_tier_2_has_forgotten_it(tiers: Tiers) -> None:
    async with tiers.partition() as (container, partition):
        records = await with_published_files(container, partition)
        assert await partition.delete_records(9) == 9
        await partition.delete_doomed()
    await tiers.lose_tier1()
    async with tiers.partition() as (_, partition):
        assert await read_all(partition) == records


@in_simulation
async def test_a_sweep_behind_a_crash_leaves_what_tier_2_names(tiers: Tiers) -> None:
    """What another process has replaced, and not deleted when it died, looks like an object that never was a file."""
    async with tiers.partition() as (container, partition):
        records = await with_published_files(container, partition)
        assert await partition.compact(age_is_known=known) == 5
    async with tiers.partition() as (_, partition):
        await partition.sweep_files()
        await partition.delete_doomed()
    await tiers.lose_tier1()
    async with tiers.partition() as (_, partition):
        assert await read_all(partition) == records


@in_simulation
async def test_it_is_deleted_when_it_is_published_and_nothing_forces_that(tiers: Tiers) -> None:
    """Nothing else happens in the container meanwhile."""
    async with tiers.partition() as (container, partition):
        records = await with_published_files(container, partition)
        assert await partition.compact(age_is_known=known) == 5
        rest = await read_all(partition)
        await partition.delete_doomed()
        assert len(await tiers.files()) == 6 + 5
        assert not partition.is_idle(float("inf"))
        await asyncio.sleep(LATE_SECONDS)
        await partition.delete_doomed()
        assert len(await tiers.files()) == 6
        assert partition.is_idle(float("inf"))
    await tiers.lose_tier1()
    async with tiers.partition() as (_, partition):
        assert await read_all(partition) == rest
        assert last_values(rest) == last_values(records)


class SmallDisk(MemoryObjectStore):
    """Puts are refused while it is full."""

    is_full = False

    def _require_space(self) -> None:
        if self.is_full:
            raise StorageFullError("the disk is full")

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self._require_space()
        await super().put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        self._require_space()
        return await super().put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        self._require_space()
        return await super().put_if_match(key, content, tag)


@in_simulation
async def test_a_full_tier_2_gets_room_from_what_was_deleted_and_not_from_what_was_replaced(
    tiers: Tiers,
) -> None:
    """It publishes nothing before something is deleted: waiting for that would be for ever."""
    disk = tiers.object_store = SmallDisk()
    async with tiers.partition() as (container, partition):
        await with_published_files(container, partition)
        before = set(await tiers.files())
        assert await partition.compact(age_is_known=known) == 5
        disk.is_full = True
        await asyncio.sleep(LATE_SECONDS)
        async with container.open_segment(SEGMENT) as segment:
            assert segment.publishing().storage_is_full
        await partition.delete_doomed()
        assert before < set(await tiers.files()), "their records are in files that it does not name"
        assert await partition.delete_records(8) == 8
        await partition.delete_doomed()
        files = await tiers.files()
        assert before < set(files)
        assert len(files) == 6 + 5 - 4
        rest = await read_all(partition)
        disk.is_full = False
        await asyncio.sleep(LATE_SECONDS)
        async with container.open_segment(SEGMENT) as segment:
            assert not segment.publishing().storage_is_full
        await partition.delete_doomed()
        assert len(await tiers.files()) == 2
    await tiers.lose_tier1()
    async with tiers.partition() as (_, partition):
        assert await read_all(partition) == rest


@in_simulation
async def test_more_than_can_be_kept_is_left_to_sweeps(tiers: Tiers) -> None:
    """Tier 2 is behind; the sweeps take as many each time as there is room for."""
    async with tiers.partition() as (container, partition):
        await with_published_files(container, partition)
        kept = partition._start._kept
        assert kept is not None
        kept._count_max = 2
        assert await partition.compact(age_is_known=known) == 5
        has_left_over = kept.has_left_over
        assert has_left_over
        rest = await read_all(partition)
        assert await partition.sweep_files() == 0, "there is no room"
        for there, found in ((9, 2), (7, 1), (6, 0)):
            await asyncio.sleep(LATE_SECONDS)
            await partition.delete_doomed()
            assert len(await tiers.files()) == there
            assert await partition.sweep_files() == found
            assert len(kept.keys) == found
        has_left_over = kept.has_left_over
        assert not has_left_over
        assert await read_all(partition) == rest


@in_simulation
async def test_another_opening_deletes_nothing_that_it_has_registered(tiers: Tiers) -> None:
    """The process outlives all of Tier 1, and with it what it kept: a file that was replaced is registered again."""
    async with tiers.partition() as (container, partition):
        records = await with_published_files(container, partition)
        assert await partition.compact(age_is_known=known) == 5
        await partition.close()
    await tiers.lose_tier1()
    async with tiers.container() as container:
        partition._segments = partition._start._segments = container
        await partition.recover()
        await partition.produce(keyed((b"b", b"b")))
        await asyncio.sleep(LATE_SECONDS)
        await partition.delete_doomed()
        assert (await read_all(partition))[:-1] == records
        assert await partition.sweep_files() == 5
        await asyncio.sleep(LATE_SECONDS)
        await partition.delete_doomed()
        assert len(await tiers.files()) == 6
        assert (await read_all(partition))[:-1] == records
        await partition.close()


@in_simulation
async def test_a_topic_that_was_deleted_and_is_back_without_its_files_can_be_deleted_again(
    tiers: Tiers,
) -> None:
    """A deletion waits for nothing."""
    async with tiers.container() as container, topics_over(container, tiers.object_store) as topics:
        await topics.create("t", 1, {})
        partition = await topics.own_partition("t", 0)
        await partition.produce(batch_of(b"deleted"))
        assert await partition.make_file()
        await container.flush()
        await topics.delete("t")
        assert await tiers.files() == ["topics/t/names-used"]
    await tiers.lose_tier1()
    async with tiers.container() as container, topics_over(container, tiers.object_store) as topics:
        assert topics.names() == ["t"]
        partition = await topics.own_partition("t", 0)
        with pytest.raises(PartitionUnavailableError, match="missing"):
            await partition.fetch(0, 100)
        await topics.delete("t")
        await topics.create("t", 1, {})
        partition = await topics.own_partition("t", 0)
        await partition.produce(batch_of(b"made again"))
        assert await partition.make_file()
        assert [each.value for each in await read_all(partition)] == [b"made again"]
        assert len(await tiers.files()) == 2


# --- random schedules ------------------------------------------------------------------------------


class Schedule:
    """Lives of processes, one after the other; some end with Tier 1."""

    def __init__(self, seed: int) -> None:
        self.tiers = Tiers(seed)
        self.random = Random(seed + 1)
        self.history: list[tuple[bytes, bytes | None]] = []
        """Key and value by offset."""
        self.log_start = 0
        self.published = 0
        """Records that Tier 2 has, at least."""
        self.seen: Counter[str] = Counter()

    async def run(self) -> Counter[str]:
        for _ in range(6):
            self.tiers.config["file.delete.delay.ms"] = self.random.choice(["0", "0", "5000"])
            async with self.tiers.partition() as (container, partition):
                await self.check(partition)
                for _ in range(self.random.randrange(5, 40)):
                    await self.step(container, partition)
            if self.random.random() < 0.6:
                await self.tiers.lose_tier1()
                self.seen["lost"] += 1
        async with self.tiers.partition() as (container, partition):
            await self.check(partition)
            await self.settle(container, partition)
            await self.check(partition)
        return self.seen

    async def step(self, container: StreamSegmentContainer, partition: Partition) -> None:
        random = self.random
        self.tiers.clock.now += random.randrange(300)
        choice = random.random()
        if choice < 0.45:
            key = b"%d" % random.randrange(6)
            value = None if random.random() < 0.1 else random.randbytes(random.randrange(60))
            appended = await partition.produce(keyed((key, value)))
            assert appended.base_offset == len(self.history)
            self.history.append((key, value))
        elif choice < 0.65:
            self.seen["files"] += bool(await partition.make_file())
        elif choice < 0.75:
            self.seen["replaced"] += await partition.compact(age_is_known=known)
        elif choice < 0.8:
            end = min(len(self.history), self.log_start + random.randrange(6))
            self.log_start = await partition.delete_records(end)
        elif choice < 0.86:
            self.seen["dead"] += await partition.sweep_files()
        elif choice < 0.92:
            await asyncio.sleep(random.random() * 20.0)
        elif choice < 0.95:
            await container.flush()
            self.published = len(self.history)
        before = len(await self.tiers.files())
        await partition.delete_doomed()
        self.seen["deleted"] += before - len(await self.tiers.files())

    async def check(self, partition: Partition) -> None:
        """It is as it was at one moment, the last one that is known to be published or a later one."""
        partition.check()
        end, start = partition.high_watermark, partition.log_start_offset
        assert self.published <= end <= len(self.history)
        assert start <= self.log_start
        del self.history[end:]
        self.log_start = start
        newest = {key: (n, value) for n, (key, value) in enumerate(self.history)}
        wanted = {
            key: value for key, (n, value) in newest.items() if n >= start and value is not None
        }
        assert last_values(await read_all(partition)) == wanted

    async def settle(self, container: StreamSegmentContainer, partition: Partition) -> None:
        """In the end there are the objects of files alone, and names that may be given yet."""
        while await partition.make_file():
            pass
        await partition.sweep_files()
        await asyncio.sleep(LATE_SECONDS)
        await partition.delete_doomed()
        registered = partition._registered
        async with container.open_segment(SEGMENT) as segment:
            files = await registered.some(segment, registered.first, 1_000)
        names = {file.name("t", 0) for file in files}
        there = {RecordFileName.parsed(key) for key in await self.tiers.files()}
        assert names <= there
        for name in there - names:
            assert name is not None
            assert not name.name_number, f"dead {name}"
            assert name.first_offset >= registered.cold_end, f"dead {name}"


def run(seed: int) -> Counter[str]:
    async def main(_: SimLoop) -> Counter[str]:
        return await Schedule(seed).run()

    return run_simulation(seed, main).result


@pytest.mark.simulation
def test_random_schedules_lose_nothing_that_was_published() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 21):
        seen += run(seed)
    for what in ("files", "replaced", "dead", "deleted", "lost"):
        assert seen[what] >= 20, seen


def _deleted_before_it_is_published(patch: pytest.MonkeyPatch) -> None:
    original = KeptObjects.delete_due

    async def hasty(self: KeptObjects, progress: PublishingProgress) -> None:
        await original(self, progress._replace(published=progress.committed))

    patch.setattr(KeptObjects, "delete_due", hasty)


def _committed_counts_as_it_is_when_it_is_asked_later(patch: pytest.MonkeyPatch) -> None:
    """The number is that of what was published when the file was forgotten."""
    original = SegmentHandle.publishing

    def behind(self: SegmentHandle) -> PublishingProgress:
        progress = original(self)
        return progress._replace(committed=progress.published)

    patch.setattr(SegmentHandle, "publishing", behind)


def _what_is_dead_is_deleted_at_once(patch: pytest.MonkeyPatch) -> None:
    original = PartitionFiles.sweep

    async def hasty(self: PartitionFiles) -> int:
        found = await original(self)
        for key, kept in list(self._kept._kept.items()):
            if kept.has_live_records:
                del self._kept._kept[key]
                await self._files.delete(key)
        return found

    patch.setattr(PartitionFiles, "sweep", hasty)


@pytest.mark.simulation
@pytest.mark.parametrize(
    "plant",
    [
        _deleted_before_it_is_published,
        _committed_counts_as_it_is_when_it_is_asked_later,
        _what_is_dead_is_deleted_at_once,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    require_found(run, 30)
