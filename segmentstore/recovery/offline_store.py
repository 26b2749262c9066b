"""A store without servers in this process, for the time of one command: its containers recover, and nothing listens.

`make_backup` and `drop_backups` are the verbs of backups for a store that does not run.

`repair_streams` is for a recovery from Tier 2 alone: it makes streams agree with their segments. The
controller's own repair does the work, but for open transactions. These are aborted here: bytes that a client knows to
be written went with Tier 1. A commit would bring a part of them, or wait for ever for a segment that never comes.
Behind that the segments of containers whose logs were lost are ended (`unfinished_work` has the mark of them).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from containers.segment_container import StreamSegmentContainer
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.controller_records.transaction_records import TransactionState
from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.storage import SnapshotInfo
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.controller.streams.repair import RepairReport, TailIsLost
from segmentstore.controller.transactions.transaction_table import LoadedFence, TransactionTable
from segmentstore.host.data_directory import IDENTITY_NAME, DataDirectoryError
from segmentstore.host.segment_store import SegmentStore
from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.setting_sources import resolve_settings
from segmentstore.recovery.unfinished_work import lost_logs, unmark_lost_logs
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random

_TRANSACTIONS_PAGE_ENTRIES = 1_000


@asynccontextmanager
async def open_offline(data_directory: Path, *, tier2_place: str = "") -> AsyncIterator[Service]:
    """`tier2_place`: s3://BUCKET/PREFIX, or empty for what is in the directory.

    Raises DataDirectoryError where no store is yet, DataDirectoryInUseError while the store runs, ContainerStoppedError
    if a container does not recover.
    """
    _refuse_without_store(data_directory)
    flags = {"store.data_directory": str(data_directory)}
    if tier2_place:
        flags["tier2.place"] = tier2_place
    resolved = resolve_settings(flags=flags, environment=os.environ)
    async with open_service(resolved) as service:
        managing = asyncio.create_task(service.manager.run(), name="container manager")
        try:
            await _wait_until_settled(service, managing)
            for health in service.registry.health():
                if health.state is not ContainerState.RUNNING:
                    raise ContainerStoppedError(
                        f"container {health.container_id} did not recover: {health.cause}"
                    )
            yield service
        finally:
            managing.cancel()
            await asyncio.gather(managing, return_exceptions=True)


def _refuse_without_store(data_directory: Path) -> None:
    """A server begins a store in an empty directory. Here it may be that of a disk which is not mounted, and a backup
    of the nothing in it would look like one of the store."""
    if not (data_directory / IDENTITY_NAME).exists():
        raise DataDirectoryError(
            f"there is no store in the directory: name the data directory of one path={data_directory.absolute()}"
        )


async def _wait_until_settled(service: Service, managing: asyncio.Task[None]) -> None:
    """Raises what ended the manager, in a group: nothing settles behind that, and the wait would have no end."""
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_follow(managing), name="container manager's end")
        await service.manager.wait_until_settled()
        watching.cancel()


async def _follow(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


async def make_backup(
    name: str, data_directory: Path, *, tier2_place: str = ""
) -> Mapping[ContainerId, SnapshotInfo]:
    """Flush everything and keep it as `name`: what each container keeps. Raises what open_offline() raises."""
    async with open_offline(data_directory, tier2_place=tier2_place) as service:
        containers = _containers(service)
        kept = [
            any(found.name == name and found.is_proved for found in await each.backups.list())
            for each in containers
        ]
        if not all(kept):
            # What an attempt left that was broken off is of another moment.
            for each in containers:
                await each.backups.drop(name)
        return {each.container_id: await each.backups.make(name) for each in containers}


async def drop_backups(
    names: Sequence[str], data_directory: Path, *, tier2_place: str = ""
) -> bool:
    """Keep them no longer; False if there is none of these names. Raises what open_offline() raises."""
    dropped = False
    async with open_offline(data_directory, tier2_place=tier2_place) as service:
        for container in _containers(service):
            for name in names:
                dropped |= await container.backups.drop(name)
    return dropped


def _containers(service: Service) -> list[StreamSegmentContainer]:
    found: list[StreamSegmentContainer] = []
    for container in service.registry.all_running():
        assert isinstance(container, StreamSegmentContainer), f"of another kind {container!r}"
        found.append(container)
    return found


@dataclass(frozen=True, slots=True)
class StreamRepair:
    """What was found and done."""

    report: RepairReport
    aborted: Sequence[str]
    """Streams and ids of transactions that were open; the controller's start deletes their segments."""


async def repair_streams(data_directory: Path, *, tier2_place: str) -> StreamRepair:
    """`tier2_place`: s3://BUCKET/PREFIX, or empty for what is in the directory. What was repaired is flushed.

    Raises what open_offline() raises, and what the controller and the service raise: begin again then.
    """
    async with open_offline(data_directory, tier2_place=tier2_place) as service:
        lost = lost_logs(data_directory)
        count = service.registry.container_count
        done = await repair_store(
            service.store, is_lost=lambda name: container_of(name, count) in lost
        )
        for container in service.registry.all_running():
            await container.flush()
        if not done.report.failures:
            unmark_lost_logs(data_directory)
        return done


async def repair_store(store: SegmentStore, *, is_lost: TailIsLost) -> StreamRepair:
    """The same in a store whose containers run and that no controller serves; nothing is flushed for it."""
    controller = Controller(
        segments=store,
        tables=store,
        wall_clock=SystemWallClock(),
        random=system_random(),
        locate=lambda _: Endpoint("127.0.0.1", 0),
        settings=ControllerSettings(),
    )
    report = await controller.repair(is_lost)
    aborted = await _abort_open(store)
    await controller.end_lost_tails(is_lost, report)
    return StreamRepair(report, aborted)


async def _abort_open(tables: TableApi) -> list[str]:
    """Behind the controller's repair, which made the table; no other task decides a transaction meanwhile."""
    table = TransactionTable(tables=tables)
    async with aclosing(table.load(page_entries=_TRANSACTIONS_PAGE_ENTRIES)) as loaded:
        found = [
            each
            async for each in loaded
            if not isinstance(each, LoadedFence) and each.record.state is TransactionState.OPEN
        ]
    aborted: list[str] = []
    for each in found:
        decided = replace(each.record, state=TransactionState.ABORTING)
        await table.replace({each.name: (each.record, decided)})
        name = each.name
        aborted.append(f"{name.scope}/{name.stream} {name.transaction_id:032x}")
    return sorted(aborted)
