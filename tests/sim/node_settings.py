"""What a world's NodeSettings mean to the rooms of the real node."""

from containers.cache.cache_manager import CacheManagerSettings
from containers.container_settings import (
    AttributeMemorySettings,
    CheckpointSettings,
    ContainerSettings,
    FramePipelineSettings,
    OperationProcessorSettings,
    ReadIndexSettings,
    SegmentMapperSettings,
    StorageFetchSettings,
    TableSettings,
    ThrottlerSettings,
    WriterSettings,
)
from tests.sim.settings import NodeSettings
from tier1.file_log.frames import PAGE_BYTES, frame_bytes
from tier1.file_log.settings import FileLogSettings
from tier2.settings import StorageSettings

CACHE_BYTES = 1 << 20
"""The smallest that a node takes; shares of it make it as small as a world wants."""
_ATTRIBUTES_BYTES_NEVER_HELD = 1 << 20
"""Under a bound as high as this every look at the attributes in memory finds nothing to do."""


def log_settings(node: NodeSettings) -> FileLogSettings:
    """Tier 1: files of a few frames, turned over soon."""
    batch_bytes = node.frame_bytes_max * (4 if node.frames_in_flight_max > 2 else 1)
    journal_bytes = max(node.journal_bytes, frame_bytes(1, batch_bytes) + 4 * PAGE_BYTES)
    return FileLogSettings(
        entry_bytes_max=node.frame_bytes_max,
        outstanding_bytes_max=node.frame_bytes_max * node.frames_in_flight_max,
        batch_bytes_max=batch_bytes,
        ahead_bytes_min=1024,
        journal_bytes_first=journal_bytes,
        journal_bytes_max=2 * journal_bytes,
        spare_journals=1,
        recycled_journals_max=3,
        fill_step_bytes=4 * PAGE_BYTES,
        reserve_bytes=2 * journal_bytes,
        free_bytes_min=4 * journal_bytes,
        space_poll_seconds=0.1,
        mark_delay_seconds=0.05,
        copy_bytes_max=node.frame_bytes_max if node.frames_in_flight_max > 1 else 0,
        takeover=node.takeover,
    )


def storage_settings(node: NodeSettings) -> StorageSettings:
    """Tier 2: chunks, runs and caches of a few hundred bytes, so that merges and repacking abound."""
    chunk = node.chunk_bytes_max
    return StorageSettings(
        chunk_bytes_max=chunk,
        solo_chunk_bytes_min=max(32, chunk // 4),
        pack_bytes_max=4 * chunk,
        pack_chunks_max=16,
        upload_count_max=2,
        put_attempts_max=2,
        repack_live_share_max=0.5,
        sst_block_bytes=512,
        sst_part_bytes=4096,
        sst_tier_bytes=1024,
        sst_fanout=2,
        sst_count_max=8,
        merge_read_bytes=1024,
        sst_cache_bytes=node.tier2_cache_bytes,
        record_cache_bytes=node.tier2_cache_bytes,
        chunk_index_cache_bytes=node.tier2_cache_bytes,
        whole_chunk_read_bytes_max=min(chunk, 1024),
        garbage_grace_seconds=node.garbage_grace_seconds,
        garbage_batch_max=16,
    )


def cache_settings(node: NodeSettings) -> CacheManagerSettings:
    """A cache in which only `cache_bytes_max` may be un-flushed, and little more may be occupied at all."""
    share = min(0.9, node.cache_bytes_max / CACHE_BYTES)
    return CacheManagerSettings(
        high_mark_share=min(0.9, 1.5 * share),
        unflushed_share_max=share,
        generation_share=share / 8,
        eviction_batch=4,
    )


def container_settings(node: NodeSettings) -> ContainerSettings:
    """Everything between the tiers."""
    share = cache_settings(node).unflushed_share_max
    return ContainerSettings(
        processor=OperationProcessorSettings(
            append_bytes_max=64 * 1024,
            waiting_bytes_max=64 * 1024,
            admitted_requests_max=node.frame_operations_max,
            pipeline=FramePipelineSettings(
                frame_operations_max=node.frame_operations_max,
                frames_in_flight_max=node.frames_in_flight_max,
                small_bytes=node.frame_bytes_max // 2,
                small_operations=node.frame_operations_max,
            ),
        ),
        checkpoints=CheckpointSettings(
            bytes_min=256 * node.checkpoint_commits_min,
            operations_max=node.checkpoint_commits_min,
        ),
        throttler=ThrottlerSettings(
            cache_begin_fraction=0.6 * share, cache_stop_fraction=0.9 * share
        ),
        read_index=ReadIndexSettings(
            fetch=StorageFetchSettings(
                fetches_max=2,
                fetch_bytes_max=1024,
                alignment_bytes=256,
                read_ahead_bytes_max=4096,
                ahead_fetch_bytes_max=2048,
                sequences_max=4,
            ),
            waiters_max=1000,
            discards_per_turn=2,
        ),
        mapper=SegmentMapperSettings(
            active_segments_max=node.active_segments_max, eviction_share=0.5
        ),
        writer=_writer_settings(node),
        attribute_memory=AttributeMemorySettings(
            bytes_max=node.attribute_bytes_max,
            throttle_factor=1e9,
            look_seconds=0.2 if node.attribute_bytes_max < _ATTRIBUTES_BYTES_NEVER_HELD else 60.0,
        ),
        tables=TableSettings(
            compact_bytes_min=200,
            round_bytes_max=1000,
            slice_bytes=100,
            scan_count=2,
            scan_bytes=100,
        ),
        claim_retry_seconds=0.5,
        housekeeping_seconds=0.5,
    )


def _writer_settings(node: NodeSettings) -> WriterSettings:
    return WriterSettings(
        flush_bytes=node.flush_bytes,
        flush_interval_seconds=node.flush_seconds,
        prompt_age_seconds=min(node.flush_seconds, 0.2),
        look_again_seconds=0.1,
        publication_bytes_max=max(1024, 4 * node.flush_bytes),
        frugal_bytes_max=256,
        publication_segments_max=4,
        merge_depth_max=3,
        read_items_max=8,
        slice_count=3,
        inline_check_bytes_max=512,
        check_batch_bytes=512,
        retry_seconds_first=0.05,
        retry_seconds_max=5.0,
        maintenance_publications=3,
        maintenance_seconds=node.maintenance_seconds,
        remembered_records_max=4,
        load_records_max=3,
        compare_bytes=100,
    )
