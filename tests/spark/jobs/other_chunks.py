"""What an owner does beside a job: other chunks in the place of chunks."""

from dataclasses import replace

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import ProposedImage, SwapProposal
from tests.spark.jobs.generated_store import SETTINGS, GeneratedStore
from tests.tier2.storage.test_blocks_of_events import blocks_of
from tests.tier2.storage.test_swap_proposals import chunks
from tier2.format.chunk_encoder import encode_chunk
from tier2.format.chunk_format import EventInformation
from tier2.tiered_storage import TieredStorage


def swap_all(store: GeneratedStore, name: str) -> None:
    """The segment's bytes in one chunk; the old objects are gone at once."""
    segment = store.segments[name]
    segment_id = SegmentId(segment.segment_id)

    async def work(owner: TieredStorage) -> None:
        old = await chunks(owner, segment_id)
        runs: list[bytes] = []
        events: list[EventInformation] = []
        for block in await blocks_of(owner, segment_id, 0, len(segment.content)):
            runs.append(segment.content[block.offset : block.offset + block.length])
            first = block.first_event_offset
            events.append(
                EventInformation(
                    None if first is None else first - block.offset,
                    block.event_number,
                    block.lowest_time_ms,
                    block.highest_time_ms,
                )
            )
        (key,) = owner.reserve_object_keys(1)
        encoded = encode_chunk(
            start_offset=0, runs=runs, created_ms=5, events=events, joins_times=False
        )
        await owner.upload_reserved(key, b"".join(encoded.buffers))
        new = ProposedImage(0, encoded.end_offset, key, 0, encoded.size, encoded.file_crc32)
        await owner.propose_swap(SwapProposal(segment_id, old, [new]))
        while await owner.collect_garbage():
            pass

    store.with_owner(segment.container, work, replace(SETTINGS, garbage_grace_seconds=0.0))
