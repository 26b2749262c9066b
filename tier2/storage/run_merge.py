"""Merges neighbouring runs into one, block by block.

- Memory is bounded: about `merge_read_bytes` of each input and one part of the output at a time.
- For every key the newest input decides. A removal stays while an older run may still hold the key, and leaves only
  when the oldest run is among the inputs; a removed segment record takes its whole range along (H67).
- The records that make garbage of the inputs are in the output, so both appear in the same root version (H6).
"""

from asyncio import get_running_loop
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Executor

from tier2.storage.root import Run, RunPart
from tier2.storage.run_block import Entry, RunBlock
from tier2.storage.run_files import RunFiles
from tier2.storage.run_keys import SEGMENT, is_record_key, record_group
from tier2.storage.run_part import PartIndex, RunBuilder
from tier2.storage.run_view import merge_newest_first
from tier2.storage.settings import StorageSettings
from tier2.storage.upload import Uploader


class _Cursor:
    """Entries of one input that were read and not merged yet."""

    def __init__(self, run: Run) -> None:
        self.entries: list[Entry] = []
        self._parts = list(run)
        self._index: PartIndex | None = None
        self._block = 0

    @property
    def has_more(self) -> bool:
        """Whether there is something behind `entries`."""
        return bool(self._parts)

    async def fill(self, files: RunFiles, read_bytes: int, executor: Executor | None) -> None:
        while self._parts and not self.entries:
            part: RunPart = self._parts[0]
            if self._index is None:
                self._index = await files.index(part)
            count = self._index.blocks_within(self._block, read_bytes)
            blocks = await files.read_blocks(part, self._index, self._block, count)
            self.entries = await get_running_loop().run_in_executor(executor, _entries_of, blocks)
            self._block += count
            if self._block == self._index.block_count:
                self._parts.pop(0)
                self._index, self._block = None, 0

    def take(self, bound: bytes | None) -> list[Entry]:
        """Entries up to `bound`; all for None."""
        if bound is None:
            taken, self.entries = self.entries, []
            return taken
        end = bisect_right(self.entries, bound, key=lambda entry: entry[0])
        taken = self.entries[:end]
        del self.entries[:end]
        return taken


def _entries_of(blocks: Sequence[RunBlock]) -> list[Entry]:
    return [entry for block in blocks for entry in block.slice(0, block.count)]


class RunMerge:
    """One merge. `runs` are listed newest first."""

    def __init__(
        self,
        *,
        runs: Sequence[Run],
        additions: Sequence[Entry],
        with_oldest: bool,
        files: RunFiles,
        uploader: Uploader,
        settings: StorageSettings,
        executor: Executor | None,
    ) -> None:
        self._cursors = [_Cursor(()), *map(_Cursor, runs)]
        self._cursors[0].entries = sorted(additions)
        self._with_oldest = with_oldest
        self._files = files
        self._uploader = uploader
        self._settings = settings
        self._executor = executor
        self._removed_group: bytes | None = None
        self._builder = RunBuilder(
            block_bytes=settings.run_block_bytes, part_bytes=settings.run_part_bytes
        )

    async def run(self) -> Run:
        """Merge and upload everything. Raises StorageError; what was uploaded is listed in the uploader."""
        loop = get_running_loop()
        parts: list[RunPart] = []
        while True:
            for cursor in self._cursors:
                await cursor.fill(self._files, self._settings.merge_read_bytes, self._executor)
            if not any(cursor.entries for cursor in self._cursors):
                break
            await loop.run_in_executor(self._executor, self._step)
            parts += await self._uploader.upload_parts(self._builder.take_finished())
        rest = await loop.run_in_executor(self._executor, self._builder.finish)
        parts += await self._uploader.upload_parts(rest)
        return tuple(parts)

    def _step(self) -> None:
        """Merge as far as every input has been read."""
        bounds = [cursor.entries[-1][0] for cursor in self._cursors if cursor.has_more]
        bound = min(bounds) if bounds else None
        gathered = [cursor.take(bound) for cursor in self._cursors]
        self._builder.add(self._prune(merge_newest_first(gathered, None)))

    def _prune(self, entries: Sequence[Entry]) -> list[Entry]:
        kept: list[Entry] = []
        removed_group = self._removed_group
        for entry in entries:
            key, value = entry
            if key.startswith(SEGMENT):
                if removed_group is not None and key.startswith(removed_group):
                    assert not is_record_key(key), f"a segment id came back key={key!r}"
                    continue
                if value is None and is_record_key(key):
                    removed_group = record_group(key)
            if value is not None or not self._with_oldest:
                kept.append(entry)
        self._removed_group = removed_group
        return kept
