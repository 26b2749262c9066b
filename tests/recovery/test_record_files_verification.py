"""Goal: whatever is wrong with the files of topics' records in Tier 2 is found by `tier2 verify`, and by the `verify`
job, which walk over them by the same function; and nothing is said of a Tier 2 in which all is well, at any moment.

Method: a topic of one partition over a container in memory; objects are damaged, deleted, put.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.codec.topic_files import (
    COLD_END,
    LAST_FILE,
    LOG_START,
    RETIRED,
    RegisteredFile,
    encode_file,
    file_key,
)
from segmentstore.contracts.errors import ErrorKind, StorageError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.recovery.record_files_copy import copy_record_files
from segmentstore.recovery.record_files_verification import (
    RecordFilesReport,
    verify_record_files,
)
from segmentstore.recovery.restore import restore_backup
from segmentstore.recovery.tier2_access import Tier2, UnverifiedObjectStore
from segmentstore.recovery.tier2_copy import Tier2Copy, copy_tier2
from segmentstore.runtime.files import SystemFileSystem
from segmentstore.spark.jobs.record_file_scrub import plan_files
from segmentstore.spark.jobs.verify import plan_container
from tests.spark.topics.topic_store import TOPIC, TopicStore, some_records, topic_store
from tests.topics.batches import unreadable_batch
from tier2.container_objects import ObjectKind
from tier2.manifest.garbage import is_named
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.store_reader import StoreReader

FILES = 3


@pytest.fixture
async def store() -> AsyncIterator[TopicStore]:
    """Three files, chunks, a tail."""
    random = Random(5)
    async with topic_store() as opened:
        for _ in range(FILES):
            for _ in range(9):
                await opened.produce(some_records(random, 4))
            await opened.make_file(small_blocks=False)
        await opened.produce(some_records(random, 4))
        await opened.flush()
        await opened.produce(some_records(random, 4))
        yield opened


async def opened(store: TopicStore) -> Tier2:
    objects = UnverifiedObjectStore(store.tiers.object_store)
    reader = StoreReader(object_store=objects, settings=StorageSettings(), executor=None)
    return Tier2([await reader.open(each) for each in await reader.containers()])


async def verified(store: TopicStore, *, deep: bool = False) -> RecordFilesReport:
    return await verify_record_files(await opened(store), deep=deep)


async def replace_object(store: TopicStore, key: str, content: bytes | None) -> bytes:
    objects = store.tiers.object_store
    before = (await objects.get(key)).content
    await objects.delete(key)
    if content is not None:
        await objects.put_if_absent(key, content)
    return before


async def key_of(store: TopicStore, number: int) -> str:
    return (await store.file(number)).name(TOPIC, 0).key


@pytest.mark.parametrize("deep", [False, True])
async def test_nothing_is_said_of_what_is_well_at_any_moment(*, deep: bool) -> None:
    random = Random(7)
    async with topic_store() as store:
        assert (await verified(store, deep=deep)) == RecordFilesReport()
        partition = await store.service.topics.own_partition(TOPIC, 0)
        for step in range(40):
            match random.randrange(5):
                case 0 | 1:
                    await store.produce(some_records(random, random.randrange(1, 9)))
                case 2:
                    await partition.make_file()
                case 3:
                    await partition.delete_records(
                        random.randint(partition.log_start_offset, partition.high_watermark)
                    )
                case _:
                    await store.flush()
            report = await verified(store, deep=deep)
            assert report.damages == [], step
            assert report.byte_count > 0 or not report.files


async def test_every_flipped_bit_is_found_by_a_deep_look(store: TopicStore) -> None:
    key = await key_of(store, 2)
    sound = (await store.tiers.object_store.get(key)).content
    for at in range(0, len(sound), 7):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        await replace_object(store, key, bytes(damaged))
        report = await verified(store, deep=True)
        assert report.damages, at
        assert all(key in each and store.segment_name in each for each in report.damages)
        assert report.damage_count == len(report.damages)
    await replace_object(store, key, sound)
    assert (await verified(store, deep=True)).damage_count == 0
    assert (await verified(store, deep=True)).files == FILES


@pytest.mark.parametrize("deep", [False, True])
async def test_what_is_missing_cut_off_or_unregistered_is_found(
    store: TopicStore, *, deep: bool
) -> None:
    key = await key_of(store, 2)
    sound = await replace_object(store, key, None)
    report = await verified(store, deep=deep)
    assert [f"a registered file is missing key={key}" in each for each in report.damages] == [True]
    await store.tiers.object_store.put_if_absent(key, sound[:-1])
    assert any("another size" in each for each in (await verified(store, deep=deep)).damages)
    await replace_object(store, key, sound)
    strange = RegisteredFile(20, 40, 1, 1, 0, 0, 0, 99).name(TOPIC, 0).key
    await store.tiers.object_store.put_if_absent(strange, b"?")
    report = await verified(store, deep=deep)
    assert (report.damage_count, report.unregistered) == (0, [strange])


async def test_a_file_that_is_registered_no_more_is_no_damage(store: TopicStore) -> None:
    """Retention comes by between the look at the manifest and the look at the file."""
    tier2 = await opened(store)
    partition = await store.service.topics.own_partition(TOPIC, 0)
    await partition.delete_records(60)
    await store.flush()
    await replace_object(store, await key_of_first(tier2), None)
    assert (await verify_record_files(tier2, deep=False)).damages == []


@pytest.mark.parametrize("deep", [False, True])
async def test_files_of_a_topic_whose_deletion_has_begun_may_be_gone(
    store: TopicStore, *, deep: bool
) -> None:
    """A backup may be made between the deletion of its files and that of its segments, and keeps that state."""
    async with store.service.container.open_segment(store.segment_name) as segment:
        await segment.append(b"", attribute_updates=[AttributeUpdate(RETIRED, 1)])
    await store.service.container.backups.make("monday")
    await replace_object(store, await key_of(store, 2), None)
    assert (await verified(store, deep=deep)).damages == []
    (reader,) = (await opened(store)).containers
    copy = MemoryObjectStore()
    assert await copy_record_files(reader, store.tiers.object_store, copy, go_on=False) == []
    async with aclosing(copy.list("topics/")) as listing:
        copied = [info.key async for info in listing]
    assert copied == [await key_of(store, 1), await key_of(store, 3)]
    record = await reader.find(store.segment_name)
    assert record is not None
    files, damages = await plan_files(reader, record)
    assert ([each.may_be_gone for each in files], damages) == ([True] * FILES, [])
    damaged = (await store.tiers.object_store.get(copied[0])).content[:-1]
    await replace_object(store, copied[0], damaged)
    assert (await verified(store, deep=deep)).damage_count > 0


@pytest.mark.parametrize("deep", [False, True])
async def test_a_file_that_a_backup_needs_still_is_damage_when_it_is_registered_no_more(
    store: TopicStore, *, deep: bool
) -> None:
    """Retention comes by between the look at the manifest and the look at the file; the backup keeps what it names."""
    await store.service.container.backups.make("monday")
    tier2 = await opened(store)
    partition = await store.service.topics.own_partition(TOPIC, 0)
    await partition.delete_records(60)
    await store.flush()
    key = await key_of_first(tier2)
    await replace_object(store, key, None)
    report = await verify_record_files(tier2, deep=deep)
    (damage,) = report.damages
    assert f"a registered file is missing key={key}" in damage
    assert "backup='monday'" in damage


async def test_a_file_of_a_backup_that_is_dropped_meanwhile_is_no_damage(store: TopicStore) -> None:
    """Its file is deleted soon after."""
    await store.service.container.backups.make("monday")
    partition = await store.service.topics.own_partition(TOPIC, 0)
    await partition.delete_records(60)
    await store.flush()
    tier2 = await opened(store)
    await store.service.container.backups.drop("monday")
    await replace_object(store, await key_of_first(tier2), None)
    assert (await verify_record_files(tier2, deep=False)).damages == []


@pytest.mark.parametrize("deep", [False, True])
async def test_nothing_is_said_of_what_the_owner_has_replaced_meanwhile(
    store: TopicStore, *, deep: bool
) -> None:
    """A verification beside a busy store takes longer than what the manifest named first is kept."""
    tier2 = await opened(store)
    partition = await store.service.topics.own_partition(TOPIC, 0)
    await partition.make_file()
    await partition.delete_records(40)
    await store.flush()
    await delete_what_no_manifest_names(store)
    report = await verify_record_files(tier2, deep=deep)
    assert (report.files, report.damages) == (FILES, [])


async def test_a_job_plans_by_one_manifest_beside_a_busy_store(store: TopicStore) -> None:
    """What it reads of a partition, and what it reads of its files then, are of one moment."""
    (reader,) = (await opened(store)).containers
    partition = await store.service.topics.own_partition(TOPIC, 0)
    await partition.make_file()
    await partition.delete_records(40)
    await store.flush()
    async with aclosing(reader.scan_layouts()) as layouts:
        (entries,) = [
            each.entries async for each in layouts if each.record.name == store.segment_name
        ]
    for entry in entries:
        key = reader.components.names.key(ObjectKind.CHUNKS, entry.identity)
        await store.tiers.object_store.delete(key)
    plan = await plan_container(reader)
    assert [each.number for each in plan.files] == [2, 3, 4]
    assert plan.file_damages == []


async def test_a_container_whose_ssts_do_not_read_is_named_and_ends_nothing(
    store: TopicStore,
) -> None:
    (reader,) = (await opened(store)).containers
    for part in [part for sst in reader.manifest.ssts for part in sst]:
        key = reader.components.names.key(ObjectKind.SST, part.identity)
        await replace_object(store, key, bytes(part.size))
    report = await verified(store)
    assert report.files == 0
    assert any("files of topics are not all found container=0" in each for each in report.damages)


async def test_a_file_that_retention_deletes_while_it_is_copied_went_meanwhile(
    store: TopicStore, tmp_path: Path
) -> None:
    """The look before the copy had found it: that is no damage, and the copy can be made again."""
    (reader,) = (await opened(store)).containers
    assert (await verified(store)).damages == []
    key = await key_of(store, 1)
    content = await replace_object(store, key, None)

    async def copied(name: str, *, with_damage: bool = False) -> Tier2Copy:
        manifests = [(reader.manifest, reader.components)]
        (tmp_path / name).mkdir()
        return await copy_tier2(manifests, tmp_path / name, with_damage=with_damage, bar=no_bar)

    with pytest.raises(StorageError, match=f"went while it was copied.*{key}") as error:
        await copied("new")
    assert error.value.kind is ErrorKind.UNAVAILABLE
    assert not (tmp_path / "new" / "tier2").exists()
    (damage,) = (await copied("knowingly", with_damage=True)).damage
    assert f"their file is not there key={key}" in damage
    await store.tiers.object_store.put_if_absent(key, content)
    assert (await copied("whole")).damage == []


async def test_a_backup_that_misses_a_file_of_records_is_refused_before_anything_is_written(
    store: TopicStore, tmp_path: Path
) -> None:
    await store.service.container.backups.make("monday")
    key = await key_of(store, 2)
    place, new = tmp_path / "tier2", tmp_path / "new"
    objects = FilesystemObjectStore(
        str(place), files=SystemFileSystem(), executor=None, random=Random(3)
    )
    await objects.start()
    async with aclosing(store.tiers.object_store.list("")) as listing:
        async for info in listing:
            content = (await store.tiers.object_store.get(info.key)).content
            if info.key != key:
                await objects.put(info.key, [content])
    await objects.close()
    result = await restore_backup("monday", str(place), new, with_damage=False, quiet=True)
    assert result.failure is ErrorKind.CORRUPT
    assert any(f"a registered file is missing key={key}" in each for each in result.remarks)
    assert "nothing was done" in result.remarks[-1]
    assert not new.exists()


@contextmanager
def no_bar(_what: str) -> Iterator[Callable[[int], object]]:
    yield lambda _: None


async def delete_what_no_manifest_names(store: TopicStore) -> None:
    """As the owner does when the grace is over."""
    (reader,) = (await opened(store)).containers
    objects, names = store.tiers.object_store, reader.components.names
    async with aclosing(objects.list(names.prefix)) as listing:
        keys = [info.key async for info in listing]
    for key in keys:
        for kind in ObjectKind:
            identity = names.identity(kind, key)
            if identity is not None and not await is_named(reader.view, (kind, identity)):
                await objects.delete(key)


async def key_of_first(tier2: Tier2) -> str:
    async for info in tier2.containers[0].components.objects.store.list("topics/"):
        return info.key
    raise AssertionError("there are files")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({COLD_END: 100}, "files end elsewhere"),
        ({LAST_FILE: 4}, "registered files are missing"),
        ({file_key(2): None}, "do not meet"),
        ({COLD_END: 72, LAST_FILE: 2, file_key(3): None}, "between the files and the segment"),
        ({file_key(1): None, LOG_START: 2}, "in front of the first file"),
    ],
)
async def test_offsets_that_are_nowhere_are_found_by_both(
    store: TopicStore, changes: dict[AttributeKey, AttributeValue | None], sentence: str
) -> None:
    async with store.service.container.open_segment(store.segment_name) as segment:
        updates = [AttributeUpdate(key, value) for key, value in changes.items()]
        await segment.append(b"", attribute_updates=updates)
    await store.flush()
    report = await verified(store)
    assert any(sentence in each for each in report.damages), report.damages
    (reader,) = (await opened(store)).containers
    record = await reader.find(store.segment_name)
    assert record is not None
    assert (await plan_files(reader, record))[1] == report.damages


async def test_a_file_that_is_registered_otherwise_is_found(store: TopicStore) -> None:
    file = await store.file(2)
    async with store.service.container.open_segment(store.segment_name) as segment:
        other = encode_file(replace(file, record_count=file.record_count - 1))
        await segment.append(b"", attribute_updates=[AttributeUpdate(file_key(2), other)])
    await store.flush()
    assert (await verified(store)).damage_count == 0
    (found,) = (await verified(store, deep=True)).damages
    assert "registered otherwise" in found


async def test_a_batch_that_was_kept_as_it_came_is_proved_as_well(
    store: TopicStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "segmentstore.topics.acceptable_batches.require_readable", lambda _batch: None
    )
    partition = await store.service.topics.own_partition(TOPIC, 0)
    await partition.produce(unreadable_batch())
    for _ in range(2):
        assert await partition.make_file()
    await store.flush()
    report = await verified(store, deep=True)
    assert (report.files, report.damages, report.unregistered) == (FILES + 2, [], [])
    key = await key_of(store, FILES + 2)
    assert key.endswith(".batch")
    content = (await store.tiers.object_store.get(key)).content
    for at in (*range(12), *range(16, len(content))):
        await replace_object(
            store, key, content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        )
        assert (await verified(store, deep=True)).damage_count, at
