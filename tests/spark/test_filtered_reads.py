"""Goal: filters, starts and the way of reading change no row.

Random histories of a segment are read with and without pushed filters, by the Python reader and by the algorithm of the
Java reader, while chunks move, with and without Tier 2 and the service: what is left after Spark's own filtering is
always what the plain read gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import Random

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from segmentstore.codec.record_fields import Record
from segmentstore.spark.jvm import block_locations
from segmentstore.spark.scan import block_reader, range_reader, scan_planner
from segmentstore.spark.scan.data_loss import DataLossError
from tests.spark.event_segment import frame
from tests.spark.stream_history import START_MS, History, Reads, Row, begin_history
from tier2.format.records import encode_records

READERS = ("python", "java")


@pytest.fixture(autouse=True)
def small_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that histories of some hundred bytes meet; and nothing is late, so nothing is waited for."""
    monkeypatch.setattr(range_reader, "OPEN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(block_locations, "OPEN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(scan_planner, "OPEN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(scan_planner, "_RANGE_BYTES_MIN", 1)


def event_of(shape: int, number: int, content: str) -> bytes:
    if content == "record":
        value = b"%d" % number * shape
        return encode_records([Record(0, START_MS + 1000 * (number % 5), b"key", value)])
    # Inside of some events lie others that nobody wrote: whoever begins in the wrong place finds them.
    return frame(b"FAKE") * (shape // 3) + b"%d" % number


@dataclass
class Events:
    """Makes the events of a history."""

    content: str
    made: int = 0

    def some(self, shapes: Sequence[int]) -> list[bytes]:
        events = [
            event_of(shape, self.made + row, self.content) for row, shape in enumerate(shapes)
        ]
        self.made += len(events)
        return events


def shapes_of(random: Random) -> list[int]:
    return [random.randrange(10) for _ in range(random.randint(1, 4))]


def times_of_steps(random: Random, count: int) -> list[int]:
    """Seconds; few different ones, so that histories meet the same ones again and again."""
    return [random.randrange(3) for _ in range(count)]


def step_of(random: Random) -> tuple[str, object, object]:
    """What happens to a history, and when."""
    (second,) = times_of_steps(random, 1)
    kind = random.choice(
        ["append"] * 4
        + ["merge"] * 2
        + ["large"] * 3
        + ["undescribed", "merge of bytes", "compact"]
    )
    match kind:
        case "append" | "undescribed":
            return kind, shapes_of(random), second
        case "merge":
            return kind, shapes_of(random), times_of_steps(random, 4)
        case "merge of bytes":
            return kind, random.randrange(10), second
        case "large":
            return kind, random.randint(12, 40), times_of_steps(random, random.randint(2, 4))
        case _:
            return random.choice([(kind, None, None), ("truncate", random.randrange(6), None)])


def steps_of(random: Random) -> list[tuple[str, object, object]]:
    return [step_of(random) for _ in range(random.randint(1, 8))]


def at_ms(second: int) -> int:
    return START_MS + 1000 * second


async def live(history: History, steps: Sequence[tuple[str, object, object]], made: Events) -> None:
    """Let the history happen; while it does no published event may change its time."""
    for kind, what, when in steps:
        match kind, what, when:
            case "append", list(shapes), int(second):
                history.write(made.some(shapes))
                await history.flush(at_ms(second))
            case "undescribed", list(shapes), int(second):
                history.write(made.some(shapes))
                await history.flush(at_ms(second), described=False)
            case "merge", list(shapes), list(seconds):
                events = made.some(shapes)
                await history.merge(events, [at_ms(each) for each in seconds[: len(events)]])
            case "merge of bytes", int(shape), int(second):
                await history.merge(made.some([shape]), [at_ms(second)], described=False)
            case "large", int(shape), list(seconds):
                (event,) = made.some([shape])
                await history.append_large(event, [at_ms(each) for each in seconds])
            case "compact", _, _:
                before = await times_of(history)
                await history.segment.compact()
                assert await times_of(history) == before, "compaction changed a timestamp"
            case "truncate", int(number), _:
                boundaries = [each for each in history.starts if each > history.head][:number]
                published = [each for each in boundaries if each <= history.published_end]
                if published:
                    await history.truncate(published[-1])


async def times_of(history: History) -> list[tuple[object, object]]:
    if history.head == history.published_end:
        return []
    reads = Reads(history, {"content": "raw", "columns": "offset,timestamp"}, with_service=False)
    return [(row["offset"], row["timestamp"]) for row in await reads.rows("python")]


def matches(row: Row, filters: Sequence[Filter]) -> bool:
    """As Spark filters: null is never true."""
    return all(_holds(row, each) for each in filters)


def _holds(row: Row, each: Filter) -> bool:
    match each:
        case EqualTo(attribute=(column,), value=wanted):
            return row[column] is not None and row[column] == wanted
        case GreaterThan(attribute=(column,), value=wanted):
            return row[column] is not None and row[column] > wanted
        case GreaterThanOrEqual(attribute=(column,), value=wanted):
            return row[column] is not None and row[column] >= wanted
        case LessThan(attribute=(column,), value=wanted):
            return row[column] is not None and row[column] < wanted
        case LessThanOrEqual(attribute=(column,), value=wanted):
            return row[column] is not None and row[column] <= wanted
        case _:
            raise AssertionError(f"a filter that is not made here {each}")


COMPARISONS = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def filters_of(random: Random) -> list[Filter]:
    made: list[Filter] = []
    for column in random.choice(
        [["timestamp"], ["timestamp"], ["offset"], ["timestamp", "offset"]]
    ):
        if column == "timestamp":
            (second,) = times_of_steps(random, 1)
            value: object = datetime.fromtimestamp(at_ms(second) / 1000, UTC)
        else:
            value = random.randrange(400)
        made.append(random.choice(COMPARISONS)((column,), value))
    return made


@dataclass(frozen=True)
class Way:
    """How a history is read."""

    places: str
    tail: Sequence[int]
    words: dict[str, str]
    joined_bytes: int
    piece_bytes: int
    move_at: int | None


def way_of(random: Random) -> Way:
    return Way(
        places=random.choice(["tier2", "both", "both", "service"]),
        tail=shapes_of(random) if random.random() < 0.5 else [],
        words={"maxBytesPerPartition": str(random.choice([60, 1 << 20, 1 << 20]))},
        joined_bytes=random.choice([1, 100, 1 << 20, 1 << 20]),
        piece_bytes=random.choice([5, 1 << 20]),
        move_at=random.choice([None, random.randrange(7)]),
    )


def reads_of(history: History, way: Way, content: str, *, start: int | None = None) -> Reads:
    words = way.words | {"content": content}
    if start is not None:
        words["startingOffsets"] = f'{{"0": {start}}}'
    return Reads(
        history,
        words,
        with_tier2=way.places != "service",
        with_service=way.places != "tier2",
        piece_bytes=way.piece_bytes,
        move_at=way.move_at,
    )


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["offset"])  # type: ignore[arg-type, return-value]  # numbers


async def read_filtered(seed: int) -> None:
    random = Random(seed)
    content = random.choice(["raw", "raw", "raw", "record", "bytes"])
    way, made = way_of(random), Events(content)
    history = await begin_history(joins=random.random() < 0.5)
    await live(history, steps_of(random), made)
    if way.places != "tier2":
        history.write(made.some(way.tail))
    if not history.published_end and way.places == "tier2":
        return
    start = random.choice([None, None, random.randrange(len(history.content) + 20)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_reader, "JOINED_BYTES_MIN", way.joined_bytes)
        await check_rows(history, way, content, random.choice(READERS), filters_of(random), start)


@pytest.mark.parametrize("seed", range(600))
async def test_every_filter_and_start_gives_the_rows_of_the_plain_read(seed: int) -> None:
    await read_filtered(seed)


async def check_rows(
    history: History,
    way: Way,
    content: str,
    reader: str,
    asked: Sequence[Filter],
    start: int | None,
) -> None:
    end = history.published_end if way.places == "tier2" else len(history.content)
    if content == "bytes":
        # A row is a block, and chunks that move are joined: other blocks, other rows.
        way = replace(way, move_at=None)
    still = Way(way.places, way.tail, {}, 1 << 20, 1 << 20, None)
    plain = await reads_of(history, still, content).rows("python")
    if content == "bytes":
        assert b"".join(row["bytes"] for row in plain) == history.content[history.head : end]  # type: ignore[misc]
        assert [row["offset"] for row in plain][:1] in ([], [history.head])
    else:
        starts = [each for each in history.starts if history.head <= each < end]
        assert [row["offset"] for row in plain] == starts
        if content == "raw":
            assert [row["value"] for row in plain] == [history.event_at(each) for each in starts]
    if start is not None and start > end:
        with pytest.raises(DataLossError):
            await reads_of(history, way, content, start=start).rows("python")
        return
    if start is not None and start >= history.head and content != "bytes":
        plain = [row for row in plain if row["offset"] >= start]  # type: ignore[operator]
    else:
        start = None
    expected = [row for row in plain if matches(row, asked)]
    # The filtered read first: it meets the chunks where they are before they move.
    for pushed in (asked, []):
        found = await reads_of(history, way, content, start=start).rows(reader, pushed)
        left = in_order([row for row in found if matches(row, asked)])
        assert left == expected, f"{reader=} {pushed=} {asked=}"
        if not pushed:
            assert in_order(found) == plain


async def truncate_behind_the_plan(seed: int) -> None:
    random = Random(seed)
    content = random.choice(["raw", "record", "bytes"])
    way, made = replace(way_of(random), move_at=None), Events(content)
    history = await begin_history()
    await live(history, steps_of(random), made)
    if way.places == "service" or history.head == history.published_end:
        return
    if way.places == "both":
        history.write(made.some(way.tail))
    boundaries = [each for each in history.starts if each < history.published_end]
    boundaries.append(history.published_end)
    kept = random.randrange(5)
    head = max(history.head, boundaries[max(0, len(boundaries) - 1 - kept)])
    reader = random.choice(READERS)
    await check_truncated(history, way, content, filters_of(random), head, reader)


@pytest.mark.parametrize("seed", range(120))
async def test_what_is_truncated_between_plan_and_read_is_loss_by_either_reader(seed: int) -> None:
    await truncate_behind_the_plan(seed)


async def check_truncated(
    history: History, way: Way, content: str, asked: list[Filter], head: int, reader: str
) -> None:
    still = Way(way.places, way.tail, {}, 1 << 20, 1 << 20, None)
    plans = {}
    for fails in ("true", "false"):
        reads = reads_of(
            history, replace(way, words=way.words | {"failOnDataLoss": fails}), content
        )
        view = await history.segment.view() if reads.with_tier2 else None
        plans[fails] = (reads, view, await reads.plan(view, asked))
    await history.truncate(head)
    plain = await reads_of(history, still, content).rows("python")
    expected = [row for row in plain if matches(row, asked)]
    reads, view, parts = plans["true"]
    assert view is not None
    await view.refresh()
    if any(part.start < head for part in parts):
        with pytest.raises(DataLossError):
            await reads.rows_of_plan(reader, view, parts)
    else:
        found = in_order(await reads.rows_of_plan(reader, view, parts))
        assert [row for row in found if matches(row, asked)] == expected
    reads, view, parts = plans["false"]
    assert view is not None
    await view.refresh()
    found = in_order(await reads.rows_of_plan(reader, view, parts))
    assert [row for row in found if matches(row, asked)] == expected


async def truncate_while_the_tail_is_read(seed: int) -> None:
    """Goal: what retention takes of a tail between two reads of it is loss where it was asked for, and nothing else is.

    The segment is truncated once or twice behind some reads of the service, and Tier 2 does not learn of it. A row that
    is missing then lies before the head; with failOnDataLoss none is missing without an error, and there is none where
    everything that was asked for lies behind the head.
    """
    random = Random(seed)
    content = random.choice(["raw", "raw", "record"])
    made = Events(content)
    way = replace(
        way_of(random),
        places=random.choice(["both", "service"]),
        tail=shapes_of(random) + shapes_of(random),
        piece_bytes=random.choice([5, 30, 1 << 20]),
        move_at=None,
    )
    history = await begin_history()
    await live(history, steps_of(random), made)
    history.write(made.some(way.tail))
    still = Way(way.places, way.tail, {}, 1 << 20, 1 << 20, None)
    plain = await reads_of(history, still, content).rows("python")
    start = random.choice([None, random.randrange(history.head, len(history.content))])
    asked = [row for row in plain if start is None or row["offset"] >= start]  # type: ignore[operator]
    heads = random.choices(
        [each for each in [*history.starts, len(history.content)] if each >= history.head], k=2
    )
    heads = sorted(heads)[: random.randint(1, 2)]
    way = replace(way, words=way.words | {"failOnDataLoss": random.choice(["true", "false"])})
    reader = random.choice(READERS)
    reads = reads_of(history, way, content, start=start)
    view = await history.segment.view() if reads.with_tier2 else None
    parts = await reads.plan(view)
    history.next_heads = [(random.randrange(6), head) for head in heads]
    first = start if start is not None else history.head
    try:
        found = in_order(await reads.rows_of_plan(reader, view, parts))
    except DataLossError:
        assert reads.options.fail_on_data_loss
        assert history.head > first, f"nothing of it is lost {history.head=} {first=}"
        return
    by_offset = {row["offset"]: row for row in asked}
    for row in found:
        # Behind a head that came meanwhile numbers may be unknown, as to a read that begins there.
        known = by_offset[row["offset"]]
        assert row in (known, known | {"event_number": None}), f"{reader=} another row"
    given = [row["offset"] for row in found]
    assert given == sorted(set(given)), f"{reader=} a row twice"  # type: ignore[type-var]
    missing = [row for row in asked if row["offset"] not in given]
    assert not missing or not reads.options.fail_on_data_loss, f"{reader=} in silence {missing=}"
    late = [row for row in missing if row["offset"] >= history.head]  # type: ignore[operator]
    assert not late, f"{reader=} behind the head {late=}"


@pytest.mark.parametrize("seed", range(200))
async def test_what_is_truncated_while_the_tail_is_read_is_loss_by_either_reader(seed: int) -> None:
    await truncate_while_the_tail_is_read(seed)


async def read_between(seed: int) -> None:
    """Goal: whatever says where reading begins and ends, the rows are those of the plain read from there to there.

    An offset may lie anywhere in an event. A start in time may be earlier, by a block, than the first row of that time;
    an end in time leaves out nothing before the first row of that time.
    """
    random = Random(seed)
    content = random.choice(["raw", "raw", "record"])
    way, made = way_of(random), Events(content)
    history = await begin_history(joins=random.random() < 0.5)
    await live(history, steps_of(random), made)
    if way.places != "tier2":
        history.write(made.some(way.tail))
    elif not history.published_end:
        return
    end = history.published_end if way.places == "tier2" else len(history.content)
    still = Way(way.places, way.tail, {}, 1 << 20, 1 << 20, None)
    plain = await reads_of(history, still, content).rows("python")
    words, expected = dict(way.words), plain
    first = last = None
    for word in ("starting", "ending"):
        kind = random.choice(["", "offset", "offset", "time", "word"])
        if kind == "time" and way.places == "service":
            kind = ""  # It does not know times.
        offset = random.randrange(history.head, end + 1)
        time = datetime.fromtimestamp(at_ms(random.randrange(4)) / 1000, UTC)
        is_start = word == "starting"
        if kind == "offset":
            words[f"{word}Offsets"] = f'{{"0": {offset}}}'
            expected = [row for row in expected if (row["offset"] >= offset) is is_start]  # type: ignore[operator]
        elif kind == "time":
            words[f"{word}Timestamp"] = time.isoformat()
            first, last = (time, last) if is_start else (first, time)
        elif kind == "word":
            number = random.choice([-2, -1])
            words[f"{word}Offsets"] = f'{{"0": {number}}}'
            expected = expected if (number == -2) is is_start else []
    asked = filters_of(random) if random.random() < 0.5 else []
    reader = random.choice(READERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_reader, "JOINED_BYTES_MIN", way.joined_bytes)
        reads = reads_of(history, replace(way, words=words), content)
        found = in_order(await reads.rows(reader, asked))
        whole = in_order(await reads.rows(reader)) if asked else found
    assert [row for row in found if matches(row, asked)] == [
        row for row in whole if matches(row, asked)
    ], f"{reader=} {words=} {asked=}"
    at = expected.index(whole[0]) if whole else 0 if first is None else len(expected)
    assert expected[at : at + len(whole)] == whole, f"{reader=} {words=}"
    assert at == 0 or first is not None
    assert at + len(whole) == len(expected) or last is not None
    if content == "record":
        # Records bring times of their own; those of blocks are of their appends.
        return
    for row in expected[:at] if whole or last is None else []:
        assert row["timestamp"] is not None, f"{reader=} {words=} {row=}"
        assert row["timestamp"] < first, f"{reader=} {words=} {row=}"  # type: ignore[operator]
    for row in expected[at + len(whole) :][:1]:
        # Times of merged events lie in any order: what follows the first later one is left out, too.
        until = [each["timestamp"] for each in plain[: plain.index(row) + 1]]
        assert any(each is None or each >= last for each in until), f"{reader=} {words=} {row=}"  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(200))
async def test_every_start_and_end_gives_the_rows_between_them(seed: int) -> None:
    await read_between(seed)
