"""Files of topics' records in Tier 2: images made in threads, objects put, blocks read by ranges and kept for a while.

    make      pieces of batches -> image (tier2/format/record_file.py), in the threads that write Tier 2
    read      end of the object -> index -> range of one block -> batches, in the threads that readers wait for
    ahead     the same, in tasks of this one's own, for blocks that will be asked for

Invariants:

- Files are made and compacted piece by piece: neither holds all records of one, which may be a thousand times as long
  as its image.
- The memory of an image is used again only when its caller says that it is stored: a put that failed may still read it.
- Indexes and blocks in memory take at most `cache_bytes` each; an object is never changed, so neither is what is kept.
- One block is read once, however many wait for it; at most `WAITERS_MAX` do.
- At most `READS_AHEAD_MAX` blocks or indexes are read ahead at once, and blocks that were read ahead and not asked for
  yet have at most half of `cache_bytes`: they shall not drive each other out before they are used.
- A damaged block or index is read a second time, then refused; the log says so once for each, and is not told again of
  the latest `_DAMAGES_REMEMBERED`.
"""

import logging
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from segmentstore.codec.record_batch import BatchError, decode_batches, proved_header
from segmentstore.codec.record_batch import parse_header as parse_batch_header
from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.errors import (
    CorruptedDataError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
    TooManyWaitersError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.cancellation import run_blocking
from segmentstore.runtime.keyed_locks import KeyedLocks
from segmentstore.runtime.task_set import TaskSet
from segmentstore.topics.record_files.record_files import (
    FileBlock,
    FileCompression,
    FileForm,
    MadeFile,
    UnfitBatchError,
)
from segmentstore.topics.record_files.record_files import NewestOffsets as Newest
from tier2.background_pace import BackgroundPace
from tier2.byte_cache import ByteCache
from tier2.format.block import decode_block
from tier2.format.chunk_format import (
    BlockEntry,
    ChunkFlag,
    Compression,
)
from tier2.format.image_memory import ImageMemories, ImageMemory
from tier2.format.record_compaction import (
    NewestOffsets,
    all_survive,
    last_batch,
    surviving_batches,
)
from tier2.format.record_file import RecordFileBuilder, RecordFileImage
from tier2.read.record_file_index import (
    batches_of_stored_block,
    read_checked,
    read_record_file_index,
)

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

WAITERS_MAX: Final = 1_000
READS_AHEAD_MAX: Final = 8
BATCH_BYTES_MAX: Final = 256 * 1024
"""Of batches that a block is given as: a reader gets one at least, and a consumer takes a few at a time."""

COMPACTION_KEYS_MAX: Final = 1_000_000
"""Of one pass: some 130 MB. One pass is under way at a time."""

COMPACTION_SHARE_MIN: Final = 0.05
COMPACTION_SHARE_MAX: Final = 0.5
"""Of the time, while one is under way: it takes the interpreter for each key."""

_IMAGE_ROOM_BYTES: Final = 72 << 20
"""A file of 64 MiB of batches that do not become smaller."""
_IMAGE_KEPT_BYTES_MAX: Final = 80 << 20
"""Of memory for images that no image is in: one large file, and some that are small."""

_DAMAGES_REMEMBERED: Final = 1_000
_COMPRESSIONS: Final = {
    FileCompression.NONE: Compression.NONE,
    FileCompression.LZ4: Compression.LZ4,
    FileCompression.ZSTD: Compression.ZSTD,
}


@dataclass(frozen=True, slots=True)
class _Opened:
    """Header and index of a file."""

    flags: ChunkFlag
    entries: Sequence[BlockEntry]
    blocks: Sequence[FileBlock]

    @property
    def memory_bytes(self) -> int:
        return 600 * len(self.blocks) + 200


@dataclass(frozen=True, slots=True)
class _Survival:
    """Which records of a file survive a pass of compaction, block by block. Its methods raise CorruptedDataError."""

    key: str
    opened: _Opened
    newest: NewestOffsets
    tombstones_end: int
    keeps_last: bool

    def is_whole(self, number: int, stored: bytes) -> bool:
        """Whether no record of the block goes."""
        entry = self.opened.entries[number]
        return all_survive(
            decode_block(entry, stored, source=self.key),
            entry,
            self.opened.flags,
            self.newest,
            tombstones_end=self.tombstones_end,
            keeps_last=self._keeps_last_of(number),
            source=self.key,
        )

    def batches(self, number: int, batch_bytes_max: int, stored: bytes) -> bytes:
        """Of the records of the block that stay."""
        entry = self.opened.entries[number]
        return surviving_batches(
            decode_block(entry, stored, source=self.key),
            entry,
            self.opened.flags,
            self.newest,
            tombstones_end=self.tombstones_end,
            batch_bytes_max=batch_bytes_max,
            keeps_last=self._keeps_last_of(number),
            source=self.key,
        )

    def last_batch(self, stored: bytes) -> bytes:
        """Of the last record, in the last block."""
        content = decode_block(self.opened.entries[-1], stored, source=self.key)
        return last_batch(content, self.opened.flags, source=self.key)

    def _keeps_last_of(self, number: int) -> bool:
        return self.keeps_last and number == len(self.opened.entries) - 1


@dataclass(slots=True)
class RecordFileStatistics:
    """Since the process began."""

    puts: int = 0
    put_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0
    block_hits: int = 0
    reads_ahead: int = 0
    damages: int = 0


class Tier2RecordFiles:
    """A RecordFiles over an object store, which its caller closes."""

    def __init__(
        self,
        *,
        object_store: ObjectStore,
        writers: Executor | None,
        readers: Executor | None,
        cache_bytes: int,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        compaction_keys_max: int = COMPACTION_KEYS_MAX,
        has_backups: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """close() it. `has_backups`: whether a backup is kept, or may be; it names files that were forgotten since."""
        self._has_backups = has_backups
        self._objects = object_store
        self._writers = writers
        self._readers = readers
        self._batch_bytes_max = batch_bytes_max
        self._compaction_keys_max = compaction_keys_max
        self._opened: ByteCache[str, _Opened] = ByteCache(cache_bytes)
        self._blocks: ByteCache[tuple[str, int], bytes] = ByteCache(cache_bytes)
        self._locks = KeyedLocks[tuple[str, int]](waiters_max=WAITERS_MAX, refusal=_too_many)
        self._ahead_bytes_max = cache_bytes // 2
        self._ahead: dict[tuple[str, int], int] = {}
        """Blocks that are being read ahead, or were and were not asked for yet, and their bytes."""
        self._read_ahead_now: set[tuple[str, int]] = set()
        self._ahead_tasks = TaskSet(on_failure=_failed_ahead)
        self._is_closed = False
        self._damages: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._numbers = RecordFileStatistics()
        self._pace = BackgroundPace(
            busy_share_min=COMPACTION_SHARE_MIN, busy_share_max=COMPACTION_SHARE_MAX
        )
        self._memories = ImageMemories(room=_IMAGE_ROOM_BYTES, kept_bytes_max=_IMAGE_KEPT_BYTES_MAX)

    def metrics(self) -> Mapping[str, float]:
        """Numbers for `/metrics`."""
        numbers = self._numbers
        return {
            "kafka_file_puts_total": numbers.puts,
            "kafka_file_put_bytes_total": numbers.put_bytes,
            "kafka_file_reads_total": numbers.reads,
            "kafka_file_read_bytes_total": numbers.read_bytes,
            "kafka_file_block_hits_total": numbers.block_hits,
            "kafka_file_reads_ahead_total": numbers.reads_ahead,
            "kafka_file_damages_total": numbers.damages,
            "kafka_file_cache_bytes": self._blocks.used_bytes + self._opened.used_bytes,
            "kafka_file_image_bytes": self._memories.kept_bytes,
        }

    # --- writing -----------------------------------------------------------------------------

    async def make(self, batches: AsyncIterator[BufferView], form: FileForm) -> MadeFile:
        memory = self._memories.take()
        builder = RecordFileBuilder(
            memory, compression=_COMPRESSIONS[form.compression], level=form.level
        )
        async for some in batches:
            await run_blocking(self._writers, _add, builder, some)
        return await run_blocking(self._writers, self._finished, builder, memory, form)

    def _finished(
        self,
        builder: RecordFileBuilder,
        memory: ImageMemory,
        form: FileForm,
        range_of: RegisteredFile | None = None,
    ) -> MadeFile:
        try:
            made = builder.finish(
                created_ms=form.created_ms,
                log_append_time=form.log_append_time,
                start_offset=None if range_of is None else range_of.first_offset,
                end_offset=None if range_of is None else range_of.end_offset,
            )
        except (BatchError, ValueError) as error:
            raise _damaged(error) from error
        return replace(_in_memory(made), release=partial(self._memories.give_back, memory))

    async def put(self, key: str, image: BufferView) -> None:
        await self._objects.put_if_absent(key, image)
        self._numbers.puts += 1
        self._numbers.put_bytes += len(image)

    async def exists(self, key: str) -> bool:
        try:
            await self._objects.size(key)
        except ObjectNotFoundError:
            return False
        return True

    async def delete(self, key: str) -> bool:
        if self._has_backups is not None and await self._has_backups():
            return False
        await self._objects.delete(key)
        self._opened.remove(key)
        return True

    async def keys(self, prefix: str) -> AsyncGenerator[str, None]:
        async with aclosing(self._objects.list(prefix)) as listing:
            async for info in listing:
                yield info.key

    # --- reading -----------------------------------------------------------------------------

    async def blocks(self, key: str, file: RegisteredFile) -> Sequence[FileBlock]:
        if file.is_batch:
            return [FileBlock(file.first_offset, file.end_offset, file.highest_ms, file.size)]
        return (await self._open(key, file)).blocks

    async def batches(self, key: str, file: RegisteredFile, number: int) -> bytes:
        place = (key, number)
        if file.is_batch:
            async with self._locks.held(place):
                return await self._checked(
                    place, 0, file.size, lambda stored: _kept_batch(stored, file, key)
                )
        opened = await self._open(key, file)
        content = await self._block(place, opened)
        self._ahead.pop(place, None)
        return content

    async def _block(self, place: tuple[str, int], opened: _Opened) -> bytes:
        """Raises ObjectNotFoundError, CorruptedDataError, TooManyWaitersError, StorageError."""
        key, number = place
        async with self._locks.held(place):
            known = self._blocks.get(place)
            if known is not None:
                self._numbers.block_hits += 1
                return known
            entry = opened.entries[number]

            def decoded(stored: bytes) -> bytes:
                return batches_of_stored_block(
                    stored,
                    entry,
                    opened.flags,
                    batch_bytes_max=self._batch_bytes_max,
                    source=f"{key} block={number}",
                )

            length = entry.end_position - entry.position
            content = await self._checked(place, entry.position, length, decoded)
            self._blocks.put(place, content, len(content))
            return content

    def read_ahead(self, key: str, file: RegisteredFile, number: int, room: int) -> None:
        if self._is_closed or file.is_batch:
            return
        opened = self._opened.get(key)
        if opened is None:
            if len(self._ahead_tasks) < READS_AHEAD_MAX and not self._locks.is_held((key, -1)):
                self._ahead_tasks.start(self._open_ahead(key, file, number, room))
            return
        for each in range(number, len(opened.entries)):
            if room <= 0:
                return
            size = opened.blocks[each].byte_count
            room -= size
            place = (key, each)
            if place in self._ahead or place in self._blocks or self._locks.is_held(place):
                continue
            if len(self._ahead_tasks) >= READS_AHEAD_MAX or not self._has_room_ahead(size):
                return
            self._ahead[place] = size
            self._read_ahead_now.add(place)
            self._ahead_tasks.start(self._read_block_ahead(place, opened))

    def _has_room_ahead(self, size: int) -> bool:
        if sum(self._ahead.values()) + size <= self._ahead_bytes_max:
            return True
        # Some may have left the cache, and were never asked for.
        self._ahead = {
            place: length
            for place, length in self._ahead.items()
            if place in self._blocks or place in self._read_ahead_now
        }
        return sum(self._ahead.values()) + size <= self._ahead_bytes_max

    async def _open_ahead(self, key: str, file: RegisteredFile, number: int, room: int) -> None:
        try:
            await self._open(key, file)
        except SegmentStoreError:
            return
        self.read_ahead(key, file, number, room)

    async def _read_block_ahead(self, place: tuple[str, int], opened: _Opened) -> None:
        try:
            await self._block(place, opened)
        except SegmentStoreError:
            self._ahead.pop(place, None)
        else:
            self._numbers.reads_ahead += 1
        finally:
            self._read_ahead_now.discard(place)

    async def close(self) -> None:
        """Nothing is read ahead any more. Idempotent."""
        self._is_closed = True
        await self._ahead_tasks.close()

    # --- compaction --------------------------------------------------------------------------

    def newest_offsets(self, *, start_offset: int, secret: bytes) -> NewestOffsets:
        return NewestOffsets(
            keys_max=self._compaction_keys_max, secret=secret, start_offset=start_offset
        )

    async def note_keys(self, key: str, file: RegisteredFile, newest: Newest) -> bool:
        assert isinstance(newest, NewestOffsets), f"not made here {newest!r}"
        if file.is_batch:
            newest.end_offset = max(newest.end_offset, file.end_offset)
            return True
        opened = await self._open(key, file)
        with self._pace.working():
            for number, entry in enumerate(opened.entries):
                assert entry.events is not None, "a block of records without times"
                if opened.blocks[number].end_offset <= newest.end_offset:
                    continue

                def noted(stored: bytes, entry: BlockEntry = entry) -> bool:
                    return newest.note_block(decode_block(entry, stored, source=key), source=key)

                if not await self._checked_block(key, number, entry, noted):
                    return False
                await self._pace.rest()
        return True

    async def surviving(
        self,
        key: str,
        file: RegisteredFile,
        newest: Newest,
        *,
        tombstones_end: int,
        keeps_last: bool,
        form: FileForm,
    ) -> MadeFile | None:
        assert isinstance(newest, NewestOffsets), f"not made here {newest!r}"
        if file.is_batch:
            return None
        opened = await self._open(key, file)
        survival = _Survival(key, opened, newest, tombstones_end, keeps_last)
        with self._pace.working():
            # Of most files no record goes: that is found out without making another one. (A single one: see below.)
            if file.record_count > 1 and await self._all_survive(survival):
                return None
            memory = self._memories.take()
            builder = RecordFileBuilder(
                memory, compression=_COMPRESSIONS[form.compression], level=form.level
            )
            count, batches = 0, b""
            async with aclosing(self._survivors(survival)) as pieces:
                async for batches in pieces:
                    count += _record_count(batches)
                    try:
                        await run_blocking(self._writers, _add, builder, batches)
                    except UnfitBatchError as error:
                        raise _damaged(error) from error  # they came from a file
        if count == 1:
            # It may be one that is kept only because no file is empty.
            (record,) = decode_batches(batches)[0]
            newest.pin(record.key or b"")
        if count == file.record_count:
            self._memories.give_back(memory)
            return None
        form = replace(form, log_append_time=ChunkFlag.LOG_APPEND_TIME in opened.flags)
        return await run_blocking(self._writers, self._finished, builder, memory, form, file)

    async def _all_survive(self, survival: _Survival) -> bool:
        """Whether no record goes, as far as the first block of which one does."""
        for number, entry in enumerate(survival.opened.entries):
            whole = partial(survival.is_whole, number)
            if not await self._checked_block(survival.key, number, entry, whole):
                return False
            await self._pace.rest()
        return True

    async def _survivors(self, survival: _Survival) -> AsyncGenerator[bytes, None]:
        """Batches, block by block; of the last record, if there are none: no file is empty. Hold it in `aclosing`."""
        is_empty = True
        entries = survival.opened.entries
        for number, entry in enumerate(entries):
            batches_of = partial(survival.batches, number, self._batch_bytes_max)
            batches = await self._checked_block(survival.key, number, entry, batches_of)
            if batches:
                is_empty = False
                yield batches
            await self._pace.rest()
        if is_empty:
            yield await self._checked_block(
                survival.key, len(entries) - 1, entries[-1], survival.last_batch
            )

    async def _checked_block(
        self, key: str, number: int, entry: BlockEntry, check: Callable[[bytes], _Result]
    ) -> _Result:
        length = entry.end_position - entry.position
        return await self._checked((key, number), entry.position, length, check)

    async def _open(self, key: str, file: RegisteredFile) -> _Opened:
        place = (key, -1)
        known = self._opened.get(key)
        if known is not None:
            return known
        async with self._locks.held(place):
            known = self._opened.get(key)
            if known is not None:
                return known

            async def read(start: int, length: int, check: Callable[[bytes], _Result]) -> _Result:
                return await self._checked(place, start, length, check)

            found = await read_record_file_index(read, file, key=key)
            index = found.chunk_index
            opened = _Opened(
                found.flags,
                index.entries,
                [
                    FileBlock(
                        entry.first_offset,
                        index.block_end_offset(number),
                        0 if entry.events is None else entry.events.highest_time_ms,
                        entry.uncompressed_length,
                    )
                    for number, entry in enumerate(index.entries)
                ],
            )
            self._opened.put(key, opened, opened.memory_bytes)
            return opened

    async def _checked(
        self, place: tuple[str, int], start: int, length: int, check: Callable[[bytes], _Result]
    ) -> _Result:
        """A range of an object as `check` gives it back, which raises CorruptedDataError for damaged bytes."""
        key, number = place
        try:
            return await read_checked(
                self._get_range, key, start, length, check, executor=self._readers
            )
        except CorruptedDataError as error:
            self._note_damage(key, number, error)
            raise

    async def _get_range(self, key: str, start: int, length: int) -> bytes:
        stored = await self._objects.get_range(key, start, length)
        self._numbers.reads += 1
        self._numbers.read_bytes += len(stored)
        return stored

    def _note_damage(self, key: str, number: int, error: StorageError) -> None:
        if (key, number) in self._damages:
            return
        self._numbers.damages += 1
        self._damages[key, number] = None
        if len(self._damages) > _DAMAGES_REMEMBERED:
            self._damages.popitem(last=False)
        what = "header or index" if number < 0 else f"block {number}"
        logger.error("a file of a topic is damaged, its records there are refused: %s", error)
        logger.debug("damage is in %s key=%s", what, key)


def _add(builder: RecordFileBuilder, batches: BufferView) -> None:
    try:
        builder.add(batches)
    except (BatchError, ValueError) as error:
        raise _damaged(error) from error
    if builder.unreadable:
        raise UnfitBatchError(builder.unreadable[0].base_offset, builder.unreadable[0].cause)


def _in_memory(made: RecordFileImage) -> MadeFile:
    (image,) = made.buffers
    return MadeFile(
        image,
        made.first_offset,
        made.end_offset,
        made.record_count,
        made.lowest_time_ms,
        made.highest_time_ms,
    )


def _record_count(batches: bytes) -> int:
    """Of batches that were just made."""
    count = at = 0
    while at < len(batches):
        header = parse_batch_header(batches, at)
        count += header.record_count
        at += header.size
    return count


def _kept_batch(stored: bytes, file: RegisteredFile, key: str) -> bytes:
    try:
        header = proved_header(stored)
    except BatchError as error:
        raise CorruptedDataError(f"a batch is damaged key={key}: {error}") from error
    if (header.base_offset, header.next_offset) != (file.first_offset, file.end_offset):
        raise CorruptedDataError(f"a batch has other offsets key={key} file={file}")
    return stored


def _damaged(error: Exception) -> CorruptedDataError:
    return CorruptedDataError(f"batches of a partition are damaged: {error}")


def _failed_ahead(error: BaseException) -> None:
    logger.error("reading ahead in a file of a topic failed", exc_info=error)


def _too_many(place: tuple[str, int], waiting: int) -> TooManyWaitersError:
    return TooManyWaitersError(
        f"too many readers wait for a block of a file key={place[0]} block={place[1]} waiting={waiting}"
    )
