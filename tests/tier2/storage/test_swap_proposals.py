"""A compactor beside the owner proposes, the owner checks and publishes: H9."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import StorageNotPrimaryError, StoreFullError, SwapRefusedError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece, ProposedImage, SwapProposal
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.storage_publications import change, data, read_all
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import FaultyStore
from tests.tier2.storage.small_rounds import keys_of
from tests.tier2.storage.test_blocks_of_events import blocks_of, event
from tests.tier2.storage.test_compaction import rounds, settle, trickle, verified
from tier2.container_objects import ObjectKind, ObjectNames
from tier2.format.chunk_encoder import encode_chunk
from tier2.format.chunk_format import Compression, EventInformation
from tier2.layout_entry import LayoutEntry
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.sst.keyspace import (
    end_offset_of,
    layout_range,
)
from tier2.tiered_storage import TieredStorage

QUIET = replace(SMALL, compaction_bytes_per_second=0)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryObjectStore())


@pytest.fixture
def backing(store: FaultyStore) -> ObjectStoreBacking:
    return ObjectStoreBacking(store, QUIET)


async def chunks(owner: TieredStorage, segment_id: int = 1) -> list[ProposedImage]:
    """The chunks of a segment, as whoever reads the manifest finds them."""
    start, end = layout_range(SegmentId(segment_id), 0)
    names = ObjectNames(owner.view.manifest.container_id)
    return [
        ProposedImage(
            entry.start_offset,
            entry.end_offset,
            names.key(ObjectKind.CHUNKS, entry.identity),
            entry.position,
            entry.size,
            entry.file_crc32,
        )
        for key, value in await owner.view.scan_all(start, end)
        if value is not None
        for entry in [LayoutEntry.decode(end_offset_of(key), value)]
    ]


async def upload(
    owner: TieredStorage,
    store: FaultyStore,
    offset: int,
    runs: Sequence[bytes],
    events: Sequence[EventInformation | None] | None = None,
) -> ProposedImage:
    """What a compactor does with the bytes it read."""
    (key,) = owner.reserve_object_keys(1)
    encoded = encode_chunk(
        start_offset=offset, runs=runs, compression=Compression.ZSTD, created_ms=5, events=events
    )
    await store.put(key, encoded.buffers)
    return ProposedImage(offset, encoded.end_offset, key, 0, encoded.size, encoded.file_crc32)


async def test_h9_a_sound_swap_is_published_by_the_owner_and_the_old_chunks_go(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 6)
    old = (await chunks(owner))[1:5]
    new = await upload(owner, store, 100, [content[100:300], content[300:500]])
    await owner.propose_swap(SwapProposal(SegmentId(1), old, [new]))
    assert len(await chunks(owner)) == 3
    assert await read_all(owner, 1, 0, len(content)) == content
    content = await trickle(owner, 2, first=6)
    assert await read_all(owner, 1, 0, len(content)) == content
    await settle(owner)
    await settle(owner)
    assert not {one.object_key for one in old} & await keys_of(store)
    assert new.object_key in await keys_of(store)
    assert await read_all(await backing.claimed(2), 1, 0, len(content)) == content
    await verified(store)


@pytest.mark.parametrize(
    "why",
    [
        "the bytes differ",
        "other ranges",
        "gave out no such object key",
        "other chunks there by now",
        "without a hole",
        "no such segment",
        "longer than one proposal may be",
        "not a chunk header",
        "object does not exist",
        "something else of its events",
        "it has 0 images",
    ],
)
async def test_h9_what_does_not_agree_is_refused_with_a_reason_and_changes_nothing(
    store: FaultyStore, why: str
) -> None:
    owner = await ObjectStoreBacking(store, replace(QUIET, proposal_bytes_max=450)).claimed(1)
    content = await trickle(owner, 6)
    old = (await chunks(owner))[:4]
    runs = [content[:200], content[200:400]]
    segment_id, new = SegmentId(1), [await upload(owner, store, 0, runs)]
    match why:
        case "the bytes differ":
            new = [await upload(owner, store, 0, [content[:399] + b"!"])]
        case "other ranges":
            old = old[:3]
        case "gave out no such object key":
            new = [replace(new[0], object_key=new[0].object_key[:-1] + "f")]
        case "other chunks there by now":
            old = [replace(old[0], size=old[0].size + 1), *old[1:]]
        case "without a hole":
            new = [replace(new[0], end_offset=100), replace(new[0], start_offset=200)]
        case "no such segment":
            segment_id = SegmentId(9)
        case "longer than one proposal may be":
            old = (await chunks(owner))[:5]
            new = [await upload(owner, store, 0, [content[:500]])]
        case "not a chunk header":
            store.damage = {new[0].object_key: lambda found: b"\0" + found[1:]}
        case "object does not exist":
            await store.delete(new[0].object_key)
        case "something else of its events":
            told = EventInformation(0, 7, 1, 2)
            new = [await upload(owner, store, 0, runs, [told, told])]
        case "it has 0 images":
            new = []
    version = owner.statistics().root_version
    with pytest.raises(SwapRefusedError, match=why):
        await owner.propose_swap(SwapProposal(segment_id, old, new))
    assert owner.statistics().root_version == version
    store.damage = {}
    assert await read_all(owner, 1, 0, len(content)) == content
    content = await trickle(owner, 1, first=6)
    for _ in range(3):
        await owner.collect_garbage()
    used_up = {one.object_key for one in new} - {one.object_key for one in await chunks(owner)}
    if why != "gave out no such object key":
        assert not used_up & await keys_of(store), "what was refused is garbage"
    owner.check()
    assert await read_all(owner, 1, 0, len(content)) == content


async def test_h9_a_key_serves_one_proposal(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 4)
    old = await chunks(owner)
    new = await upload(owner, store, 0, [content])
    proposal = SwapProposal(SegmentId(1), old, [new])
    await owner.propose_swap(proposal)
    with pytest.raises(SwapRefusedError, match="no such object key"):
        await owner.propose_swap(proposal)
    assert await read_all(owner, 1, 0, len(content)) == content


@pytest.mark.parametrize(
    ("position", "size"), [(0, 1 << 40), (0, (1 << 63) - 1), ((1 << 63) - 1, 200)]
)
async def test_h9_an_image_that_goes_beyond_its_object_is_refused_before_it_is_read(
    tmp_path: Path, position: int, size: int
) -> None:
    files = FilesystemObjectStore(
        str(tmp_path), files=SystemFileSystem(), executor=None, random=Random(1)
    )
    await files.start()
    store = FaultyStore(files)
    owner = await ObjectStoreBacking(store, QUIET).claimed(1)
    content = await trickle(owner, 2)
    new = await upload(owner, store, 0, [content])
    beyond = replace(new, position=position, size=size)
    with pytest.raises(SwapRefusedError, match="beyond its object"):
        await owner.propose_swap(SwapProposal(SegmentId(1), await chunks(owner), [beyond]))
    assert await read_all(owner, 1, 0, len(content)) == content


class StoreReadOnce(FaultyStore):
    """Lets something happen before the first read of one object."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.key = ""
        self.happen: Callable[[], Awaitable[None]] | None = None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if key == self.key and self.happen is not None:
            happen, self.happen = self.happen, None
            await happen()
        return await super().get_range(key, start, length)


