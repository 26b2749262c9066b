"""Beside a store that runs: what its service says and what Tier 2 says, and many processes that look at once."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from segmentstore.client import ScalingPolicy, Store, StreamConfig
from segmentstore.spark.options import parse_options
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.scan.batch_reader import BatchReader
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.streams.segment_graph import StreamMetadata
from segmentstore.spark.streams.stream_source import open_stream_source
from tests.spark.live_store import LiveStore, live_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAM = "plant/readings"

READER = """
import sys
from segmentstore.spark.scan.batch_reader import BatchReader
from segmentstore.spark.options import parse_options

reader = BatchReader(parse_options({"tier2": sys.argv[1], "stream": sys.argv[2]}))
print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))
"""


async def write(store: Store, count: int) -> None:
    async with store.stream(STREAM).writer() as writer:
        for number in range(count):
            await writer.write(b"%d" % number, key=str(number))


async def split_and_merged(store: Store) -> Sequence[int]:
    """Two segments that became three, then one: the ids of all of them."""
    stream = store.stream(STREAM)
    await store.scope("plant").create()
    await stream.create(StreamConfig(ScalingPolicy.fixed(2), tags=("colour=red",)))
    ids: list[int] = []
    for segments in (3, 1):
        await write(store, 100)
        ids += [each.segment_id for each in await stream.segments()]
        await stream.scale_to(segments)
    await write(store, 100)
    return [*ids, *(each.segment_id for each in await stream.segments())]


def map_of(live: LiveStore, controller: str = "") -> StreamMetadata:
    options = parse_options({"tier2": live.tier2, "stream": STREAM, "controller": controller})

    async def look(runner: LoopRunner) -> StreamMetadata:
        async with open_stream_source(options, executor=runner.executor) as source:
            (found,) = await source.selected_streams()
            found.check()
            return found

    with LoopRunner() as runner:
        return runner.run(look(runner))


def values(parts: Sequence[SegmentRange], reader: BatchReader) -> list[bytes]:
    return [
        value
        for part in parts
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


def test_h78_a_stream_is_the_same_from_its_service_and_from_tier2(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        ids = live.do(split_and_merged)
        live.flush_stream(STREAM, ids)
        served, published = map_of(live, live.controller), map_of(live)
        assert served.segments == published.segments
        assert (served.head, served.tags) == (published.head, published.tags)
        assert [each.segment_id for each in served.segments] == sorted(ids)

        async def truncate_and_seal(store: Store) -> None:
            stream = store.stream(STREAM)
            await stream.truncate(await stream.tail())
            await stream.seal()

        live.do(truncate_and_seal)
        live.flush_stream(STREAM, ids[-1:])
        served, published = map_of(live, live.controller), map_of(live)
        assert served.segments == published.segments
        assert [each.segment_id for each in served.segments] == ids[-1:]
        assert served.is_sealed
        assert published.is_sealed


def test_a_tail_that_was_flushed_since_it_was_planned_comes_from_tier2(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        ids = live.do(split_and_merged)
        live.flush_stream(STREAM, ids)
        live.do(lambda store: write(store, 50))
        words = {"tier2": live.tier2, "stream": STREAM, "controller": live.controller}
        reader = BatchReader(parse_options(words))
        tails = [part for part in reader.partitions() if type(part) is SegmentRange]
        assert len(values(tails, reader)) == 50
        live.flush_stream(STREAM, ids)
        live.server.kill()
        alone = BatchReader(parse_options(words | {"mode": "offline"}))
        assert len(values(tails, alone)) == 50


def test_everything_may_come_from_the_service(tmp_path: Path) -> None:
    with live_store(tmp_path, tier2="volumes") as live:
        live.do(split_and_merged)
        reader = BatchReader(parse_options({"stream": STREAM, "controller": live.controller}))
        found = values([part for part in reader.partitions() if type(part) is SegmentRange], reader)
        expected = [b"%d" % number for number in range(100)] * 3
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("running", [True, False])
def test_volumes_are_read_by_many_processes_at_once(tmp_path: Path, *, running: bool) -> None:
    with live_store(tmp_path, tier2="volumes") as live:
        ids = live.do(split_and_merged)
        live.flush_stream(STREAM, ids)
        if not running:
            live.server.kill()

        async def read() -> tuple[str, str]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", READER, live.tier2, STREAM,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )  # fmt: skip
            out, err = await process.communicate()
            return out.decode(), err.decode()

        async def many() -> list[tuple[str, str]]:
            return await asyncio.gather(*(read() for _ in range(6)))

        for rows, complaint in asyncio.run(many()):
            assert rows.strip() == "300", complaint
        if not running:
            # Readers hold nothing that the service needs.
            live.server.start()
