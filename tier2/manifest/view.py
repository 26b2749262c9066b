"""All SSTs of one manifest as one sorted map: the newest SST that knows a key decides, also when it says "removed".

- A view belongs to one manifest version and never changes. Work that meets a missing object asks for the current view
  and begins again: with_view().
- Memory of a call is bounded by what it returns, plus a few blocks for each SST.
- A removed segment record removes everything behind it (tier2/sst/keyspace.py). The view does not apply that rule
  to single keys: a caller that asks for layouts or attributes reads the record first.
"""

from asyncio import get_running_loop
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Protocol, TypeVar

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from tier2.manifest.manifest import Manifest
from tier2.sst.keyspace import group_of
from tier2.sst.sst_format import Entry, Sst, SstBlock, SstPart, SstPartIndex
from tier2.sst.sst_reader import SstReader

_KEYS_AT_ONCE = 2_048
_INLINE_KEYS = 64
_SCAN_FETCH_BYTES = 1 << 18
_READ_ATTEMPTS_MAX = 8
T = TypeVar("T")


class ManifestView:
    """A consistent, read-only map over the SSTs of one manifest version."""

    def __init__(self, manifest: Manifest, files: SstReader, executor: Executor | None) -> None:
        self.manifest = manifest
        self._files = files
        self._executor = executor

    async def get(self, key: bytes) -> bytes | None:
        """O(SSTs) filter look-ups; usually at most one block is read."""
        found = await self._look_up(key)
        return None if found is None else found[1]

    async def is_removed(self, key: bytes) -> bool:
        """Whether the removal of the key is on record: it hides older SSTs and has not left with the oldest one."""
        found = await self._look_up(key)
        return found is not None and found[1] is None

    async def _look_up(self, key: bytes) -> Entry | None:
        """What the newest SST that knows the key says of it."""
        group = group_of(key)
        for sst in self.manifest.ssts:
            for part in _overlapping(sst, key, key + b"\0"):
                index = await self._files.index(part)
                if not index.may_hold(group):
                    continue
                number = index.block_at(key)
                (block,) = await self._files.blocks(part, index, (number,))
                at = block.find(key)
                if at is not None:
                    return key, block.value(at)
        return None

    async def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Values of the keys that exist. One sweep over each SST; big sweeps search in the executor."""
        values: dict[bytes, bytes] = {}
        ordered = sorted(keys)
        for first in range(0, len(ordered), _KEYS_AT_ONCE):
            pending = ordered[first : first + _KEYS_AT_ONCE]
            for sst in self.manifest.ssts:
                if not pending:
                    break
                decided = await self._search_sst(sst, pending)
                if decided:
                    pending = [key for key in pending if key not in decided]
                values.update((key, value) for key, value in decided.items() if value is not None)
        return values

    async def _search_sst(self, sst: Sst, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        decided: dict[bytes, bytes | None] = {}
        for part in _overlapping(sst, keys[0], keys[-1] + b"\0"):
            first = bisect_left(keys, part.first_key)
            end = bisect_right(keys, part.last_key)
            if first == end:
                continue
            index = await self._files.index(part)
            wanted = await self._offload(end - first, _by_block, index, keys[first:end])
            for start in range(0, len(wanted), 16):
                some = wanted[start : start + 16]
                blocks = await self._files.blocks(part, index, [number for number, _ in some])
                found = await self._offload(
                    sum(len(block_keys) for _, block_keys in some), _search_blocks, blocks, some
                )
                decided.update(found)
        return decided

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, group: bytes | None = None
    ) -> tuple[list[Entry], bytes | None]:
        """Live entries of [start, end) in key order, and where to go on (None: that was all).

        Looks at about `limit` entries of each SST; with removals among them fewer come back, perhaps none. With
        `group` (which all keys of the range belong to) SSTs whose filter denies it are not read.
        """
        gathered: list[list[Entry]] = []
        bound: bytes | None = None
        for sst in self.manifest.ssts:
            entries, cut = await self._gather(sst, start, end, limit, group)
            if entries:
                gathered.append(entries)
            if cut and (bound is None or entries[-1][0] < bound):
                bound = entries[-1][0]
        if not gathered:
            return [], None
        total = sum(map(len, gathered))
        merged = await self._offload(total, merge_newest_first, gathered, bound)
        live = [entry for entry in merged if entry[1] is not None]
        return live, None if bound is None else bound + b"\0"

    async def pages(
        self, start: bytes, end: bytes, *, limit: int, group: bytes | None = None
    ) -> AsyncGenerator[list[Entry], None]:
        """Live entries of [start, end) in key order, a scan() at a time; a page may be empty. Hold it in `aclosing`."""
        following: bytes | None = start
        while following is not None:
            page, following = await self.scan(following, end, limit=limit, group=group)
            yield page

    async def scan_all(
        self, start: bytes, end: bytes, *, group: bytes | None = None
    ) -> list[Entry]:
        """Every live entry of a range that is known to fit in memory."""
        entries: list[Entry] = []
        async with aclosing(self.pages(start, end, limit=1_024, group=group)) as pages:
            async for page in pages:
                entries += page
        return entries

    async def first(self, start: bytes, end: bytes, *, group: bytes | None = None) -> Entry | None:
        """The first live entry of a range."""
        at: bytes | None = start
        limit = 4
        while at is not None:
            page, at = await self.scan(at, end, limit=limit, group=group)
            if page:
                return page[0]
            limit = min(1_024, limit * 4)
        return None

    async def _gather(
        self, sst: Sst, start: bytes, end: bytes, limit: int, group: bytes | None
    ) -> tuple[list[Entry], bool]:
        """Up to about `limit` entries of one SST, and whether it has more of them in the range."""
        entries: list[Entry] = []
        parts = _overlapping(sst, start, end)
        for part in parts:
            index = await self._files.index(part)
            if group is not None and not index.may_hold(group):
                continue
            number = index.block_at(start)
            while number < index.block_count:
                count = (
                    1 if limit < _INLINE_KEYS else index.blocks_within(number, _SCAN_FETCH_BYTES)
                )
                blocks = await self._files.blocks(part, index, range(number, number + count))
                for block in blocks:
                    first, last = block.lower_bound(start), block.lower_bound(end)
                    taken = min(last, first + limit - len(entries))
                    entries += block.slice(first, taken)
                    if taken < last:
                        return entries, True
                    if last < block.count:
                        return entries, False
                number += count
                if len(entries) >= limit:
                    return entries, True
        return entries, False

    async def _offload(self, work: int, function: Callable[..., T], *arguments: object) -> T:
        """Small work at once: a look at a manifest is often of a few keys, and a thread costs more than they do."""
        if work <= _INLINE_KEYS:
            return function(*arguments)
        return await get_running_loop().run_in_executor(self._executor, function, *arguments)


class ViewSource(Protocol):
    """Where readers get the current view from: the owner has it in memory, other processes read the manifest again."""

    @property
    def view(self) -> ManifestView: ...

    async def refresh(self) -> ManifestView:
        """The view of the manifest as it is now. Raises StorageNotPrimaryError in an owner that was fenced."""


async def with_view(source: ViewSource, read: Callable[[ManifestView], Awaitable[T]]) -> T:
    """Read through the current view; begin again on a newer one if an object of it is missing.

    Raises CorruptedDataError if the current manifest still names what is missing.
    """
    for _ in range(_READ_ATTEMPTS_MAX):
        view = source.view
        try:
            return await read(view)
        except ObjectNotFoundError as error:
            newer = await source.refresh()
            if newer.manifest.version == view.manifest.version:
                raise CorruptedDataError(
                    f"an object that the current manifest names is missing"
                    f" container={view.manifest.container_id} version={view.manifest.version}: {error}"
                ) from error
    raise StorageError("the manifest moved on during every attempt to read below it")


def _overlapping(sst: Sst, start: bytes, end: bytes) -> Sequence[SstPart]:
    first = bisect_left(sst, start, key=lambda part: part.last_key)
    last = bisect_left(sst, end, key=lambda part: part.first_key)
    return sst[first:last]


def _by_block(index: SstPartIndex, keys: Sequence[bytes]) -> list[tuple[int, list[bytes]]]:
    """The blocks in which the keys would be; both in order. One search for each block, one question for each group."""
    wanted: list[tuple[int, list[bytes]]] = []
    group: bytes | None = None
    is_held = False
    last_key = b""
    for key in keys:
        group_here = group_of(key)
        if group_here != group:
            group, is_held = group_here, index.may_hold(group_here)
        if not is_held:
            continue
        if wanted and key <= last_key:
            wanted[-1][1].append(key)
        else:
            number = index.block_at(key)
            last_key = index.last_key(number)
            wanted.append((number, [key]))
    return wanted


def _search_blocks(
    blocks: Sequence[SstBlock], wanted: Sequence[tuple[int, list[bytes]]]
) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for block, (_, keys) in zip(blocks, wanted, strict=True):
        if len(keys) * 8 > block.count:
            entries = dict(block.slice(0, block.count))
            found.update((key, entries[key]) for key in keys if key in entries)
            continue
        for key in keys:
            at = block.find(key)
            if at is not None:
                found[key] = block.value(at)
    return found


def merge_newest_first(gathered: Sequence[Sequence[Entry]], bound: bytes | None) -> list[Entry]:
    """One list in key order where the earliest of `gathered` that has a key decides; keys above `bound` are left out.

    O(n log n) at worst; the inputs are sorted already, which sorting uses. Removals stay in it.
    """
    merged: dict[bytes, bytes | None] = {}
    for entries in reversed(gathered):
        merged.update(entries)
    if bound is None:
        return sorted(merged.items(), key=_key_of)
    return sorted(((key, value) for key, value in merged.items() if key <= bound), key=_key_of)


def _key_of(entry: Entry) -> bytes:
    return entry[0]
