"""What the Java reader is told: asked in the words that it uses, read with nothing but files."""

import base64
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import lz4.block
import pytest

from segmentstore.client import ScalingPolicy, Store, StreamConfig
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jvm.block_locations import ResolvedBlockCache
from segmentstore.spark.jvm.planner_server import Question, answer, parse_question
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import SegmentRange
from tests.spark.live_store import LiveStore, live_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAM = "plant/readings"
SEGMENT = "plant/readings/0.#epoch.0"
EVENTS = [b"%05d " % number * (number % 400) for number in range(3000)]
BLOCK_NUMBERS = 9


def fill(live: LiveStore) -> None:
    async def work(store: Store) -> None:
        await store.scope("plant").create()
        stream = store.stream(STREAM)
        await stream.create(StreamConfig(ScalingPolicy.fixed(1)))
        async with stream.writer() as writer:
            for event in EVENTS:
                await writer.write(event, key="one")

    live.do(work)
    live.flush(SEGMENT)


def ask(
    verb: str,
    options: Mapping[str, str],
    *,
    placed: ResolvedBlockCache | None = None,
    **more: object,
) -> dict[str, object]:
    with LoopRunner() as runner:
        question = {"verb": verb, "options": dict(options), **more}
        asked = parse_question(json.dumps(question).encode())
        fields, _ = answer(asked, runner, ResolvedBlockCache() if placed is None else placed)
        found: dict[str, object] = json.loads(json.dumps(fields))
        return found


def content_of(fields: Mapping[str, object]) -> bytes:
    """The bytes of all blocks, read as the Java reader reads them."""
    places, ranges = fields["places"], fields["ranges"]
    assert isinstance(places, list)
    assert isinstance(ranges, list)
    content: dict[int, bytes] = {}
    for each in ranges:
        blocks = each["blocks"]
        for at in range(0, len(blocks), BLOCK_NUMBERS):
            number, position, stored, compression, offset, length = blocks[at : at + 6]
            found = stored_bytes(places[number], position, stored + 4)
            assert zlib.crc32(found[:stored]) == int.from_bytes(found[stored:], "big")
            body = found[:stored]
            if compression == 1:
                body = lz4.block.decompress(body, uncompressed_size=length)
            assert len(body) == length
            content[offset] = body
    return b"".join(content[offset] for offset in sorted(content))


def stored_bytes(place: str, position: int, length: int) -> bytes:
    if place.startswith("data:"):
        return base64.b64decode(place[5:])[position : position + length]
    with Path(place).open("rb") as file:
        file.seek(position)
        return file.read(length)


def framed() -> bytes:
    return b"".join(struct.pack(">ii", 0, len(event)) + event for event in EVENTS)


@pytest.mark.parametrize("kind", ["filesystem", "volumes"])
def test_the_places_of_a_plan_hold_the_bytes_of_the_stream(tmp_path: Path, kind: str) -> None:
    with live_store(tmp_path, tier2=kind) as live:
        fill(live)
        # What a living owner wrote to volumes is seen up to a second late.
        live.server.kill()
        options = {"tier2": live.tier2, "stream": STREAM, "mode": "offline"}
        plan = ask("plan", options | {"maxBytesPerPartition": "1m"})
        ranges = plan["ranges"]
        assert isinstance(ranges, list)
        assert len(ranges) > 1
        assert content_of(plan) == framed()
        ends = [each["end"] for each in ranges]
        assert [each["start"] for each in ranges] == [0, *ends[:-1]]
        assert ends[-1] == len(framed())

        part = {name: ranges[0][name] for name in ("scope", "stream", "segment_id", "container_id")}
        part |= {"segment_name": SEGMENT, "start": 8, "end": ends[0], "content": "raw"}
        again = ask("resolve", options, range=part)
        assert content_of(again) == content_of({"places": plan["places"], "ranges": ranges[:1]})


