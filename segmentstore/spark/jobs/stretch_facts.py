"""The work of one task of the `stats` job: what the chunk indexes of a stretch of one segment say. No block is read.

Of the events only numbers are known: where blocks begin. So the events of the last known block are those up to the
next stretch, which whoever joins the stretches adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.spark.jobs.time_buckets import TimeBuckets
from segmentstore.spark.loop_runner import LoopRunner
from segmentstore.spark.tier2_view import Tier2Place, open_for_reading
from tier2.format.chunk_index import ChunkIndex
from tier2.storage.block_events import block_events
from tier2.storage.reader import ContainerReader
from tier2.storage.run_values import LayoutEntry
from tier2.storage.settings import StorageSettings

UNKNOWN_TIME_MS = -1
INDEX_ONLY = StorageSettings(whole_chunk_read_bytes_max=0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring entries of one segment."""

    container_id: int
    segment_id: int
    entries: tuple[LayoutEntry, ...]

    @property
    def name(self) -> str:
        """The same for the same chunks, in every plan."""
        first, last = self.entries[0], self.entries[-1]
        return (
            f"{self.container_id}/{self.segment_id}@{first.start_offset}-{last.end_offset}"
            f":{first.identity}+{first.position}:{last.identity}+{last.position}"
        )


@dataclass(slots=True)
class StretchFacts:
    """Sums over a stretch; sizes in bytes, times in Unix milliseconds."""

    times: TimeBuckets = field(default_factory=TimeBuckets)
    untimed_bytes: int = 0
    blocks: int = 0
    blocks_by_compression: dict[int, int] = field(default_factory=dict)
    first_number: int | None = None
    """Of the first event whose number is known."""
    last_number: int | None = None
    """Of the first event of the last block where it is known: its events are not counted yet."""
    last_time_ms: int = UNKNOWN_TIME_MS
    """Of that block."""
    lowest_time_ms: int | None = None
    highest_time_ms: int | None = None
    moved: bool = False
    """Its chunks are somewhere else by now: nothing was counted."""

    def add_index(self, entry: LayoutEntry, index: ChunkIndex) -> None:
        """One chunk, in the words of the segment. O(blocks)."""
        for block in index.entries:
            self.blocks += 1
            kind = int(block.compression)
            self.blocks_by_compression[kind] = self.blocks_by_compression.get(kind, 0) + 1
            events = block_events(entry, block)
            if events is None:
                self.untimed_bytes += block.uncompressed_length
                continue
            low, high = events.lowest_time_ms, events.highest_time_ms
            if high:
                self._note_times(low, high)
                self.times.add(low, block.uncompressed_length, 0)
            else:
                self.untimed_bytes += block.uncompressed_length
            if events.first_event_position is not None:
                self.count_up_to(events.first_event_number)
                self.last_number = events.first_event_number
                # As readers take it: an event of unknown time is as old as those before it.
                self.last_time_ms = low if high else max(0, self.last_time_ms)

    def _note_times(self, low: int, high: int) -> None:
        self.lowest_time_ms = low if self.lowest_time_ms is None else min(low, self.lowest_time_ms)
        self.highest_time_ms = (
            high if self.highest_time_ms is None else max(high, self.highest_time_ms)
        )

    def count_up_to(self, number: int) -> None:
        """Events below this number have been counted now."""
        if self.first_number is None:
            self.first_number = number
        if self.last_number is not None and number > self.last_number:
            self.times.add(self.last_time_ms, 0, number - self.last_number)

    def as_json(self) -> dict[str, object]:
        return {
            "times": self.times.as_json(),
            "untimed_bytes": self.untimed_bytes,
            "blocks": self.blocks,
            "blocks_by_compression": list(self.blocks_by_compression.items()),
            "numbers": [self.first_number, self.last_number, self.last_time_ms],
            "bounds": [self.lowest_time_ms, self.highest_time_ms],
        }

    @classmethod
    def of_json(cls, value: Mapping[str, object]) -> "StretchFacts":
        times, kinds = value["times"], value["blocks_by_compression"]
        numbers, bounds = value["numbers"], value["bounds"]
        untimed, blocks = value["untimed_bytes"], value["blocks"]
        assert isinstance(times, dict), f"times are an object found={times!r}"
        assert isinstance(kinds, list), f"kinds are a list found={kinds!r}"
        assert isinstance(numbers, list), f"numbers are a list found={numbers!r}"
        assert isinstance(bounds, list), f"bounds are a list found={bounds!r}"
        assert isinstance(untimed, int), f"bytes are a number found={untimed!r}"
        assert isinstance(blocks, int), f"blocks are a number found={blocks!r}"
        return cls(TimeBuckets.of_json(times), untimed, blocks, dict(kinds), *numbers, *bounds)


def facts_of(place: Tier2Place, stretch: Stretch) -> StretchFacts:
    """One request for each chunk. Raises StorageError, CorruptedDataError."""
    with LoopRunner() as runner:

        async def read() -> StretchFacts:
            facts = StretchFacts()
            async with open_for_reading(place, runner.executor) as store:
                reader = ContainerReader(
                    object_store=store,
                    container_id=ContainerId(stretch.container_id),
                    settings=INDEX_ONLY,
                    executor=runner.executor,
                )
                try:
                    for entry in stretch.entries:
                        index = await reader.components.chunk_reads.index(entry)
                        facts.add_index(entry, index)
                except ObjectNotFoundError:
                    return StretchFacts(moved=True)
            return facts

        return runner.run(read())
