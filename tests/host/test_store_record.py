"""Goal: a data directory, a root in ZooKeeper and a Tier 2 are used together if they are those of one store, and what
was cut off while a store was begun is finished by the next start.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.host.data_directory import DirectoryIdentity
from segmentstore.host.store_record import (
    STORE_PATH,
    LogCluster,
    StoreRecordCorruptedError,
    StoreRecordError,
    log_record_path,
    open_store_record,
    restore_store_record,
)
from tests.host.memory_metadata import MemoryMetadata
from tier1.bookkeeper.metadata_store import MetadataUnavailableError

CLUSTER = LogCluster("zk1:2181", "/segmentstore", "/ledgers", b"secret")
GOLDEN = Path(__file__).parent / "golden" / "store_record_v1.txt"


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()


async def open_record(
    metadata: MemoryMetadata,
    *,
    cluster: LogCluster = CLUSTER,
    directory: DirectoryIdentity | None = None,
    has_tier2: bool = False,
    count: int | None = None,
    seed: int = 1,
) -> DirectoryIdentity:
    return await open_store_record(
        metadata,
        cluster,
        directory=directory,
        has_tier2=has_tier2,
        container_count=count,
        default_count=4,
        random=Random(seed),
        wall_clock=FixedClock(),
    )


async def test_the_first_start_begins_a_store_and_every_later_one_takes_it(
    metadata: MemoryMetadata,
) -> None:
    first = await open_record(metadata, count=5)
    assert first.container_count == 5
    # A new directory, as after the loss of the old one.
    assert await open_record(metadata, seed=2) == first
    assert await open_record(metadata, seed=2, directory=first, has_tier2=True) == first


async def test_h62_another_container_count_is_refused_and_none_takes_the_one_that_is_fixed(
    metadata: MemoryMetadata,
) -> None:
    await open_record(metadata, count=5)
    with pytest.raises(StoreRecordError, match=r"fixed when it is created.*container_count=5"):
        await open_record(metadata, count=4)
    assert (await open_record(metadata)).container_count == 5


async def test_of_two_that_begin_at_once_one_takes_what_the_other_created(
    metadata: MemoryMetadata,
) -> None:
    other = await open_record(MemoryMetadata(), seed=2)
    rival = MemoryMetadata()
    await open_record(rival, seed=2)
    metadata.before_create = lambda: metadata.values.setdefault(
        STORE_PATH, rival.values[STORE_PATH]
    )
    assert await open_record(metadata, seed=1) == other


async def test_h7_a_beginning_whose_answer_was_lost_is_taken_by_the_next_start(
    metadata: MemoryMetadata,
) -> None:
    metadata.lost_answers = 1
    with pytest.raises(MetadataUnavailableError):
        await open_record(metadata, seed=1)
    created = await open_record(metadata, seed=2)
    assert created == await open_record(MemoryMetadata(), seed=1)


async def test_h7_a_directory_of_a_store_and_a_root_without_one_are_refused(
    metadata: MemoryMetadata,
) -> None:
    known = DirectoryIdentity(bytes(16), 4, 1)
    with pytest.raises(StoreRecordError, match="name the servers and the root of this store"):
        await open_record(metadata, directory=known)
    assert metadata.values == {}


async def test_h7_no_store_is_begun_over_a_tier_2_that_is_there(metadata: MemoryMetadata) -> None:
    with pytest.raises(StoreRecordError, match="the data directory has the Tier 2 of a store"):
        await open_record(metadata, has_tier2=True)
    assert metadata.values == {}


async def test_h7_no_store_is_begun_over_logs_that_are_there(metadata: MemoryMetadata) -> None:
    await metadata.create(log_record_path(3), b"a log")
    with pytest.raises(StoreRecordError, match=r"the record of their store is gone.*found=1"):
        await open_record(metadata)


async def test_a_root_of_another_store_is_refused(metadata: MemoryMetadata) -> None:
    await open_record(metadata)
    with pytest.raises(StoreRecordError, match="the root in ZooKeeper belongs to another store"):
        await open_record(metadata, directory=DirectoryIdentity(bytes(16), 4, 1))
    with pytest.raises(StoreRecordError, match="the root in ZooKeeper belongs to another store"):
        await restore_store_record(metadata, CLUSTER, DirectoryIdentity(bytes(16), 4, 1))


async def test_another_password_or_path_of_ledgers_is_refused_before_a_log_is_opened(
    metadata: MemoryMetadata,
) -> None:
    await open_record(metadata)
    with pytest.raises(StoreRecordError, match=r"the password is not the one.*password_file"):
        await open_record(metadata, cluster=replace(CLUSTER, password=b""))
    with pytest.raises(StoreRecordError, match="end the URL in /ledgers given=/others"):
        await open_record(metadata, cluster=replace(CLUSTER, ledgers_path="/others"))


async def test_a_recovery_brings_a_lost_record_back_and_may_be_run_again(
    metadata: MemoryMetadata,
) -> None:
    await metadata.create(log_record_path(3), b"a log")
    known = DirectoryIdentity(bytes(range(16)), 4, 1_700_000_000_000)
    await restore_store_record(metadata, CLUSTER, known)
    await restore_store_record(metadata, CLUSTER, known)
    assert await open_record(metadata, directory=known, has_tier2=True) == known


async def test_the_record_is_written_as_the_golden_sample(metadata: MemoryMetadata) -> None:
    known = DirectoryIdentity(bytes(range(16)), 4, 1_700_000_000_000)
    await restore_store_record(metadata, CLUSTER, known)
    assert metadata.values[STORE_PATH].value == GOLDEN.read_bytes()


async def test_damage_of_the_record_is_told(metadata: MemoryMetadata) -> None:
    await open_record(metadata)
    metadata.damage()
    with pytest.raises(StoreRecordCorruptedError, match="/segmentstore/store"):
        await open_record(metadata)
