"""Compares what the layouts under a root name with what a listing shows: which bytes of which segments are lost.

    one listing of the container's objects -> the runs once, in key order -> each layout entry has its object, and the
    object reaches to the end of the image

What the listing shows and nothing names tells something too. Objects of the root's epoch were uploaded and not yet
published when the owner ended. Objects of a higher epoch cannot be there before a root has that epoch (H7): the root is
an older version of itself, brought back by somebody or by a disk.

- No request for each chunk. What is inside of a chunk is not looked at: that is `verify.py`, deep.
- A listing may be stale (H3): an object that it does not show is asked for by name. Behind LOOKS_MAX objects that are
  really gone the listing is believed, since it is known by then that this store has lost objects.
- Something is lost only if the root, read again, is still the one that names it (H8).
- Memory: two entries for each object, and RANGES_MAX findings; further ones are only counted.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.contracts.storage import SegmentRecord
from tier2.storage.components import Components
from tier2.storage.garbage import list_objects
from tier2.storage.object_names import ObjectIdentity, ObjectKind
from tier2.storage.reader import ContainerReader
from tier2.storage.root import Root
from tier2.storage.run_keys import (
    GARBAGE,
    SEGMENT,
    end_offset_of,
    garbage_of,
    is_layout_key,
    is_record_key,
    range_of,
    segment_of,
)
from tier2.storage.run_values import LayoutEntry, decode_record
from tier2.storage.run_view import RunView

RANGES_MAX = 1_000
LOOKS_MAX = 100
_PAGE = 1_024
_ATTEMPTS_MAX = 4


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes of a segment that a layout places where nothing is."""

    segment: str
    start_offset: int
    end_offset: int
    """Exclusive."""
    object_key: str

    def __str__(self) -> str:
        return f"{self.segment} [{self.start_offset}, {self.end_offset}) in {self.object_key}"


@dataclass(slots=True)
class LostChunks:
    """Of one root version."""

    ranges: list[LostRange] = field(default_factory=list)
    range_count: int = 0
    segment_count: int = 0
    byte_count: int = 0
    newer_count: int = 0
    """Objects of a higher epoch than the root's: versions of the root are lost, and what they published."""
    highest_epoch: int = 0
    """Of the root and all objects."""
    unpublished_count: int = 0
    """Objects of the root's epoch that nothing names."""
    unpublished_bytes: int = 0
    last_segment: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether everything is there that should be."""
        return not self.range_count and not self.newer_count

    def add(self, lost: LostRange) -> None:
        self.range_count += 1
        self.byte_count += lost.end_offset - lost.start_offset
        self.segment_count += lost.segment != self.last_segment
        self.last_segment = lost.segment
        if len(self.ranges) < RANGES_MAX:
            self.ranges.append(lost)


async def find_lost_chunks(
    reader: ContainerReader, *, progress: Callable[[int], object] = lambda _: None
) -> LostChunks:
    """Under the newest root. `progress` is called with the number of segments gone through since the last call.

    O(objects + layout entries). Raises CorruptedDataError if a run is lost or damaged, StorageError.
    """
    for _ in range(_ATTEMPTS_MAX):
        view = reader.view
        missing_run = ""
        found = LostChunks()
        try:
            found = await _compare_with_listing(view, reader.components, progress)
        except ObjectNotFoundError as error:
            missing_run = str(error)
        if not missing_run and found.is_sound:
            return found
        newer = await reader.refresh()
        if newer.root.version != view.root.version:
            continue
        if missing_run:
            raise CorruptedDataError(
                f"a run that the current root names is missing container={reader.container_id}: {missing_run}"
            )
        return found
    raise StorageError(
        f"the owner replaces objects faster than they can be listed container={reader.container_id}"
    )


async def find_lost_chunks_of_pin(
    root: Root,
    components: Components,
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> LostChunks:
    """Under a root that is pinned: nobody may delete what it names. As find_lost_chunks()."""
    try:
        return await _compare_with_listing(components.view(root), components, progress)
    except ObjectNotFoundError as error:
        raise CorruptedDataError(
            f"a run that the pinned root names is missing container={root.container_id}: {error}"
        ) from error


async def _compare_with_listing(
    view: RunView, components: Components, progress: Callable[[int], object]
) -> LostChunks:
    """Under one root version. Raises ObjectNotFoundError if a run is missing."""
    comparison = _Comparison(components, *await _listed(components))
    following: bytes | None
    following, end = range_of(SEGMENT)
    record: SegmentRecord | None = None
    while following is not None:
        page, following = await view.scan(following, end, limit=_PAGE)
        segments = 0
        for key, value in page:
            assert value is not None, f"a scan gives live entries only key={key!r}"
            if is_record_key(key):
                record = decode_record(segment_of(key), value)
                segments += 1
            elif not is_layout_key(key):
                continue
            elif record is not None and segment_of(key) == record.segment_id:
                # Entries without a record wait for a merge to take them along with their segment.
                await comparison.look_at(record, LayoutEntry.decode(end_offset_of(key), value))
        progress(segments)
        await asyncio.sleep(0)
    await comparison.look_at_the_rest(view)
    return comparison.lost


async def _listed(components: Components) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Sizes of chunk objects and of runs, by identity."""
    chunks: dict[bytes, int] = {}
    runs: dict[bytes, int] = {}
    names = components.names
    async with aclosing(list_objects(components.object_store, names.prefix)) as listing:
        async for info in listing:
            for kind, sizes in ((ObjectKind.CHUNKS, chunks), (ObjectKind.RUN, runs)):
                identity = names.identity(kind, info.key)
                if identity is not None:
                    sizes[identity.encode()] = info.size
    return chunks, runs


