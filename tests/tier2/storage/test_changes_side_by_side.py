"""What is cached while a publication is open and something else fails beside it: H4, H20."""

import asyncio
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import Publication, SwapProposal
from tests.contracts.storage_publications import change, data, read_all
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tests.tier2.storage.test_compaction import rounds, trickle
from tests.tier2.storage.test_swap_proposals import chunks, upload
from tier2.object_stores.memory import MemoryObjectStore
from tier2.tiered_storage import TieredStorage

QUIET = replace(SMALL, compaction_bytes_per_second=0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


async def owner_with_proposal(store: FaultyStore) -> tuple[TieredStorage, bytes, SwapProposal]:
    """Two segments of the same bytes, and a chunk in the place of those of the second one."""
    owner = await ObjectStoreBacking(store, QUIET).claimed(1)
    content = await trickle(owner, 4)
    await trickle(owner, 4, segment_id=2)
    old = await chunks(owner, 2)
    new = await upload(owner, store, 0, [content])
    return owner, content, SwapProposal(SegmentId(2), old, [new])


def two_more_bytes() -> Publication:
    """Behind four rounds of a hundred bytes."""
    return rounds(change(1, "s1", length=402, sequence_number=5, pieces=[data(400, b"de")]))


async def test_h4_a_proposal_that_fails_before_an_open_publication_lands_leaves_nothing_stale(
    store: FaultyStore,
) -> None:
    owner, content, proposal = await owner_with_proposal(store)
    store.conditional += [Fault.LATE, Fault.BEFORE]
    with pytest.raises(StorageError, match="unknown"):
        await owner.publish(two_more_bytes())
    with pytest.raises(StorageError, match="unknown"):
        await owner.propose_swap(proposal)
    assert await read_all(owner, 1, 0, 400) == content
    await store.land()
    await owner.publish(two_more_bytes())
    assert await read_all(owner, 1, 0, 402) == content + b"de"
    last = rounds(change(1, "s1", length=403, sequence_number=6, pieces=[data(402, b"f")]))
    await owner.publish(last)
    assert await read_all(owner, 1, 0, 403) == content + b"def"


async def test_h20_a_proposal_that_is_given_up_beside_a_deletion_leaves_nothing_of_the_segment(
    store: FaultyStore,
) -> None:
    owner, content, proposal = await owner_with_proposal(store)
    deletion = rounds(change(1, "s1", length=400, sequence_number=5, deleted=True))
    proposing: list[asyncio.Task[None]] = []

    async def give_up_and_read() -> None:
        proposing.append(asyncio.create_task(owner.propose_swap(proposal)))
        await asyncio.sleep(0.05)
        proposing[0].cancel()
        await asyncio.wait(proposing)
        assert await read_all(owner, 1, 0, 400) == content

    store.before_conditional = give_up_and_read
    await owner.publish(deletion)
    assert proposing[0].cancelled()
    assert await owner.load([SegmentId(1)]) == {}
