"""Goal: a store whose logs are in BookKeeper outlives its data directory, is served by one process, and is never mixed
with another store.

Method: the whole service in this process over simulated bookies and a metadata store in memory. Tier 2 is in files
beside the data directory, behind a link, as a disk of its own would be; it is flushed only when a test says so.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.log import look_in_cluster
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    SegmentStoreError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.segments import read_available
from segmentstore.host import log_cluster
from segmentstore.host.container_manager import ContainerManager
from segmentstore.host.data_directory import DataDirectoryError
from segmentstore.host.offline_owner import OfflineOwner
from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.host.settings import BookKeeperSettings, SettingsError
from segmentstore.host.store_record import LogCluster, StoreRecordError, log_record_path
from segmentstore.recovery.cluster_logs import (
    enable_log,
    ledger_rows,
    open_cluster_of,
    operation_rows,
    set_log_aside,
    sweep_ledgers,
)
from segmentstore.recovery.log_inspection import LogsSeen
from segmentstore.recovery.offline_store import make_backup
from segmentstore.recovery.rebuilt_logs import BookKeeperLogsRebuilt
from segmentstore.recovery.recover import RecoveryOptions, recover_store
from segmentstore.recovery.restore import restore_backup
from segmentstore.runtime.files import SystemFileSystem
from tests.cli.command_line import CommandLine
from tests.host.cluster_in_memory import PLACE, ClusterInMemory
from tests.host.node_directories import new_node
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedLedgerClient
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tier1.bookkeeper.ledgers import LedgerId, LedgerReader, Quorum
from tier1.bookkeeper.log_record import EPOCH_LABEL, LogRecord, ledger_labels
from tier1.bookkeeper.metadata_store import MetadataUnavailableError
from tier1.bookkeeper.owned_record import edit_record, read_record
from tier2.manifest.manifest import Manifest
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.lazy_object_store import LazyObjectStore

CONTAINERS = 2


class CutOffError(Exception):
    """The recovery ends here."""


NAMES = [f"segment-{number}" for number in range(8)]
BY_CONTAINER = {int(container_of(name, CONTAINERS)): name for name in NAMES}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> ClusterInMemory:
    for name in [name for name in os.environ if name.startswith("SEGMENTSTORE_")]:
        monkeypatch.delenv(name)
    cluster = ClusterInMemory()
    cluster.stand_in(monkeypatch)
    return cluster


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A new node: nothing but the disk of Tier 2."""
    (tmp_path / "disk").mkdir()
    return new_node(tmp_path, "data")


@asynccontextmanager
async def serving(data: Path, **flags: str) -> AsyncIterator[Service]:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    resolved = resolve_settings(
        flags={
            "store.data_directory": str(data),
            "tier2.place": "filesystem",
            "wire.address": "off",
            "controller.address": "off",
            "writer.flush_interval_seconds": "600",
            "restart.delay_initial_seconds": "0.2",
            "restart.delay_max_seconds": "0.2",
            "bookkeeper.retry_seconds": "60",
            **given,
        },
        environment={},
    )
    async with open_service(resolved) as service, asyncio.TaskGroup() as group:
        managing = group.create_task(service.manager.run())
        try:
            await service.manager.wait_until_settled()
            yield service
        finally:
            managing.cancel()


@asynccontextmanager
async def in_bookkeeper(data: Path, **flags: str) -> AsyncIterator[Service]:
    async with serving(
        data, tier1__kind=PLACE, store__container_count=str(CONTAINERS), **flags
    ) as service:
        yield service


async def append(service: Service, content: bytes, names: list[str] = NAMES) -> None:
    for name in names:
        async with service.store.open_segment(name) as segment:
            await segment.append(content)


async def content_of(service: Service, name: str) -> bytes:
    async with service.store.open_segment(name) as segment:
        return await read_available(segment, 0, 1 << 20)


async def begin(service: Service) -> None:
    for name in NAMES:
        await service.store.create(name)
    await append(service, b"one ")


def complaints_of(service: Service) -> str:
    return "\n".join(service.servers.health().complaints)


async def until_down(service: Service, container_id: int) -> str:
    """Why it stays down."""
    async with asyncio.timeout(60):
        while True:
            try:
                service.registry.get(ContainerId(container_id))
            except ContainerNotFoundError as error:
                if "stays down" in str(error):
                    return str(error)
            await asyncio.sleep(0.005)


# --- the data directory is lost -------------------------------------------------------------------


