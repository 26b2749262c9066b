"""Keeps the SSTs of a manifest few: chooses neighbours that are due and merges them, beside publications.

SSTs are grouped in tiers by size: each tier holds SSTs up to `sst_fanout` times as long as the one below. As soon as
`sst_fanout` neighbours share a tier they become one SST of the next. So n publications leave O(fanout * log n) SSTs,
and an entry is rewritten O(log n) times. The merge goes block by block; only its commit holds the lock.

- Only neighbours in age are merged, since the newest of them decides for every key; an SST counts at least as much as
  any newer one.
- A removal stays while an older SST may still hold the key, and leaves only when the oldest SST is among the inputs; a
  removed segment record takes its whole range along.
- The records that make garbage of the inputs are in the output, so both appear in the same manifest version.
- An SST that cannot be read ends no owner: those behind it, and it, stay as they are.
- Memory is bounded: about `merge_read_bytes` of each input and one part of the output at a time.
"""

import logging
from asyncio import get_running_loop
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import takewhile

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError
from tier2.container_objects import ObjectKind
from tier2.manifest.commit import ManifestUpdate
from tier2.manifest.view import merge_newest_first
from tier2.publish.chunk_upload import Uploader
from tier2.publish.owned_manifest import OwnedManifest
from tier2.read.components import Components
from tier2.settings import StorageSettings
from tier2.sst.keyspace import SEGMENT, is_record_key, record_group
from tier2.sst.sst_format import (
    Entry,
    Sst,
    SstBlock,
    SstBuilder,
    SstPart,
    SstPartIndex,
    stored_bytes,
)
from tier2.sst.sst_reader import SstReader

_LOG = logging.getLogger(__name__)


async def merge_ssts(*, owned: OwnedManifest, components: Components) -> bool:
    """Merge one group of SSTs if one is due. One at a time. Raises as Storage.publish()."""
    async with owned.lock:
        await owned.settle()
        manifest = owned.manifest
    # Those that are newer than any that could not be read.
    ssts = tuple(takewhile(lambda sst: sst not in owned.unreadable, manifest.ssts))
    choice = choose_merge(ssts, components.settings)
    if choice is None and len(ssts) >= components.settings.sst_count_max:
        choice = MergeChoice(0, len(ssts) - 1)
    if choice is None:
        return False
    inputs = choice.of(manifest.ssts)
    replaced = [(ObjectKind.SST, part.identity) for sst in inputs for part in sst]
    with owned.uploading() as uploader:
        merge = SstMerge(
            ssts=inputs,
            additions=owned.garbage_entries(replaced),
            with_oldest=inputs[-1] is manifest.ssts[-1],
            files=components.files,
            uploader=uploader,
            settings=components.settings,
            executor=components.executor,
        )
        try:
            merged = await merge.run()
        except (CorruptedDataError, ObjectNotFoundError) as error:
            if not merge.reading:
                raise  # it was not one of the inputs
            owned.unreadable.add(merge.reading)
            await owned.note_unreadable_sst("not merging SSTs", error)
            return False
        async with owned.lock:
            await owned.settle()
            ssts = replace_ssts(owned.manifest.ssts, inputs, merged)
            if await _may_have_snapshot_above(manifest.version, owned):
                # A snapshot was made meanwhile: its manifest names the inputs, their records say that they had gone.
                entries = owned.garbage_entries(replaced)
                ssts = (await owned.upload_sst(dict(entries), uploader), *ssts)
            attempt = ManifestUpdate(
                manifest=owned.next_manifest(ssts),
                garbage_count=len(replaced),
            )
            await owned.commit(attempt, uploader)
    for sst in inputs:
        for part in sst:
            components.files.forget(part)
    _LOG.debug(
        "container %d: merged %d SSTs into one of %d parts",
        manifest.container_id,
        len(inputs),
        len(merged),
    )
    return True


async def _may_have_snapshot_above(version: int, owned: OwnedManifest) -> bool:
    try:
        return any(snapshot.manifest.version > version for snapshot in await owned.snapshots())
    except (CorruptedDataError, ObjectNotFoundError):
        return True  # what says so cannot be read


def replace_ssts(ssts: tuple[Sst, ...], inputs: tuple[Sst, ...], merged: Sst) -> tuple[Sst, ...]:
    """`runs` with the inputs, which still lie side by side, replaced by what was merged from them."""
    first = ssts.index(inputs[0])
    end = first + len(inputs)
    assert ssts[first:end] == inputs, f"SSTs moved while they were merged first={first}"
    return (*ssts[:first], merged, *ssts[end:])


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """SSTs [newest, oldest] of a manifest, by index."""

    newest: int
    oldest: int

    def of(self, ssts: Sequence[Sst]) -> tuple[Sst, ...]:
        return tuple(ssts[self.newest : self.oldest + 1])


def choose_merge(ssts: Sequence[Sst], settings: StorageSettings) -> MergeChoice | None:
    """The lowest group that is due, None if there is none. SSTs are listed newest first. O(SSTs)."""
    tier = start = 0
    for at, sst in enumerate(ssts):
        own = tier_of(stored_bytes(sst), settings)
        if own <= tier:
            continue
        if at - start >= settings.sst_fanout:
            return MergeChoice(start, at - 1)
        tier, start = own, at
    if len(ssts) - start >= settings.sst_fanout:
        return MergeChoice(start, len(ssts) - 1)
    return None


def tier_of(size: int, settings: StorageSettings) -> int:
    """The tier of an SST that has `size` bytes in the store. O(log size)."""
    tier, limit = 0, settings.sst_tier_bytes
    while size >= limit:
        tier += 1
        limit *= settings.sst_fanout
    return tier


class SstMerge:
    """One merge. `runs` are listed newest first."""

    def __init__(
        self,
        *,
        ssts: Sequence[Sst],
        additions: Sequence[Entry],
        with_oldest: bool,
        files: SstReader,
        uploader: Uploader,
        settings: StorageSettings,
        executor: Executor | None,
    ) -> None:
        self._cursors = [_MergeInput(()), *map(_MergeInput, ssts)]
        self._cursors[0].entries = sorted(additions)
        self.reading: Sst = ()
        """What run() reads at present."""
        self._with_oldest = with_oldest
        self._files = files
        self._uploader = uploader
        self._settings = settings
        self._executor = executor
        self._removed_group: bytes | None = None
        self._builder = SstBuilder(
            block_bytes=settings.sst_block_bytes, part_bytes=settings.sst_part_bytes
        )

    async def run(self) -> Sst:
        """Merge and upload everything. Raises StorageError; what was uploaded is listed in the uploader."""
        loop = get_running_loop()
        parts: list[SstPart] = []
        while True:
            for cursor in self._cursors:
                self.reading = cursor.sst
                await cursor.fill(self._files, self._settings.merge_read_bytes, self._executor)
            self.reading = ()
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


class _MergeInput:
    """Entries of one input that were read and not merged yet."""

    def __init__(self, sst: Sst) -> None:
        self.entries: list[Entry] = []
        self.sst = sst
        self._parts = list(sst)
        self._index: SstPartIndex | None = None
        self._block = 0

    @property
    def has_more(self) -> bool:
        """Whether there is something behind `entries`."""
        return bool(self._parts)

    async def fill(self, files: SstReader, read_bytes: int, executor: Executor | None) -> None:
        while self._parts and not self.entries:
            part: SstPart = self._parts[0]
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


def _entries_of(blocks: Sequence[SstBlock]) -> list[Entry]:
    return [entry for block in blocks for entry in block.slice(0, block.count)]
