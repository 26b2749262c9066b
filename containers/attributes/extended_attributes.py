"""Extended attributes between memory and Tier 2: unknown ones are fetched, published ones leave when memory is full."""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from containers.container_settings import AttributeFetchSettings, AttributeMemorySettings
from containers.metadata.attribute_table import AttributeOwner, AttributeTable
from containers.metadata.container_metadata import ContainerMetadata
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.errors import ContainerStoppedError, SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.storage import ReadOnlyStorage
from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done

AttributeValues: TypeAlias = Mapping[AttributeKey, AttributeValue | None]
Answer = TypeVar("Answer")


async def ask_tier2(segment: SegmentMetadata, ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """What Tier 2 says of the attributes of a segment, never older than what has left memory meanwhile.

    Between question and answer values may be published and leave memory: then the answer has older ones, or none, and
    memory does not make up for it any more. So it is asked again. What memory holds is newer than the answer.
    """
    attributes = segment.attributes
    while True:
        drops, published = attributes.drops, segment.published_sequence_number
        answer = await ask()
        if attributes.drops == drops or segment.published_sequence_number == published:
            return answer


class _FetchBatch:
    """Keys of one segment that are asked for next, and the future of the callers that wait for them."""

    __slots__ = ("done", "keys")

    def __init__(self, done: "Future[AttributeValues]") -> None:
        self.keys: dict[AttributeKey, None] = {}
        self.done = done


class AttributeFetches:
    """Brings unknown attributes into memory, for all segments of one container. Makes progress while run() does.

    - What is wanted of a segment during a request shares the next one: one request per segment is under way, a bounded
      number of them per container.
    - What is learnt is never older than what has left memory meanwhile (`ask_tier2`).
    - A caller that goes away does not end the request for the others.
    """

    def __init__(self, *, storage: ReadOnlyStorage, settings: AttributeFetchSettings) -> None:
        self._storage = storage
        self._settings = settings
        self._wanted: dict[SegmentMetadata, _FetchBatch] = {}
        self._waiting: deque[SegmentMetadata] = deque()
        """Segments with a batch and no request under way."""
        self._busy: set[SegmentMetadata] = set()
        self._wake = asyncio.Event()
        self._stopped: ContainerStoppedError | None = None
        self.requests = 0

    def want(
        self, segment: SegmentMetadata, keys: Iterable[AttributeKey]
    ) -> "Future[AttributeValues]":
        """The committed values of (at least) these keys at some moment after this call, None for absent ones.

        They are in memory as well when it is done, for a while. Fails with StorageError, ContainerStoppedError.

        As long as the caller relies on the answer, it keeps the segment pinned, or a request of it in the admission
        queue.
        """
        if self._stopped is not None:
            refused: Future[AttributeValues] = asyncio.get_running_loop().create_future()
            _settle_fetch(refused, self._stopped)
            return refused
        batch = self._wanted.get(segment)
        if batch is None:
            batch = _FetchBatch(asyncio.get_running_loop().create_future())
            self._wanted[segment] = batch
            segment.pins += 1
            if segment not in self._busy:
                self._waiting.append(segment)
                self._wake.set()
        batch.keys.update(dict.fromkeys(keys))
        return batch.done

    async def fetch(self, segment: SegmentMetadata, keys: Iterable[AttributeKey]) -> None:
        """Bring the keys into memory."""
        await asyncio.shield(self.want(segment, keys))

    async def values(
        self, segment: SegmentMetadata, keys: Sequence[AttributeKey]
    ) -> dict[AttributeKey, AttributeValue | None]:
        """Committed values, None for absent ones, however little of them fits into memory."""
        table = segment.attributes
        values = {key: table.committed_value(key) for key in keys if table.is_known(key)}
        unknown = [key for key in keys if key not in values]
        if unknown:
            found = await asyncio.shield(self.want(segment, unknown))
            values.update((key, found[key]) for key in unknown)
        return values

    async def run(self) -> None:
        """Make the requests, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    while self._waiting and len(self._busy) < self._settings.requests_max:
                        segment = self._waiting.popleft()
                        self._busy.add(segment)
                        tasks.create_task(self._serve(segment))
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self._stopped = ContainerStoppedError("the container stopped")
            self._fail_all(self._stopped)

    async def _serve(self, segment: SegmentMetadata) -> None:
        batch = self._wanted.pop(segment)
        outcome: AttributeValues | SegmentStoreError = ContainerStoppedError(
            "the container stopped"
        )
        try:
            outcome = await self._load(segment, list(batch.keys))
        except SegmentStoreError as failure:
            outcome = failure
        finally:
            segment.pins -= 1
            self._busy.discard(segment)
            if segment in self._wanted:
                self._waiting.append(segment)
            self._wake.set()
            _settle_fetch(batch.done, outcome)

    async def _load(self, segment: SegmentMetadata, keys: list[AttributeKey]) -> AttributeValues:
        table = segment.attributes
        values: dict[AttributeKey, AttributeValue | None] = {}
        for first in range(0, len(keys), self._settings.keys_max):
            some = keys[first : first + self._settings.keys_max]
            missing: dict[AttributeKey, None] = {}
            while True:
                # Also those that an earlier round brought: they may leave memory while the others come.
                missing.update((key, None) for key in some if not table.is_known(key))
                unknown = list(missing)
                found: Mapping[AttributeKey, AttributeValue] = {}
                if unknown:
                    found = await ask_tier2(segment, partial(self._request, segment, unknown))
                    table.learn(unknown, found)
                if all(map(table.is_known, some)):
                    break
            values.update((key, table.committed_value(key)) for key in some)
        return values

    async def _request(
        self, segment: SegmentMetadata, keys: list[AttributeKey]
    ) -> Mapping[AttributeKey, AttributeValue]:
        self.requests += 1
        return await self._storage.load_attributes(segment.segment_id, keys)

    def _fail_all(self, error: SegmentStoreError) -> None:
        for segment, batch in self._wanted.items():
            segment.pins -= 1
            _settle_fetch(batch.done, error)
        self._wanted.clear()
        self._waiting.clear()


def _settle_fetch(
    done: "Future[AttributeValues]", outcome: AttributeValues | SegmentStoreError
) -> None:
    if isinstance(outcome, SegmentStoreError):
        fail_unless_done(done, outcome)
    else:
        complete_unless_done(done, outcome)


class AttributeMemory:
    """Keeps the attributes that one container holds in memory within bounds.

    Values that Tier 2 has leave, those that were not used for longest first, approximately: segments are swept in turn,
    and of each the generation that was not used since its last turn. What Tier 2 does not have never leaves; when that
    alone is more than the bound, the storage writer is asked to flush, nothing is swept before something was
    published, and beyond a multiple of the bound writers are slowed.

    However many segments hold values, the loop gets its turn behind each `slice_count` of them.

    Core attributes leave memory with their segments only: `core_is_full` says when idle ones have to.
    """

    def __init__(self, *, metadata: ContainerMetadata, settings: AttributeMemorySettings) -> None:
        self._metadata = metadata
        self._settings = settings
        self._looked_at = 0
        """Values since the loop had its turn."""
        self._futile_publications = -1
        self._futile_bytes = 0
        self.wants_flush = False
        """Un-published values alone are more than the bound."""

    @property
    def held_bytes(self) -> int:
        return self._metadata.attribute_ledger.held_bytes

    @property
    def throttle_fraction(self) -> float:
        """Share of what may be held at the very most."""
        settings, ledger = self._settings, self._metadata.attribute_ledger
        held = max(
            ledger.held_bytes / settings.bytes_max, ledger.core_bytes / settings.core_bytes_max
        )
        return held / settings.throttle_factor

    @property
    def core_is_full(self) -> bool:
        """The core attributes of the active segments are more than their bound."""
        return self._metadata.attribute_ledger.core_bytes > self._settings.core_bytes_max

    async def run(self) -> None:
        """Look at the bound now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.look_seconds)
            await self.shrink()

    async def shrink(self) -> None:
        """Bring the memory a little below its bound, if Tier 2 has enough of it. O(values) at worst, in slices."""
        bytes_max = self._settings.bytes_max
        if self.held_bytes <= bytes_max:
            self.wants_flush = False
            return
        ledger = self._metadata.attribute_ledger
        target = bytes_max - bytes_max // 8
        if ledger.publications == self._futile_publications and (
            self.held_bytes <= self._futile_bytes + bytes_max // 8
        ):
            return
        publications = ledger.publications
        # In turn the generations that were not used, in turn all that is left.
        for _ in range(2 * len(ledger.holders)):
            if not ledger.holders:
                break
            table, segment = next(iter(ledger.holders.items()))
            await self._sweep(table, segment, target)
            if self.held_bytes <= target:
                self.wants_flush = False
                return
            if table in ledger.holders:
                ledger.holders.move_to_end(table)
        self.wants_flush = self.held_bytes > bytes_max
        self._futile_publications, self._futile_bytes = publications, self.held_bytes

    async def _sweep(self, table: AttributeTable, segment: AttributeOwner, target: int) -> None:
        left = table.extended_count
        holders = self._metadata.attribute_ledger.holders
        while left > 0 and self.held_bytes > target and table in holders:
            count = self._settings.slice_count - self._looked_at
            looked_at = max(1, table.sweep(segment.published_sequence_number, count))
            left -= looked_at
            self._looked_at += looked_at
            if self._looked_at >= self._settings.slice_count:
                self._looked_at = 0
                await asyncio.sleep(0)
