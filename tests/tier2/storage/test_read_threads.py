"""Which threads do what readers wait for."""

from random import Random

from segmentstore.contracts.identifiers import ContainerId, Epoch, SegmentId
from segmentstore.contracts.storage import DataPiece
from segmentstore.runtime.clock import SystemWallClock
from tests.contracts.storage_publications import LOG_ID, change, round_of
from tests.tier2.counting_threads import CountingThreads
from tests.tier2.storage.backings import STORE_ID
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

ZEROS = bytes(1 << 20)
"""As few bytes when stored: what counts is how many they become."""


async def test_long_blocks_are_decoded_in_the_threads_of_readers_however_well_they_compress() -> (
    None
):
    with CountingThreads() as executor, CountingThreads() as readers:
        storage = TieredStorage(
            object_store=MemoryObjectStore(),
            store_id=STORE_ID,
            container_id=ContainerId(0),
            container_count=1,
            settings=StorageSettings(),
            wall_clock=SystemWallClock(),
            random=Random(1),
            executor=executor,
            readers=readers,
        )
        await storage.claim(epoch=Epoch(1), log_id=LOG_ID)
        long = change(
            1, "long", length=len(ZEROS), sequence_number=1, pieces=[DataPiece(0, [ZEROS])]
        )
        short = change(
            2, "short", length=9, sequence_number=2, pieces=[DataPiece(0, [b"few bytes"])]
        )
        await storage.publish(round_of(long, short))
        before = executor.jobs
        assert bytes((await storage.read(SegmentId(2), 0, 9)).content) == b"few bytes"
        assert readers.jobs == 0
        assert bytes((await storage.read(SegmentId(1), 0, len(ZEROS))).content) == ZEROS
        assert (executor.jobs, readers.jobs) == (before, 1)
        await storage.close()
