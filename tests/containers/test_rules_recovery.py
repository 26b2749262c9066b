"""Rules of recovery and of the log's truncation, held by one container over memory tiers."""

from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
from typing_extensions import override

from containers.container_settings import ContainerSettings
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    DataCorruptionError,
    DurableDataLogError,
    LogDisabledError,
    LogNotPrimaryError,
    NewerFormatError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, ContainerId, Epoch, LogAddress
from segmentstore.contracts.object_store import VersionedObject
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_container_faults import FlakyObjectStore, abandoned
from tests.containers.test_segment_container import append, read_all
from tests.tier2.storage.test_formats import of_a_later_version
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore
from tier2.settings import StorageSettings
from tier2.store_reader import ContainerReader

PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
)
"""Nothing is flushed unless a test asks for it."""

WRITER = AttributeKey(b"writer-0000000001")


class NeverShrinkingLog(MemoryDurableDataLog):
    """Its files are so large that no truncation ever frees one."""

    async def truncate(self, up_to: LogAddress) -> None:
        del up_to


async def test_h13_a_segment_that_was_evicted_and_came_back_is_flushed_after_a_crash() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", b"first")
        await container.flush()
        assert container._components.mapper.evict(1) == 1
        # A checkpoint that does not name the segment: replay learns of the eviction there.
        await container._components.processor.checkpoint()
        await append(container, "a", b" second")
    async with running(tiers) as container:
        await container.flush()
        assert (await container.info("a")).storage_length == 12
        container.check()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"first second"


async def test_h18_a_published_source_of_a_deleted_target_leaves_tier_2_after_a_crash() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("source")
        await append(container, "source", b"published")
        await container.flush()
        await container.create("target")
        await container.seal("source")
        await container.merge("target", "source")
        await container.delete("target")
    async with running(tiers) as container:
        await container.flush()
        assert await container.list_segments() == []
        assert container.health().active_segments == 0
    async with running(tiers) as container:
        assert await container.list_segments() == []


async def test_h18_a_chain_of_sources_that_tier_2_never_had_is_forgotten_with_its_target() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        for name in ("a", "b", "c"):
            await container.create(name)
            await append(container, name, b"bytes of " + name.encode())
        for source, target in (("a", "b"), ("b", "c")):
            await container.seal(source)
            await container.merge(target, source)
        await container.delete("c")
        await container.create("other")
    async with running(tiers) as container:
        await container.flush()
        assert [found.name for found in await container.list_segments()] == ["other"]
        assert container.health().unflushed_bytes == 0


async def test_h3_a_name_deleted_twice_does_not_come_back_while_tier_2_has_the_first() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", b"published")
        await container.flush()
        await container.delete("a")
        await container.create("a")
        await container.delete("a")
    async with abandoned(tiers, PATIENT) as container:
        assert await container.list_segments() == []
        with pytest.raises(SegmentNotFoundError):
            await container.info("a")
        with pytest.raises(SegmentNotFoundError):
            await container.seal("a")
        assert (await container.create("a")).length == 0
        await container.flush()
        assert await read_all(container, "a") == b""


async def test_h38_bytes_of_segments_that_have_ended_need_no_room_at_recovery() -> None:
    tiers = MemoryTiers()
    async with running(
        tiers, settings=PATIENT, log=NeverShrinkingLog(tiers.log_store)
    ) as container:
        await container.create("kept")
        await append(container, "kept", b"k" * 100_000)
        for number in range(4):
            name = f"short-lived-{number}"
            await container.create(name)
            await append(container, name, b"x" * 400_000)
            await container.flush()
        for number in range(4):
            await container.delete(f"short-lived-{number}")
        await container.flush()
    assert tiers.log_store.stored_bytes > 1_600_000
    # All that ever stood in the log is larger than this cache; what is not yet in Tier 2 fits.
    async with running(tiers, cache_bytes=1 << 20) as container:
        assert await read_all(container, "kept") == b"k" * 100_000
        assert [found.name for found in await container.list_segments()] == ["kept"]


