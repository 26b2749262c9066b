"""More garbage than one look deletes: all of it goes when its grace is over, whatever is recorded meanwhile (H6)."""

import asyncio
from dataclasses import replace

from segmentstore.contracts.identifiers import AttributeKey
from tests.contracts.storage_publications import change
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_compaction import rounds, trickle
from tier2.object_stores.memory import MemoryObjectStore

GRACE_SECONDS = 30.0


def test_h6_chunks_go_when_their_grace_is_over_though_every_round_leaves_a_run_as_garbage() -> None:
    run_simulation(1, _collect_beside_many_rounds)


async def _collect_beside_many_rounds(loop: SimLoop) -> None:
    settings = replace(SMALL, garbage_grace_seconds=GRACE_SECONDS)
    store = FaultyStore(MemoryObjectStore())
    owner = await ObjectStoreBacking(store, settings).claimed(1)
    await trickle(owner, 3)
    key = AttributeKey(b"w" * 16)
    for number in range(200, 400):
        busy = change(2, "busy", length=0, sequence_number=number, attributes={key: number})
        gone = change(1, "s1", length=300, sequence_number=number, deleted=True)
        await owner.publish(rounds(busy, gone) if number == 240 else rounds(busy))
        while await owner.maintain():
            pass
        await owner.collect_garbage()
        await asyncio.sleep(0.5)
    assert not [key for key in await keys_of(store) if "/chunks/" in key]
