"""Starting and stopping a storage writer inside a test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from containers.container_settings import WriterSettings
from containers.writer.storage_writer import StorageWriter
from segmentstore.contracts.identifiers import ContainerId, Epoch, SequenceNumber
from segmentstore.contracts.storage import ClaimedManifest, Storage
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.small_container import SmallContainer


async def make_writer(
    container: SmallContainer,
    storage: MemoryStorage,
    settings: WriterSettings | None = None,
) -> StorageWriter:
    """A writer with Tier 2 claimed, not running yet."""
    claimed = await storage.claim(epoch=Epoch(storage.epoch + 1), log_id=b"log")
    return started_writer(container, storage, claimed, settings or WriterSettings())


def started_writer(
    container: SmallContainer,
    storage: Storage,
    claimed: ClaimedManifest,
    settings: WriterSettings,
    kind: type[StorageWriter] = StorageWriter,
) -> StorageWriter:
    writer = kind(
        container_id=ContainerId(1),
        source=container,
        storage=storage,
        settings=settings,
        executor=None,
        random=Random(1),
    )
    writer.start(claimed)
    return writer


@asynccontextmanager
async def running(
    container: SmallContainer,
    storage: MemoryStorage,
    settings: WriterSettings | None = None,
    *,
    prepare: Callable[[StorageWriter], None] = lambda writer: None,
) -> AsyncIterator[StorageWriter]:
    """A writer at work until the block ends; its failure fails the block."""
    writer = await make_writer(container, storage, settings)
    prepare(writer)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run())
        yield writer
        task.cancel()


async def flush_all(container: SmallContainer, writer: StorageWriter) -> None:
    await writer.flush(SequenceNumber(container.metadata.committed_sequence_number))