class _Comparison:
    """Sizes of objects as they are listed, or known from a second look; and what is lost."""

    def __init__(
        self, components: Components, sizes: dict[bytes, int], runs: dict[bytes, int]
    ) -> None:
        self._components = components
        self._sizes = sizes
        self._runs = runs
        self._named: set[bytes] = set()
        self._gone = 0
        self.lost = LostChunks()

    async def look_at(self, record: SegmentRecord, entry: LayoutEntry) -> None:
        """One layout entry: is its image there?"""
        if await self._size(entry.identity) >= entry.position + entry.size:
            return
        key = self._components.names.key(ObjectKind.CHUNKS, entry.identity)
        first = max(entry.start_offset, record.start_offset)
        if first < entry.end_offset:
            self.lost.add(LostRange(record.name, first, entry.end_offset, key))

    async def _size(self, identity: ObjectIdentity) -> int:
        """0 for an object that is not there: no image is that short."""
        encoded = identity.encode()
        self._named.add(encoded)
        size = self._sizes.get(encoded)
        if size is None:
            size = 0
            if self._gone < LOOKS_MAX:
                try:
                    size = await self._components.objects.size(ObjectKind.CHUNKS, identity)
                except ObjectNotFoundError:
                    self._gone += 1
            self._sizes[encoded] = size
        return size

    async def look_at_the_rest(self, view: RunView) -> None:
        """Behind the last entry: objects that no entry named."""
        epoch = view.root.epoch
        self._named.update(part.identity.encode() for run in view.root.runs for part in run)
        start, end = range_of(GARBAGE)
        following: bytes | None = start
        while following is not None:
            page, following = await view.scan(following, end, limit=_PAGE)
            self._named.update(garbage_of(key)[1].encode() for key, _ in page)
        self.lost.highest_epoch = epoch
        for sizes in (self._sizes, self._runs):
            for encoded, size in sizes.items():
                identity = ObjectIdentity.decode(encoded)
                if identity.epoch > epoch:
                    self.lost.newer_count += 1
                    self.lost.highest_epoch = max(self.lost.highest_epoch, identity.epoch)
                elif identity.epoch == epoch and encoded not in self._named:
                    self.lost.unpublished_count += 1
                    self.lost.unpublished_bytes += size