async def test_h38_a_restart_with_less_memory_flushes_while_it_replays() -> None:
    tiers = MemoryTiers()
    counter = AttributeKey(b"c" * 16)
    update = AttributeUpdate(counter, 1, AttributeUpdateType.ACCUMULATE)
    async with abandoned(tiers, PATIENT) as container:
        for name in ("a", "b", "source", "gone"):
            await container.create(name)
            await append(container, name, name[:1].encode() * 300_000)
        await container.flush()
        for piece in range(5):
            for name in ("a", "b", "source", "gone"):
                async with container.open_segment(name) as segment:
                    await segment.append(b"%d" % piece * 200_000, attribute_updates=[update])
        await container.merge("b", "source", seal_source=True)
        await container.truncate("a", 400_000)
        await container.delete("gone")
        await append(container, "b", b"behind")
        await container.seal("b")
    pieces = b"".join(b"%d" % piece * 200_000 for piece in range(5))
    for cache_bytes in (1 << 20, 64 << 20):
        async with abandoned(tiers, PATIENT, cache_bytes=cache_bytes) as container:
            assert container.recovery_summary is not None
            assert (container.recovery_summary.flushes > 3) == (cache_bytes == 1 << 20)
            assert await read_all(container, "a", 400_000) == (b"a" * 300_000 + pieces)[400_000:]
            b = b"b" * 300_000 + pieces + b"s" * 300_000 + pieces + b"behind"
            assert await read_all(container, "b") == b
            assert (await container.info("b")).sealed
            assert (await container.attributes("a"))[counter] == 5
            assert (await container.attributes("b"))[counter] == 5
            assert [found.name for found in await container.list_segments()] == ["a", "b"]
            container.check()
            await container.flush()


async def test_h38_a_flush_in_the_middle_of_a_replay_brings_no_merged_source_back() -> None:
    tiers = MemoryTiers()
    sources = [f"source-{number}" for number in range(6)]
    async with running(
        tiers, settings=PATIENT, log=NeverShrinkingLog(tiers.log_store)
    ) as container:
        await container.create("target")
        for source in sources:
            await container.create(source)
            await append(container, source, source.encode() * 30_000)
        await container.flush()
        for source in sources:
            await container.merge("target", source, seal_source=True)
        await container.flush()
        assert await container._recovered.storage.find(sources[0]) is None
    # Replay meets the sources' bytes first; that Tier 2 has them in the target it learns further down.
    small = make_container(tiers, cache_bytes=1 << 20)
    with pytest.raises(SegmentStoreError, match="took what it can: start with a larger cache"):
        await small.start()
    async with running(tiers) as container:
        assert [found.name for found in await container.list_segments()] == ["target"]
        content = b"".join(source.encode() * 30_000 for source in sources)
        assert await read_all(container, "target") == content
        for source in sources:
            assert await container._recovered.storage.find(source) is None


async def test_h38_a_restart_with_less_memory_and_without_tier_2_says_so() -> None:
    tiers, store = MemoryTiers(), FlakyObjectStore()
    async with running(tiers, settings=PATIENT, object_store=store) as container:
        await container.create("a")
        for _ in range(4):
            await append(container, "a", b"x" * 400_000)
    store.down = True
    small = make_container(tiers, cache_bytes=1 << 20, object_store=store)
    with pytest.raises(SegmentStoreError, match="Tier 2 does not answer: start with a larger"):
        await small.start()
    store.down = False
    async with running(tiers, cache_bytes=1 << 20, object_store=store) as container:
        assert await read_all(container, "a") == b"x" * 1_600_000


async def test_h38_an_append_larger_than_the_memory_left_is_refused_with_a_sentence() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", b"x" * 3_000_000)
    small = make_container(tiers, cache_bytes=1 << 20)
    with pytest.raises(SegmentStoreError, match="took what it can: start with a larger cache"):
        await small.start()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"x" * 3_000_000


async def test_h20_a_delete_frees_a_truncated_and_merged_segment_in_replay_as_in_life() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        for name in ("target", "source"):
            await container.create(name)
            await append(container, name, name.encode() * 1000)
        await container.seal("source")
        await container.merge("target", "source")
        await append(container, "target", b"behind")
        await container.truncate("target", 7000)
        await container.delete("target")
    async with running(tiers) as container:
        container.check()
        assert container.health().unflushed_bytes == 0
        await container.create("target")
        await append(container, "target", b"new")
        await container.flush()
        assert await read_all(container, "target") == b"new"


