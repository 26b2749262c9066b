"""A streaming query as Spark would drive it, without Spark, and what its store then says."""

from dataclasses import dataclass, field
from datetime import datetime

from segmentstore.spark.metadata_tables.metadata_reader import MetadataReader
from segmentstore.spark.options import parse_options
from segmentstore.spark.streaming.stream_reader import SegmentStoreStreamReader
from tests.integration.spark.live_streams import LiveStreams


@dataclass
class Query:
    """A streaming query whose reader is made anew for every call."""

    options: dict[str, str]
    batches: list[list[bytes]] = field(default_factory=list)
    positions: list[dict[str, object]] = field(default_factory=list)

    def reader(self) -> SegmentStoreStreamReader:
        return SegmentStoreStreamReader(parse_options(self.options))

    def events(self) -> list[bytes]:
        return [event for batch in self.batches for event in batch]

    def read_on(self) -> "Query":
        """Batches until there is nothing more."""
        if not self.positions:
            reader = self.reader()
            try:
                self.positions.append(reader.initialOffset())
            finally:
                reader.stop()
        while True:
            reader = self.reader()
            end = reader.latestOffset(self.positions[-1], reader.getDefaultReadLimit())
            reader.stop()
            if end == self.positions[-1]:
                return self
            self.batches.append(self.batch(self.positions[-1], end))
            self.positions.append(end)

    def batch(self, start: dict[str, object], end: dict[str, object]) -> list[bytes]:
        """The values of one batch, asked for straight from its two positions."""
        planning = self.reader()
        ranges = planning.partitions(start, end)
        planning.stop()
        found: list[bytes] = []
        for each in ranges:
            for records in self.reader().read(each):
                column = "bytes" if "bytes" in records.schema.names else "value"
                found += records.column(column).to_pylist()
        return found


def query(live: LiveStreams, stream: str, *, mode: str = "auto", **options: str) -> Query:
    words = {"tier2": live.place, "controller": live.controller, "mode": mode}
    return Query(words | {"stream": stream, "startingOffsets": "earliest"} | options)


def consumed(live: LiveStreams, scope: str) -> dict[tuple[object, ...], object]:
    """What groups have consumed, from their records in Tier 2."""
    words = {"tier2": live.place, "metadata": "readerGroups", "scope": scope, "mode": "offline"}
    reader = MetadataReader(parse_options(words))
    return {
        (row["scope"], row["reader_group"], row["stream_scope"], row["stream"]): row[
            "consumed_offsets"
        ]
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    }


def newest_time_ms(live: LiveStreams, stream: str) -> int:
    """The highest append time in a stream's chunks."""
    words = {"tier2": live.place, "metadata": "chunks", "stream": stream, "mode": "offline"}
    reader = MetadataReader(parse_options(words))
    times: list[datetime] = [
        row["highest_time"]
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    return round(max(times).timestamp() * 1000)
