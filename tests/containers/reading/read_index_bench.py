"""A read index with its surroundings, and the steps of a container that the tests need around it."""

from contextlib import aclosing

from containers.cache.cache_manager import CacheManager, CacheManagerSettings
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import ReadIndexSettings, StorageFetchSettings
from containers.metadata.segment_metadata import SegmentMetadata
from containers.read_index.container_read_index import ContainerReadIndex
from containers.read_index.segment_read_index import SegmentReadIndex
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.segments import ReadResultEntryKind
from tests.containers.reading.memory_tier2 import MemoryTier2

MIB = 1024 * 1024
SMALL_FETCHES = StorageFetchSettings(
    fetches_max=3,
    fetch_bytes_max=8192,
    alignment_bytes=512,
    read_ahead_bytes_max=16384,
    ahead_fetch_bytes_max=8192,
)


class ReadIndexBench:
    """One container's read index over a memory Tier 2."""

    def __init__(
        self,
        *,
        budget_bytes: int = 4 * MIB,
        settings: ReadIndexSettings | None = None,
        cache_settings: CacheManagerSettings | None = None,
    ) -> None:
        self.tier2 = MemoryTier2()
        self.memory = CacheStorage(budget_bytes=budget_bytes)
        self.cache = CacheManager(storage=self.memory, settings=cache_settings)
        self.container = ContainerReadIndex(
            cache=self.cache,
            storage=self.tier2,
            settings=settings or ReadIndexSettings(fetch=SMALL_FETCHES),
        )
        self._ids = 0

    def open(self, *, published: bytes = b"") -> SegmentReadIndex:
        """A new active segment, with bytes that are in Tier 2 already."""
        self._ids += 1
        segment_id = SegmentId(self._ids)
        metadata = SegmentMetadata(segment_id=segment_id, name=f"segment-{segment_id}")
        metadata.set_length(len(published))
        metadata.set_storage_length(len(published))
        metadata.reset_pending()
        if published:
            self.tier2.published[segment_id] = published
        return self.container.open(metadata)


def metadata_of(index: SegmentReadIndex) -> SegmentMetadata:
    """The whole of it: the index itself meets only some fields."""
    assert isinstance(index.metadata, SegmentMetadata)
    return index.metadata


def stage(index: SegmentReadIndex, data: bytes) -> None:
    """Accept an append."""
    index.stage(data)
    index.metadata.pending_length += len(data)


def commit(index: SegmentReadIndex) -> None:
    """Commit all that is pending."""
    metadata_of(index).set_length(index.metadata.pending_length)
    index.appended()


def append(index: SegmentReadIndex, data: bytes) -> None:
    stage(index, data)
    commit(index)


def seal(index: SegmentReadIndex) -> None:
    metadata = metadata_of(index)
    metadata.sealed = metadata.pending_sealed = True
    index.sealed()


def merge(target: SegmentReadIndex, source: SegmentReadIndex) -> None:
    """Accept and commit a merge of a sealed source."""
    of_target, of_source = metadata_of(target), metadata_of(source)
    offset = of_target.pending_length
    of_target.pending_length += of_source.length
    of_source.pending_merged = of_source.merged = True
    of_target.set_length(of_target.pending_length)
    target.begin_merge(offset, source)
    target.appended()


def flush(bench: ReadIndexBench, index: SegmentReadIndex, end: int | None = None) -> None:
    """Publish [storage length, end), merged bytes included, as the storage writer does."""
    publish(bench, index, end)
    acknowledge(index, end)


def publish(bench: ReadIndexBench, index: SegmentReadIndex, end: int | None = None) -> None:
    """Only Tier 2's side of a flush."""
    metadata = index.metadata
    begin = metadata.storage_length
    end = metadata.length if end is None else end
    views = index.views(begin, end - begin)
    published = bench.tier2.published.get(metadata.segment_id, b"")
    bench.tier2.published[metadata.segment_id] = published + b"".join(views)


def acknowledge(index: SegmentReadIndex, end: int | None = None) -> None:
    """Only the container's side of a flush."""
    metadata = metadata_of(index)
    metadata.set_storage_length(metadata.length if end is None else end)
    index.storage_advanced(metadata.storage_length)


def truncate(bench: ReadIndexBench, index: SegmentReadIndex, offset: int) -> None:
    metadata = metadata_of(index)
    metadata.pending_start_offset = offset
    metadata.set_start_offset(offset)
    index.truncated(offset)
    bench.tier2.start_offsets[metadata.segment_id] = min(offset, metadata.storage_length)


async def confirmed() -> None:
    """What a read asks before it tells an end: here no other owner can contradict it."""


async def read_all(
    index: SegmentReadIndex, offset: int, max_length: int
) -> tuple[bytes, list[ReadResultEntryKind]]:
    """Bytes and kinds of a read that stops before it would have to wait for the tail."""
    content = b""
    kinds = []
    async with aclosing(index.read(offset, max_length, confirm=confirmed)) as entries:
        async for entry in entries:
            kinds.append(entry.kind)
            if entry.kind in (ReadResultEntryKind.FUTURE, ReadResultEntryKind.TRUNCATED):
                break
            piece = await entry.content()
            assert entry.offset == offset + len(content)
            content += piece
    return content, kinds