async def test_h28_a_checkpoint_taken_while_frames_are_in_flight_holds_what_they_hold() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            in_flight = segment.append(b"not committed when the checkpoint is taken")
            checkpoint = container._components.processor.checkpoint()
            assert segment.info().length == 0
            await checkpoint
            assert in_flight.done()
    async with running(tiers) as container:  # replay compares itself with every later checkpoint
        assert (await container.info("a")).length == 42


async def test_h31_a_tier_2_that_is_older_than_the_log_is_refused_however_often_it_is_tried() -> (
    None
):
    """A volume directory brought back from last week's copy, beside today's log: nothing active shows it."""
    tiers = MemoryTiers()
    key = AttributeKey(b"w" * 16)
    update = AttributeUpdate(key, 1, AttributeUpdateType.ACCUMULATE)
    async with running(tiers) as container:
        await container.create("a")
        await append(container, "a", b"content")
        async with container.open_segment("a") as segment:
            await segment.update_attributes([update])
        await container.flush()
        older = deepcopy(tiers.object_store._objects)
        for _ in range(2):
            async with container.open_segment("a") as segment:
                await segment.update_attributes([update])
            await container.flush()
            await container._components.processor.checkpoint()
    async with running(tiers) as container:
        newest = deepcopy(tiers.object_store._objects)
    tiers.object_store._objects = older
    for _ in range(6):
        with pytest.raises(DataCorruptionError, match="Tier 2 is older than the log"):
            await make_container(tiers).start()
        await MemoryDurableDataLog(tiers.log_store).enable()
    tiers.object_store._objects = newest
    async with running(tiers) as container:
        assert await container.attributes("a") == {key: 3}


@pytest.mark.parametrize("first_set_by", ["creation", "update", "merge", "append"])
async def test_h32_a_stored_event_is_refused_after_a_crash_whatever_set_its_writer_first(
    first_set_by: str,
) -> None:
    """Both values are in Tier 2, and the log still has both: what counts is the second one."""
    tiers = MemoryTiers()
    first = [AttributeUpdate(WRITER, 1)]
    second = [AttributeUpdate(WRITER, 2, AttributeUpdateType.REPLACE_IF_EQUALS, 1)]
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a", first if first_set_by == "creation" else ())
        async with container.open_segment("a") as segment:
            if first_set_by == "update":
                await container.update_attributes("a", first)
            elif first_set_by == "merge":
                await container.create("large")
                await container.merge("a", "large", attribute_updates=first, seal_source=True)
            elif first_set_by == "append":
                await segment.append(b"", attribute_updates=first)
            await segment.append(b"event", attribute_updates=second)
        await container.flush()
    async with running(tiers) as container:
        assert await container.attributes("a", [WRITER]) == {WRITER: 2}
        async with container.open_segment("a") as segment:
            with pytest.raises(BadAttributeUpdateError):
                await segment.append(b"event", attribute_updates=second)
        assert await read_all(container, "a") == b"event"


async def flushed_and_more(tiers: MemoryTiers, content: bytes = b"flushed") -> None:
    """Something is in Tier 2, and something acknowledged in the log alone."""
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", content)
        await container.flush()
        await append(container, "a", b" and more")


async def refused_until_disabled(tiers: MemoryTiers, why: str) -> None:
    for _ in range(3):
        with pytest.raises(DataCorruptionError, match=why) as refusal:
            await make_container(tiers).start()
        assert "segmentstore recover --from-tier2" in str(refusal.value)
        assert tiers.log_store.disabled
        await MemoryDurableDataLog(tiers.log_store).enable()


async def test_h7_a_log_whose_journals_are_lost_is_not_taken_for_an_empty_one() -> None:
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    tiers.log_store = MemoryLogStore(log_id=tiers.log_store.log_id, epoch=tiers.log_store.epoch)
    await refused_until_disabled(tiers, "the log is empty")


async def test_h7_a_log_whose_journals_are_lost_before_anything_was_flushed_is_refused() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", b"only in the log")
    epoch = tiers.log_store.epoch
    tiers.log_store = MemoryLogStore(log_id=tiers.log_store.log_id)
    log = MemoryDurableDataLog(tiers.log_store, epoch_floor=epoch)
    with pytest.raises(DataCorruptionError, match="the log is empty"):
        await make_container(tiers, log=log).start()


