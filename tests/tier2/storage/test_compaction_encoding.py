"""What replaces other bytes is decoded once more before anybody sees it."""

from random import Random

import pytest

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.runtime.clock import SystemWallClock
from tier2.container_objects import ContainerObjects, IdentitySource, ObjectNames, StorageCounters
from tier2.format.chunk_format import BLOCK_BYTES_MAX, Compression
from tier2.object_stores.memory import MemoryObjectStore
from tier2.publish.chunk_upload import NewChunk, Uploader
from tier2.settings import StorageSettings

NOISE = Random(1).randbytes(1 << 20)
RUNS = {
    "one run": [b"text " * 1000],
    "many runs": [b"text " * 300_000, NOISE, b"x", NOISE[:700_000], NOISE[:300_000] * 2],
    "a run that is cut": [b"y" * (BLOCK_BYTES_MAX + 1000), NOISE],
    "tiny": [b"z"],
}


async def no_rest() -> None:
    return


def chunk_of(name: str, compression: Compression, *, change: int = 0) -> NewChunk:
    chunk = NewChunk(700, compression=compression, crc32=0)
    for run in RUNS[name]:
        chunk.runs.append(run)
        chunk.events.append(None)
        chunk.length += len(run)
        chunk.crc32 = crc32_of(run, chunk.crc32 or 0)
    chunk.crc32 = (chunk.crc32 or 0) ^ change
    return chunk


def uploader_to(store: MemoryObjectStore) -> Uploader:
    counters = StorageCounters()
    names = ObjectNames(ContainerId(0))
    return Uploader(
        objects=ContainerObjects(
            object_store=store, names=names, counters=counters, put_attempts_max=1
        ),
        identities=IdentitySource(epoch=1, claim=1),
        settings=StorageSettings(),
        counters=counters,
        wall_clock=SystemWallClock(),
        executor=None,
    )


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("compression", list(Compression))
async def test_chunks_whose_bytes_are_not_those_that_were_read_are_not_stored(
    name: str, compression: Compression
) -> None:
    store = MemoryObjectStore()
    good, changed = chunk_of(name, compression), chunk_of(name, compression, change=1)
    uploader = uploader_to(store)
    await uploader.upload_one_by_one([good], no_rest)
    assert good.place is not None
    objects = [info.key async for info in store.list("")]
    assert len(objects) == 1
    with pytest.raises(CorruptedDataError, match="changed while it was encoded"):
        await uploader.upload_one_by_one([changed], no_rest)
    assert [info.key async for info in store.list("")] == objects