def test_what_was_placed_before_is_placed_anew_when_more_is_published(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        fill(live)
        options = {"tier2": live.tier2, "stream": STREAM, "mode": "offline"}
        placed = ResolvedBlockCache()
        first = ask("plan", options, placed=placed)
        assert content_of(first) == framed()
        assert ask("plan", options, placed=placed) == first

        async def append(store: Store) -> None:
            async with store.stream(STREAM).writer() as writer:
                await writer.write(b"one more", key="one")

        live.do(append)
        live.flush(SEGMENT)
        again = ask("plan", options, placed=placed)
        assert again == ask("plan", options)
        assert content_of(again) == framed() + struct.pack(">ii", 0, 8) + b"one more"


def test_filters_leave_out_ranges_and_offsets(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        fill(live)
        options = {"tier2": live.tier2, "stream": STREAM}

        def bounds(*filters: object) -> list[tuple[int, int]]:
            ranges = ask("plan", options, filters=filters)["ranges"]
            assert isinstance(ranges, list)
            return [(each["start"], each["end"]) for each in ranges]

        end = len(framed())
        assert bounds() == [(0, end)]
        assert bounds(["segment_id", "=", [1]]) == []
        assert bounds(["segment_id", "in", [1, 0]]) == [(0, end)]
        assert bounds(["offset", ">=", [100]], ["offset", "<", [900]]) == [(100, 901)]
        assert bounds(["timestamp", ">", [1 << 57]]) == []
        assert bounds(["timestamp", "<", [1 << 62]]) == [(0, end)]


def test_h8_an_object_that_is_gone_has_a_place_where_nothing_is(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        fill(live)
        options = {"tier2": live.tier2, "stream": STREAM, "mode": "offline"}
        plan = ask("plan", options)
        places = plan["places"]
        assert isinstance(places, list)
        for name in places[1:]:
            Path(name).unlink()
        with pytest.raises(FileNotFoundError):
            content_of(plan)


def test_what_was_truncated_is_lost_or_left_out(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        fill(live)
        cut = 8 + len(EVENTS[0]) + 8 + len(EVENTS[1])

        async def truncate(store: Store) -> None:
            await store.segment(SEGMENT).truncate(cut)

        live.do(truncate)
        live.flush(SEGMENT)
        options = {"tier2": live.tier2, "stream": STREAM, "mode": "offline"}
        part = {"scope": "plant", "stream": "readings", "segment_id": 0, "container_id": 0}
        part |= {"segment_name": SEGMENT, "start": 0, "end": len(framed()), "content": "raw"}
        with pytest.raises(DataLossError, match=f"head={cut}"):
            ask("resolve", options, range=part)
        left = ask("resolve", options | {"failOnDataLoss": "false"}, range=part)["ranges"]
        assert isinstance(left, list)
        assert left[0]["blocks"][4] <= cut
        assert left[0]["end"] == len(framed())


def test_the_tail_comes_from_the_service(tmp_path: Path) -> None:
    with live_store(tmp_path) as live:
        fill(live)

        async def write(store: Store) -> None:
            async with store.stream(STREAM).writer() as writer:
                await writer.write(b"late", key="one")

        live.do(write)
        options = {"tier2": live.tier2, "stream": STREAM, "controller": live.controller}
        plan = ask("plan", options)
        ranges = plan["ranges"]
        assert isinstance(ranges, list)
        tail = ranges[-1]
        assert (tail["start"], tail["end"]) == (len(framed()), len(framed()) + 12)
        assert plan["places"][tail["blocks"][-BLOCK_NUMBERS]] == "service:"  # type: ignore[index]  # of a list
        part = SegmentRange("plant", "readings", 0, SEGMENT, 0, tail["start"], tail["end"])
        with LoopRunner() as runner:
            _, content = answer(
                Question(verb="tail", options=options, range=part), runner, ResolvedBlockCache()
            )
        assert content == struct.pack(">ii", 0, 4) + b"late"


def test_questions_are_answered_one_after_the_other_until_there_are_none(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "segmentstore.spark.jvm.planner_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    read: Callable[[int], bytes] = process.stdout.read

    def exchange(question: object) -> object:
        assert process.stdin is not None
        encoded = json.dumps(question).encode()
        process.stdin.write(struct.pack(">I", len(encoded)) + encoded)
        process.stdin.flush()
        fields = json.loads(read(struct.unpack(">I", read(4))[0]))
        assert read(struct.unpack(">I", read(4))[0]) == b""
        return fields

    options = {"tier2": str(tmp_path), "stream": "a/b", "columns": "offset,value"}
    assert exchange({"verb": "schema", "options": options}) == {
        "schema": "offset bigint, value binary"
    }
    with pytest.raises(InvalidRequestError) as refused:
        ask("schema", {"colour": "red"})
    assert exchange({"verb": "schema", "options": {"colour": "red"}}) == {
        "error": str(refused.value)
    }
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