async def test_h16_a_log_that_is_older_than_tier_2_is_refused_however_often_it_is_tried() -> None:
    """A data directory brought back from last week's copy, beside today's Tier 2: no segment of it has grown."""
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    older = deepcopy(tiers.log_store)
    async with abandoned(tiers, PATIENT) as container:
        await container.update_attributes("a", [AttributeUpdate(WRITER, 1)])
        await container.flush()
    newest, tiers.log_store = tiers.log_store, older
    older.epoch = newest.epoch
    await refused_until_disabled(tiers, "the log is older than Tier 2")
    newest.epoch = older.epoch
    tiers.log_store = newest
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"flushed and more"


async def refused_as_a_copy(tiers: MemoryTiers, seed: int = 2) -> None:
    """Once, and kept so: the next start's epoch is above the one that gave it away."""
    with pytest.raises(DataCorruptionError, match="an older copy, or a copy of it is in use"):
        await make_container(tiers, seed=seed).start()
    with pytest.raises(LogDisabledError, match=r"segmentstore log enable"):
        await make_container(tiers, seed=seed).start()


async def test_h16_a_log_that_misses_a_whole_start_is_refused_though_that_published_nothing() -> (
    None
):
    """Yesterday's Tier 1 beside today's Tier 2, and what was acknowledged in between had not left the log."""
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    older = deepcopy(tiers.log_store)
    async with abandoned(tiers, PATIENT) as container:
        await append(container, "a", b" and only in the log")
    newest, tiers.log_store = tiers.log_store, older
    await refused_as_a_copy(tiers)
    tiers.log_store = newest
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"flushed and more and only in the log"
    tiers.log_store = older
    await MemoryDurableDataLog(older).enable()
    await refused_as_a_copy(tiers)
    await MemoryDurableDataLog(older).enable()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"flushed and more"


async def test_h16_a_log_that_misses_several_starts_says_how_often_it_is_to_be_enabled() -> None:
    """A person who wants to go on with it enables it, and the next start is refused as well."""
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    older = deepcopy(tiers.log_store)
    for _ in range(3):
        async with abandoned(tiers, PATIENT):
            pass
    tiers.log_store = older
    for told in ("refused 2 times more", "refused 1 times more", "what only the other one has"):
        with pytest.raises(DataCorruptionError, match=told):
            await make_container(tiers).start()
        await MemoryDurableDataLog(older).enable()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"flushed and more"


async def test_h16_a_log_whose_copy_is_in_use_is_not_begun_again_beside_it() -> None:
    """Two starts of the original would otherwise take Tier 2 back, and the two would take turns."""
    tiers, copy = MemoryTiers(), MemoryTiers()
    await flushed_and_more(tiers)
    copy.log_store, copy.object_store = deepcopy(tiers.log_store), tiers.object_store
    async with running(copy, seed=9) as container:
        await refused_as_a_copy(tiers)
        await append(container, "a", b" of the copy")
        await container.flush()
        assert await read_all(container, "a") == b"flushed and more of the copy"


async def test_h16_an_older_log_that_began_without_tier_2_is_refused_once_that_answers() -> None:
    class SilentObjectStore(FlakyObjectStore):
        @override
        async def get(self, key: str) -> VersionedObject:
            self._require_up()
            return await super().get(key)

    tiers, store = MemoryTiers(), SilentObjectStore()
    tiers.object_store = store
    await flushed_and_more(tiers)
    older = deepcopy(tiers.log_store)
    async with abandoned(tiers, PATIENT) as container:
        await append(container, "a", b" and only in the log")
    tiers.log_store = older
    store.down = True
    asked_again_at_once = replace(PATIENT, claim_retry_seconds=0.0)
    container = make_container(tiers, settings=asked_again_at_once)
    await container.start()
    store.down = False
    with pytest.raises(DataCorruptionError, match="an older copy, or a copy of it is in use"):
        await container.run()
    assert older.disabled