async def test_h9_what_changes_while_a_proposal_is_checked_is_not_swapped() -> None:
    store = StoreReadOnce()
    owner = await ObjectStoreBacking(store, QUIET).claimed(1)
    content = await trickle(owner, 4)
    new = await upload(owner, store, 0, [content])
    proposal = SwapProposal(SegmentId(1), await chunks(owner), [new])

    async def truncate() -> None:
        await owner.publish(
            rounds(change(1, "s1", length=400, start_offset=150, sequence_number=9))
        )

    store.key, store.happen = new.object_key, truncate
    with pytest.raises(SwapRefusedError, match="changed while the swap was checked"):
        await owner.propose_swap(proposal)
    assert await read_all(owner, 1, 150, 400) == content[150:]
    await settle(owner)
    await settle(owner)
    await verified(store)


async def test_h9_a_block_may_not_end_inside_a_block_that_knows_of_events(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    piece = DataPiece(0, [b"e" * 900, b"f" * 900], [event(0), event(1)])
    await owner.publish(rounds(change(1, "a", length=1800, sequence_number=1, pieces=[piece])))
    await owner.publish(
        rounds(change(1, "a", length=1810, sequence_number=2, pieces=[data(1800, b"x" * 10)]))
    )
    old = (await chunks(owner))[:1]
    (block,) = await blocks_of(owner, 1, 0, 1800)
    whole = EventInformation(0, 0, block.lowest_time_ms, block.highest_time_ms)
    new = await upload(owner, store, 0, [b"e" * 900 + b"f" * 900], [whole])
    await owner.propose_swap(SwapProposal(SegmentId(1), old, [new]))
    (after,) = await blocks_of(owner, 1, 0, 1800)
    assert (after.event_number, after.lowest_time_ms) == (0, block.lowest_time_ms)


async def test_h9_keys_are_bounded_and_a_zombie_swaps_nothing(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    zombie = await backing.claimed(1)
    content = await trickle(zombie, 4)
    with pytest.raises(StoreFullError):
        zombie.reserve_object_keys(QUIET.proposal_keys_max + 1)
    proposal = SwapProposal(
        SegmentId(1), await chunks(zombie), [await upload(zombie, store, 0, [content])]
    )
    owner = await backing.claimed(2)
    with pytest.raises(StorageNotPrimaryError):
        await zombie.propose_swap(proposal)
    with pytest.raises(SwapRefusedError, match="no such object key"):
        await owner.propose_swap(proposal)
    assert await read_all(owner, 1, 0, len(content)) == content


def test_h9_keys_that_a_dead_compactor_left_unused_are_given_up_in_time() -> None:
    async def main(loop: SimLoop) -> None:
        store = FaultyStore(MemoryObjectStore())
        owner = await ObjectStoreBacking(store, QUIET).claimed(1)
        content = await trickle(owner, 4)
        left = await upload(owner, store, 0, [content])
        owner.reserve_object_keys(QUIET.proposal_keys_max - 1)
        await asyncio.sleep(QUIET.proposal_key_seconds / 2)
        with pytest.raises(StoreFullError):
            owner.reserve_object_keys(1)
        await asyncio.sleep(QUIET.proposal_key_seconds / 2 + 1)
        owner.reserve_object_keys(QUIET.proposal_keys_max - 1)
        new = await upload(owner, store, 0, [content])
        old = await chunks(owner)
        with pytest.raises(SwapRefusedError, match="no such object key"):
            await owner.propose_swap(SwapProposal(SegmentId(1), old, [left]))
        await owner.propose_swap(SwapProposal(SegmentId(1), old, [new]))
        await settle(owner)
        await settle(owner)
        assert left.object_key not in await keys_of(store), "what it had stored is garbage"
        assert await read_all(owner, 1, 0, len(content)) == content

    run_simulation(1, main)


async def test_h9_a_block_may_not_join_blocks_of_different_times(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    for number in range(2):
        piece = DataPiece(900 * number, [b"e" * 900], [event(number)])
        length = 900 * (number + 1)
        await owner.publish(
            rounds(change(1, "a", length=length, sequence_number=number + 1, pieces=[piece]))
        )
    low, high = await blocks_of(owner, 1, 0, 1800)
    joined = EventInformation(0, 0, low.lowest_time_ms, low.highest_time_ms)
    assert high.lowest_time_ms > low.lowest_time_ms
    new = await upload(owner, store, 0, [b"e" * 1800], [joined])
    with pytest.raises(SwapRefusedError, match="joins events of different times"):
        await owner.propose_swap(SwapProposal(SegmentId(1), await chunks(owner), [new]))


async def test_h9_a_proposal_of_too_many_images_uses_up_the_keys_of_all(
    store: FaultyStore, backing: ObjectStoreBacking
) -> None:
    owner = await backing.claimed(1)
    content = await trickle(owner, 6)
    old = (await chunks(owner))[:4]
    first = await upload(owner, store, 0, [content[:200], content[200:400]])
    last = await upload(owner, store, 0, [content[:200], content[200:400]])
    many = [*[first] * 4_096, last]
    with pytest.raises(SwapRefusedError, match="4097 images of 1 to 4096"):
        await owner.propose_swap(SwapProposal(SegmentId(1), old, many))
    for image in (first, last):
        with pytest.raises(SwapRefusedError, match="gave out no such object key"):
            await owner.upload_reserved(image.object_key, b"again")
    await settle(owner)
    assert not {first.object_key, last.object_key} & await keys_of(store)
