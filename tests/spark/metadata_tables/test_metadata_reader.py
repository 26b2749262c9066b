"""Which rows the options choose."""

from contextlib import aclosing
from dataclasses import replace

import pytest

from segmentstore.contracts.identifiers import SegmentId, SequenceNumber
from segmentstore.contracts.storage import DataPiece, SegmentPublication
from segmentstore.spark.metadata_tables.metadata_reader import MetadataRows
from segmentstore.spark.options import parse_options
from segmentstore.spark.streams.stream_source import StreamSource
from tests.spark.event_segment import EventSegment, event_segment, publication


async def segment_a_and(name: str) -> EventSegment:
    """One container with the segment `a` and another one."""
    segment = await event_segment(name="a")
    await segment.append_bytes(b"of a")
    other = replace(
        segment.record, segment_id=SegmentId(2), name=name, sequence_number=SequenceNumber(7)
    )
    piece = DataPiece(0, [b"ours"], None)
    await segment.owner.publish(
        publication(other.sequence_number, SegmentPublication(other, [piece]))
    )
    return segment


@pytest.mark.parametrize("other", ["a/b/0.#epoch.0", "a/x", "ab", "a#b"])
async def test_chunks_of_a_segment_are_those_of_no_other(other: str) -> None:
    segment = await segment_a_and(other)
    for name in ("a", other):
        options = parse_options({"tier2": "here", "metadata": "chunks", "segment": name})
        source = StreamSource(options=options, view=await segment.view(), store=None, served=None)
        async with aclosing(MetadataRows(options, source).of("chunks", None)) as rows:
            assert [row["segment"] async for row in rows] == [name]


async def test_chunks_of_a_scope_are_those_of_its_segments() -> None:
    segment = await segment_a_and("a/b/0.#epoch.0")
    options = parse_options({"tier2": "here", "metadata": "chunks", "scope": "a"})
    source = StreamSource(options=options, view=await segment.view(), store=None, served=None)
    async with aclosing(MetadataRows(options, source).of("chunks", None)) as rows:
        assert "a/b/0.#epoch.0" in [row["segment"] async for row in rows]