async def test_a_manifest_of_a_later_version_is_refused_and_leaves_the_log_enabled() -> None:
    """A program of last year is started over a store that this year's has used: that one goes on afterwards."""
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    objects = tiers.object_store._objects
    (key,) = [key for key in objects if key.endswith("/root")]
    sound = objects[key]
    objects[key] = replace(sound, content=of_a_later_version(bytes(sound.content)))
    for _ in range(2):
        with pytest.raises(NewerFormatError, match="use that version again"):
            await make_container(tiers).start()
    assert not tiers.log_store.disabled
    objects[key] = sound
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"flushed and more"


async def test_an_owner_that_is_overtaken_before_it_claims_tier_2_leaves_the_log_as_it_is() -> None:
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    async with AsyncExitStack() as successors:

        class OvertakenLog(MemoryDurableDataLog):
            @override
            async def initialize(self) -> Epoch:
                epoch = await super().initialize()
                await successors.enter_async_context(running(tiers, seed=9))
                return epoch

        with pytest.raises(LogNotPrimaryError):
            await make_container(tiers, log=OvertakenLog(tiers.log_store)).start()
        assert not tiers.log_store.disabled


async def test_h16_an_older_log_is_not_begun_while_nothing_says_whether_it_is_still_ours() -> None:
    """Its metadata store is away at that moment: that is not Tier 2, without which a log is begun."""

    class SilentLog(MemoryDurableDataLog):
        @override
        async def check_owner(self) -> None:
            raise DurableDataLogError("the metadata store does not answer")

    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    older = deepcopy(tiers.log_store)
    async with abandoned(tiers, PATIENT) as container:
        await append(container, "a", b" and only in the log")
    tiers.log_store = older
    with pytest.raises(DataCorruptionError, match="an older copy, or a copy of it is in use"):
        await make_container(tiers, log=SilentLog(older)).start()
    assert older.disabled


async def test_h7_a_follower_of_a_lost_log_that_lost_its_journals_is_refused_however_often() -> (
    None
):
    """Also behind each time that a person enables the log by hand: what it had published tells on it."""
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    lost, changes = tiers.log_store, await changes_of_manifest(tiers)
    follower = partial(
        MemoryLogStore,
        log_id=b"another-log-id!!",
        follows=lost.log_id,
        follows_changes=changes,
    )
    tiers.log_store = follower()
    log = MemoryDurableDataLog(tiers.log_store, epoch_floor=lost.epoch)
    async with running(tiers, log=log) as container:
        await append(container, "a", b" and then")
        await container.flush()
    epoch = tiers.log_store.epoch
    tiers.log_store = follower()
    for _ in range(3):
        log = MemoryDurableDataLog(tiers.log_store, epoch_floor=epoch)
        with pytest.raises(DataCorruptionError, match=r"the log is empty.*recover --from-tier2"):
            await make_container(tiers, log=log).start()
        assert tiers.log_store.disabled
        await log.enable()


async def changes_of_manifest(tiers: MemoryTiers) -> int:
    reader = ContainerReader(
        object_store=tiers.object_store,
        container_id=ContainerId(0),
        settings=StorageSettings(),
        executor=None,
    )
    return (await reader.refresh()).manifest.changes


async def test_h7_a_log_that_follows_a_lost_one_may_crash_before_its_first_checkpoint() -> None:
    tiers = MemoryTiers()
    await flushed_and_more(tiers)
    lost = tiers.log_store
    tiers.log_store = MemoryLogStore(
        log_id=b"another-log-id!!",
        follows=lost.log_id,
        follows_changes=await changes_of_manifest(tiers),
        epoch=0,
    )
    for _ in range(2):
        log = MemoryDurableDataLog(tiers.log_store, epoch_floor=lost.epoch)
        storage = make_container(tiers, log=log)._recovered.storage
        epoch = await log.initialize()
        await storage.claim(epoch=epoch, log_id=log.log_id, follows=log.follows)
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"flushed"
    tiers.log_store = MemoryLogStore(log_id=b"another-log-id!!", follows=lost.log_id)
    log = MemoryDurableDataLog(tiers.log_store, epoch_floor=lost.epoch + 10)
    with pytest.raises(DataCorruptionError, match="the log is empty"):
        await make_container(tiers, log=log).start()