async def test_a_new_data_directory_opens_the_same_store_with_every_acknowledged_byte(
    tmp_path: Path, data: Path
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
        await append(service, b"two")
    shutil.rmtree(data)
    data = new_node(tmp_path, "again")
    # The container count comes from the root as well.
    async with serving(data, tier1__kind=PLACE) as service:
        assert [await content_of(service, name) for name in NAMES] == [b"one two"] * len(NAMES)
        await append(service, b" three")
    async with serving(data) as service:
        assert await content_of(service, NAMES[0]) == b"one two three"


async def test_a_start_that_names_no_log_finds_it_by_the_data_directory(data: Path) -> None:
    async with in_bookkeeper(data, bookkeeper__root="/stores/a") as service:
        await begin(service)
    async with serving(data) as service:
        assert await content_of(service, NAMES[0]) == b"one "
    assert not list((data / "tier1").glob("container-*"))
    for kind in ("file", "memory"):
        with pytest.raises(DataDirectoryError, match=f"are in BookKeeper.*or name {PLACE}"):
            async with serving(data, tier1__kind=kind):
                pass


async def test_a_tier_2_that_was_lost_is_told_and_is_not_taken_for_an_empty_one(
    tmp_path: Path, data: Path
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
    shutil.rmtree(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    async with serving(data) as service:
        assert "recover --from-tier2" in await until_down(service, 0)


# --- stores that do not belong together -----------------------------------------------------------


async def test_a_root_of_another_store_is_refused(tmp_path: Path, data: Path) -> None:
    async with in_bookkeeper(data):
        pass
    (tmp_path / "other").mkdir()
    async with serving(tmp_path / "other", tier1__kind=PLACE, bookkeeper__root="/other"):
        pass
    with pytest.raises(StoreRecordError, match="belongs to another store"):
        async with serving(data, tier1__kind=PLACE, bookkeeper__root="/other"):
            pass
    with pytest.raises(StoreRecordError, match="there is none below the root"):
        async with serving(data, tier1__kind=PLACE, bookkeeper__root="/empty"):
            pass


async def test_a_tier_2_of_another_store_is_refused_by_every_container(
    tmp_path: Path, data: Path
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
    (tmp_path / "other").mkdir()
    async with serving(
        tmp_path / "other", tier1__kind=PLACE, bookkeeper__root="/other", store__container_count="2"
    ):
        pass
    shutil.rmtree(tmp_path / "other" / "tier2")
    (tmp_path / "other" / "tier2").symlink_to(tmp_path / "disk", target_is_directory=True)
    async with serving(
        tmp_path / "other", bookkeeper__root="/other", restart__same_failure_count="2"
    ) as service:
        for container_id in range(CONTAINERS):
            assert "Tier 2 belongs to another store" in await until_down(service, container_id)


async def test_logs_in_files_are_not_left_behind_for_a_root(tmp_path: Path) -> None:
    async with serving(tmp_path / "files"):
        pass
    with pytest.raises(DataDirectoryError, match=r"files in its data directory.*--from-tier2"):
        async with serving(tmp_path / "files", tier1__kind=PLACE):
            pass


async def test_another_password_is_refused_before_a_log_is_touched(
    tmp_path: Path, data: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first\nsecond\n")
    async with in_bookkeeper(data, bookkeeper__password_file=str(secret)) as service:
        await begin(service)
    with pytest.raises(StoreRecordError, match="the password is not the one"):
        async with serving(data):
            pass
    with pytest.raises(SettingsError, match="password_file cannot be read"):
        async with serving(data, bookkeeper__password_file=str(tmp_path / "none")):
            pass
    async with serving(data, bookkeeper__password_file=str(secret)) as service:
        assert await content_of(service, NAMES[0]) == b"one "


async def test_without_zookeeper_nothing_starts_and_the_directory_stays_as_it_was(
    data: Path, cluster: ClusterInMemory
) -> None:
    cluster.is_away = True
    with pytest.raises(MetadataUnavailableError, match="no ZooKeeper answers servers=zk1:2181"):
        async with in_bookkeeper(data):
            pass
    cluster.is_away = False
    assert sorted(path.name for path in data.iterdir()) == ["lock", "tier2"]
    async with in_bookkeeper(data):
        pass


@pytest.mark.parametrize("package", ["jpype", "kazoo"])
async def test_a_package_that_is_missing_is_named_with_the_command_that_brings_it(
    data: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.client", None)
    names = LogCluster("127.0.0.1:1", "/segmentstore", "/ledgers", b"")
    settings = BookKeeperSettings(session_seconds=2.0)
    connect = log_cluster.connect_metadata if package == "kazoo" else log_cluster.connect_ledgers
    with pytest.raises(SegmentStoreError, match=r"pip install 'segmentstore\[bookkeeper\]'"):
        await connect(names, settings)


# --- one owner ------------------------------------------------------------------------------------


async def test_of_two_nodes_the_one_started_last_serves_and_the_other_does_not_take_it_back(
    tmp_path: Path, data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as first:
        await begin(first)
        async with in_bookkeeper(new_node(tmp_path, "second")) as second:
            for container_id in range(CONTAINERS):
                with pytest.raises(SegmentStoreError):
                    await append(first, b"lost", [BY_CONTAINER[container_id]])
                assert "another process has taken it over" in await until_down(first, container_id)
            assert "End this process" in complaints_of(first)
            await append(second, b"two")
            await asyncio.sleep(0.1)
            assert complaints_of(second) == ""
            assert await content_of(second, NAMES[0]) == b"one two"
            record = await read_record(log_record_path(0), metadata=cluster.metadata)
            assert record is not None
            assert record.epoch == 2


# --- bookies --------------------------------------------------------------------------------------


async def test_a_dead_bookie_of_four_is_no_complaint_and_two_are(
    data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        cluster.bookies.kill(0)
        await append(service, b"two ")
        await service.logs.start()
        assert complaints_of(service) == ""
    cluster.bookies.kill(1)
    async with in_bookkeeper(data, bookkeeper__retry_seconds="1") as service:
        assert "2 bookies take writes, and a ledger needs 3: start bookies" in complaints_of(
            service
        )
        cluster.bookies.restart(0)
        async with asyncio.timeout(60):
            while service.registry.running() != [0, 1]:
                await asyncio.sleep(0.01)
        assert await content_of(service, NAMES[0]) == b"one two "


async def test_a_log_whose_record_grows_large_is_complained_of(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        assert complaints_of(service) == ""
        monkeypatch.setattr("segmentstore.host.logs.RECORD_BYTES_MAX", 300)
        told = complaints_of(service)
    for number in range(CONTAINERS):
        assert f"the log of container {number} has 1 ledgers" in told


async def test_few_bookies_serve_if_the_settings_allow_it_and_health_says_so(
    data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data):
        pass
    cluster.bookies.kill(0)
    cluster.bookies.kill(1)
    async with in_bookkeeper(data, bookkeeper__few_bookies_count="2") as service:
        await begin(service)
        told = complaints_of(service)
        assert "2 bookies take writes, and a ledger needs 3" in told
        assert "meanwhile new ledgers are on 2" in told
        assert "the newest ledgers of containers [0, 1] are on 2 bookies" in told
        assert service.logs.metrics()["bookkeeper_ledgers_with_few_bookies"] == CONTAINERS
        assert service.logs.metrics()["bookkeeper_living_bookies"] == 2


# --- tools ----------------------------------------------------------------------------------------


async def test_inspect_reads_ledgers_of_a_running_store_and_fences_nothing(data: Path) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        async with open_cluster_of(str(data), environment={}) as opened:
            assert opened is not None
            rows = [row async for row in ledger_rows(opened, [])]
            operations = [row async for row in operation_rows(opened, [1])]
        assert [row["log"] for row in rows] == ["container-0000", "container-0001"]
        assert {row["state"] for row in rows} == {"open"}
        assert {row["damage"] for row in rows} == {""}
        assert all(int(row["entries"] or 0) > 0 for row in rows)
        assert {row["log"] for row in operations} == {"container-0001"}
        await append(service, b"two")
        assert await content_of(service, NAMES[0]) == b"one two"


async def test_inspect_names_a_ledger_that_is_gone(data: Path, cluster: ClusterInMemory) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
    record = await read_record(log_record_path(1), metadata=cluster.metadata)
    assert record is not None
    await cluster.bookies.client().delete(record.ledgers[-1].ledger_id)
    async with open_cluster_of(PLACE, environment={}) as opened:
        assert opened is not None
        rows = [row async for row in ledger_rows(opened, [])]
    assert rows[0]["damage"] == ""
    assert "the ledger is gone" in str(rows[-1]["damage"])


@pytest.mark.parametrize("operations", [False, True])
async def test_a_ledger_that_the_owner_gives_up_while_it_is_inspected_is_no_damage(
    data: Path, cluster: ClusterInMemory, monkeypatch: pytest.MonkeyPatch, *, operations: bool
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
    async with in_bookkeeper(data) as service:
        await append(service, b"two")
    path = log_record_path(1)
    record = await read_record(path, metadata=cluster.metadata)
    assert record is not None
    given_up, *kept = [each.ledger_id for each in record.ledgers]
    assert kept
    honest = SimulatedLedgerClient.open_unfenced

    async def open_unfenced(self: SimulatedLedgerClient, ledger_id: LedgerId) -> LedgerReader:
        if ledger_id == given_up:
            await edit_record(path, without_oldest, metadata=cluster.metadata)
            await self.delete(given_up)
        return await honest(self, ledger_id)

    def without_oldest(found: LogRecord | None) -> LogRecord | None:
        return None if found is None else replace(found, ledgers=found.ledgers[1:])

    monkeypatch.setattr(SimulatedLedgerClient, "open_unfenced", open_unfenced)
    seen = LogsSeen()
    assert await look_in_cluster(PLACE, 1, seen, operations=operations)
    assert seen is not None
    assert seen.damages == []
    assert not any(row.get("damage") for row in seen.rows)
    if not operations:
        assert [row["ledger"] for row in seen.rows] == kept


@pytest.mark.parametrize("operations", [False, True])
async def test_inspect_names_a_log_whose_record_is_damaged_and_shows_the_others(
    data: Path, cluster: ClusterInMemory, *, operations: bool
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
    path = log_record_path(0)
    stored = cluster.metadata.values[path]
    cluster.metadata.values[path] = replace(stored, value=stored.value[:-1])
    seen = LogsSeen()
    assert await look_in_cluster(PLACE, None, seen, operations=operations)
    assert seen is not None
    assert {row["log"] for row in seen.rows} == {"container-0001"}
    [damage] = seen.damages
    assert "fails its checksum" in damage
    assert "container-0000" in damage


async def test_a_log_that_was_disabled_is_enabled_by_its_container_id(
    data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)

    def disabled(record: LogRecord | None) -> LogRecord | None:
        return None if record is None else replace(record, disabled="a fault")

    await edit_record(log_record_path(1), disabled, metadata=cluster.metadata)
    async with serving(data) as service:
        assert "log enable" in await until_down(service, 1)
    async with open_cluster_of(str(data), environment={}) as opened:
        assert opened is not None
        await enable_log(opened, 1)
    async with serving(data) as service:
        assert await content_of(service, BY_CONTAINER[1]) == b"one "


def options(place: Path, data: Path) -> RecoveryOptions:
    return RecoveryOptions(
        place=str(place),
        data=data,
        copy=False,
        dry=False,
        repair=True,
        with_damage=False,
        begin_anew=(),
        quiet=True,
        tier1=PLACE,
    )


async def test_h7_logs_are_made_below_a_root_from_tier_2_alone_and_the_recovery_may_be_run_again(
    tmp_path: Path, data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
        await append(service, b"lost with the cluster")
    cluster.roots.clear()
    with pytest.raises(StoreRecordError, match="--from-tier2"):
        async with serving(data):
            pass
    for action in ("made", "kept"):
        result = await recover_store(options(tmp_path / "disk", tmp_path / "new"))
        assert [row["action"] for row in result.rows] == [action] * CONTAINERS, result.remarks
    async with serving(tmp_path / "new") as service:
        assert [await content_of(service, name) for name in NAMES] == [b"one "] * len(NAMES)
        await append(service, b"two")
    async with serving(tmp_path / "new") as service:
        assert await content_of(service, NAMES[0]) == b"one two"


@pytest.mark.parametrize("cut_at", ["make", "finish"])
async def test_h7_a_recovery_below_a_root_that_was_cut_off_is_run_again_and_nothing_starts_before(
    tmp_path: Path,
    data: Path,
    cluster: ClusterInMemory,
    monkeypatch: pytest.MonkeyPatch,
    cut_at: str,
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
    cluster.roots.clear()
    new = tmp_path / "new"
    whole = BookKeeperLogsRebuilt.make

    async def make_one(logs: BookKeeperLogsRebuilt, manifest: Manifest, *, floor: int) -> int:
        if manifest.container_id:
            raise CutOffError
        return await whole(logs, manifest, floor=floor)

    async def cut(*_: object) -> None:
        raise CutOffError

    with monkeypatch.context() as patched:
        patched.setattr(BookKeeperLogsRebuilt, cut_at, make_one if cut_at == "make" else cut)
        with pytest.raises(CutOffError):
            await recover_store(options(tmp_path / "disk", new))
    with pytest.raises(StoreRecordError, match="--from-tier2"):
        async with serving(new):
            pass
    result = await recover_store(options(tmp_path / "disk", new))
    made = "made" if cut_at == "make" else "kept"
    assert [row["action"] for row in result.rows] == ["kept", made], result.remarks
    async with serving(new) as service:
        assert [await content_of(service, name) for name in NAMES] == [b"one "] * len(NAMES)


async def test_h7_a_log_whose_ledgers_are_gone_is_set_aside_by_name_and_never_by_a_recovery(
    tmp_path: Path, data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
    found = cluster.metadata.values[log_record_path(1)]
    async with open_cluster_of(str(data), environment={}) as opened:
        assert opened is not None
        aside = await set_log_aside(opened, 1)
    assert cluster.metadata.values[aside.removeprefix("/segmentstore")].value == found.value
    # A start before the recovery begins a log that has nothing to do with the manifest.
    async with serving(data, restart__same_failure_count="2") as service:
        assert "recover --from-tier2" in await until_down(service, 1)
    with pytest.raises(SegmentStoreError, match="set-aside bookkeeper://zk1/ledgers --container 1"):
        await recover_store(options(tmp_path / "disk", data))
    async with open_cluster_of(str(data), environment={}) as opened:
        assert opened is not None
        await set_log_aside(opened, 1)
    result = await recover_store(options(tmp_path / "disk", data))
    assert [row["action"] for row in result.rows] == ["kept", "made"], result.remarks
    async with serving(data) as service:
        assert [await content_of(service, name) for name in NAMES] == [b"one "] * len(NAMES)


async def test_h47_a_process_that_still_writes_a_log_that_is_set_aside_completes_no_append_more(
    data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        found = cluster.metadata.values[log_record_path(1)]
        async with service.store.open_segment(BY_CONTAINER[1]) as segment:
            async with open_cluster_of(str(data), environment={}) as opened:
                assert opened is not None
                aside = await set_log_aside(opened, 1)
            with pytest.raises(ContainerStoppedError, match="the record of the log is gone"):
                await segment.append(b"two")
        await append(service, b"two", [BY_CONTAINER[0]])
    kept = cluster.metadata.values[aside.removeprefix("/segmentstore")]
    assert kept.value == found.value, "what was found is the evidence"


async def test_a_ledger_that_no_record_names_is_swept_away_while_the_store_is_at_work(
    data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        record = await read_record(log_record_path(0), metadata=cluster.metadata)
        assert record is not None
        labels = ledger_labels(log_record_path(0), replace(record, epoch=record.epoch - 1))
        async with open_cluster_of(str(data), environment={}) as opened:
            assert opened is not None
            left = await opened.ledgers.create(Quorum(), labels=labels)
            rows = [row async for row in sweep_ledgers(opened, [])]
            assert [(row["log"], row["ledger"], row["action"]) for row in rows] == [
                ("container-0000", left.ledger_id, "deleted")
            ]
            assert [row async for row in sweep_ledgers(opened, [0])] == []
        await append(service, b"two")
    async with serving(data) as service:
        assert [await content_of(service, name) for name in NAMES] == [b"one two"] * len(NAMES)


@pytest.mark.parametrize("damaged", [0, 1])
async def test_a_sweep_goes_on_beside_a_damaged_record_and_says_what_it_has_deleted(
    data: Path,
    cluster: ClusterInMemory,
    capfdbinary: pytest.CaptureFixture[bytes],
    *,
    damaged: int,
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
    path = log_record_path(1 - damaged)
    record = await read_record(path, metadata=cluster.metadata)
    assert record is not None
    labels = ledger_labels(path, replace(record, epoch=record.epoch - 1))
    left = await cluster.bookies.client().create(Quorum(), labels=labels)
    stored = cluster.metadata.values[log_record_path(damaged)]
    cluster.metadata.values[log_record_path(damaged)] = replace(stored, value=stored.value[:-1])
    cli = CommandLine(capfdbinary)
    swept = await asyncio.to_thread(cli, "log", "sweep", PLACE, "-o", "json")
    assert left.ledger_id not in cluster.bookies.ledgers
    assert [(row["ledger"], row["action"]) for row in swept.rows] == [(left.ledger_id, "deleted")]
    assert swept.exit_code == ExitCode.CORRUPT
    assert f"container-000{damaged}" in swept.errors


async def test_a_sweep_says_what_it_has_deleted_of_the_log_in_which_it_fails(
    data: Path, cluster: ClusterInMemory, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
    record = await read_record(log_record_path(1), metadata=cluster.metadata)
    assert record is not None
    labels = ledger_labels(log_record_path(1), replace(record, epoch=record.epoch - 1))
    client = cluster.bookies.client()
    left = await client.create(Quorum(), labels=labels)
    await client.create(Quorum(), labels={**labels, EPOCH_LABEL: b"none"})
    cli = CommandLine(capfdbinary)
    swept = await asyncio.to_thread(cli, "log", "sweep", PLACE, "-o", "json")
    assert left.ledger_id not in cluster.bookies.ledgers
    assert [(row["ledger"], row["action"]) for row in swept.rows] == [(left.ledger_id, "deleted")]
    assert swept.exit_code == ExitCode.CORRUPT
    assert "of which epoch" in swept.errors


async def test_a_backup_of_a_store_in_bookkeeper_is_made_offline_and_restored_with_logs_in_files(
    tmp_path: Path, data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
    await make_backup("monday", data, tier2_place="")
    async with serving(data) as service:
        await append(service, b"two")
    before = dict(cluster.metadata.values)
    restored = await restore_backup(
        "monday", str(tmp_path / "disk"), tmp_path / "copy", with_damage=False, quiet=True
    )
    assert restored.failure is None, restored.remarks
    assert cluster.metadata.values == before, "the root belongs to the origin alone"
    async with serving(tmp_path / "copy", tier2__place="volumes") as service:
        assert [await content_of(service, name) for name in NAMES] == [b"one "] * len(NAMES)
    assert list((tmp_path / "copy" / "tier1").glob("container-*"))
    async with serving(data) as service:
        assert await content_of(service, NAMES[0]) == b"one two"


async def test_a_job_on_a_store_that_is_off_ends_when_what_runs_its_containers_breaks(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)

    async def breaks(_: ContainerManager) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(ContainerManager, "run", breaks)
    async with asyncio.timeout(30):
        with pytest.raises(ExceptionGroup) as broken:
            await make_backup("monday", data, tier2_place="")
    assert broken.group_contains(AssertionError, match="planted")


def tier2_at(data: Path) -> ObjectStore:
    store = FilesystemObjectStore(
        str(data / "tier2"), files=SystemFileSystem(), executor=None, random=Random(1)
    )
    return LazyObjectStore(store)


def owner_at(data: Path) -> OfflineOwner:
    return OfflineOwner(tier2_at(data), None, data_directory=data, environment={})


async def test_a_tool_that_could_not_claim_a_container_in_files_claims_it_when_it_is_asked_again(
    tmp_path: Path,
) -> None:
    data = tmp_path / "files"
    async with serving(data) as service:
        await begin(service)
        await service.store.flush()
    store = FaultyStore(tier2_at(data))
    owner = OfflineOwner(store, None, data_directory=data, environment={})
    store.conditional.append(Fault.FULL)
    with pytest.raises(StorageFullError):
        await owner.owner_of(ContainerId(0))
    assert (await owner.owner_of(ContainerId(0))).reserve_object_keys(1)
    await owner.close()


async def test_a_tool_that_reached_no_cluster_claims_a_container_when_it_is_asked_again(
    data: Path, cluster: ClusterInMemory
) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
    owner = owner_at(data)
    cluster.is_away = True
    with pytest.raises(MetadataUnavailableError):
        await owner.owner_of(ContainerId(1))
    cluster.is_away = False
    assert (await owner.owner_of(ContainerId(1))).reserve_object_keys(1)
    await owner.close()


async def test_h9_a_tool_claims_the_next_epoch_of_a_store_that_is_off(data: Path) -> None:
    async with in_bookkeeper(data) as service:
        await begin(service)
        await service.store.flush()
        owner = owner_at(data)
        with pytest.raises(SegmentStoreError, match="the store runs: name it with --server"):
            await owner.owner_of(ContainerId(1))
        await owner.close()
    owner = owner_at(data)
    assert (await owner.owner_of(ContainerId(1))).reserve_object_keys(1)
    await owner.close()
    async with serving(data) as service:
        assert await content_of(service, BY_CONTAINER[1]) == b"one "
        assert service.registry.get(ContainerId(1)).health().epoch == 3
