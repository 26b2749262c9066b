"""Fetches indexes and blocks of SSTs through one bounded cache.

- Nothing leaves here that failed a checksum: it is fetched once more, and then it is CorruptedDataError, a log line and
  a counter.
- Neighbouring blocks are fetched in one request.
"""

import logging
from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeAlias, TypeVar

from segmentstore.contracts.errors import CorruptedDataError
from tier2.byte_cache import ByteCache
from tier2.container_objects import ContainerObjects, ObjectIdentity, ObjectKind, StorageCounters
from tier2.sst.sst_format import SstBlock, SstPart, SstPartIndex, unseal

_LOG = logging.getLogger(__name__)
_FETCH_BYTES_MAX = 1 << 20
_INLINE_BYTES_MAX = 1 << 17
"""Opening this much takes well under a millisecond: not worth a trip to a thread."""

_Key: TypeAlias = tuple[ObjectIdentity, int]
_INDEX = -1
T = TypeVar("T")


class SstReader:
    """Indexes and blocks of the SSTs of one container."""

    def __init__(
        self,
        *,
        objects: ContainerObjects,
        counters: StorageCounters,
        cache_bytes: int,
        executor: Executor | None,
    ) -> None:
        self._objects = objects
        self._counters = counters
        self._executor = executor
        self._cache: ByteCache[_Key, SstPartIndex | SstBlock] = ByteCache(cache_bytes)

    async def index(self, part: SstPart) -> SstPartIndex:
        cached = self._cache.get((part.identity, _INDEX))
        if cached is not None:
            assert isinstance(cached, SstPartIndex), f"cache holds a block part={part.identity}"
            return cached
        length = part.size - part.index_position
        index = await self._fetch(
            part, part.index_position, length, lambda content: SstPartIndex(part, content)
        )
        self._cache.put((part.identity, _INDEX), index, index.memory_bytes)
        return index

    async def blocks(
        self, part: SstPart, index: SstPartIndex, numbers: Sequence[int]
    ) -> list[SstBlock]:
        """The blocks of those numbers, which grow. Missing neighbours come in one request."""
        found: dict[int, SstBlock] = {}
        missing: list[int] = []
        for number in numbers:
            cached = self._cache.get((part.identity, number))
            if cached is None:
                missing.append(number)
            else:
                assert isinstance(cached, SstBlock), f"cache holds an index part={part.identity}"
                found[number] = cached
        for neighbours in _neighbours(index, missing):
            opened = await self.read_blocks(part, index, neighbours[0], len(neighbours))
            for number, block in zip(neighbours, opened, strict=True):
                self._cache.put((part.identity, number), block, block.memory_bytes)
                found[number] = block
        return [found[number] for number in numbers]

    async def read_blocks(
        self, part: SstPart, index: SstPartIndex, first: int, count: int
    ) -> list[SstBlock]:
        """Fetch `count` neighbouring blocks past the cache, as a merge does."""
        places = [index.block_place(number) for number in range(first, first + count)]
        start = places[0][0]
        length = sum(places[-1]) - start

        def open_blocks(content: bytes) -> list[SstBlock]:
            view = memoryview(content)
            return [
                SstBlock(unseal(view[position - start : position - start + size]))
                for position, size in places
            ]

        return await self._fetch(part, start, length, open_blocks)

    async def _fetch(
        self, part: SstPart, start: int, length: int, parse: Callable[[bytes], T]
    ) -> T:
        try:
            return await self._fetch_once(part, start, length, parse)
        except CorruptedDataError as error:
            _LOG.warning("SST %s is damaged, reading again: %s", part.identity, error)
        try:
            return await self._fetch_once(part, start, length, parse)
        except CorruptedDataError as error:
            self._counters.checksum_failures += 1
            _LOG.error("SST %s is corrupted: %s", part.identity, error)
            raise

    async def _fetch_once(
        self, part: SstPart, start: int, length: int, parse: Callable[[bytes], T]
    ) -> T:
        content = await self._objects.get_range(ObjectKind.SST, part.identity, start, length)
        if length <= _INLINE_BYTES_MAX:
            return parse(content)
        return await get_running_loop().run_in_executor(self._executor, parse, content)

    def forget(self, part: SstPart) -> None:
        """Drop what is cached of a part that left the manifest; its blocks age out by themselves."""
        self._cache.remove((part.identity, _INDEX))

    def check(self) -> None:
        self._cache.check()


def _neighbours(index: SstPartIndex, numbers: Sequence[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    group_bytes = 0
    for number in numbers:
        size = index.block_place(number)[1]
        if groups and groups[-1][-1] == number - 1 and group_bytes + size <= _FETCH_BYTES_MAX:
            groups[-1].append(number)
            group_bytes += size
        else:
            groups.append([number])
            group_bytes = size
    return groups
