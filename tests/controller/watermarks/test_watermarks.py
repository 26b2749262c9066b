"""Writers note times, readers find watermarks."""

import asyncio
from random import Random

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import (
    ScalingPolicy,
    SegmentWithRange,
    StreamConfigurationRecord,
)
from segmentstore.codec.controller_records.watermark_records import (
    Watermark,
    WriterMarkRecord,
)
from segmentstore.codec.event_frame import EVENT_HEADER
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.errors import RetryLaterError
from segmentstore.controller.metadata.batch import Batch
from segmentstore.controller.settings import ControllerSettings, WatermarkSettings
from segmentstore.controller.watermarks import (
    MARK_ATTRIBUTE,
    MarkedWriter,
    joined_cut,
    participants,
)
from segmentstore.controller.writer_marks import mark_key
from tests.controller.far_tables import FarTables, turns
from tests.controller.transactions.feature_cluster import FeatureCluster
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

Note = api.TimestampResponse.Status
Remove = api.RemoveWriterResponse.Status

MARKS = "s/_MARKa/0.#epoch.0"
LEFT = SegmentWithRange(0, 0.0, 0.5)
RIGHT = SegmentWithRange(1, 0.5, 1.0)


async def cluster_with(
    *, settings: WatermarkSettings | None = None, timeout_ms: int = 0
) -> FeatureCluster:
    cluster = FeatureCluster(
        settings=ControllerSettings(watermarks=settings or WatermarkSettings())
    )
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.streams.create(
        "s",
        "a",
        StreamConfigurationRecord(
            scaling=ScalingPolicy(segment_count_min=2), timestamp_aggregation_timeout_ms=timeout_ms
        ),
    )
    return cluster


async def note(
    cluster: FeatureCluster, writer: str, time: int, cut: dict[int, int]
) -> api.TimestampResponse.Status:
    answer = await cluster.components.writer_marks.note(
        api.TimestampFromWriter(
            writer=writer,
            timestamp=time,
            position=api.StreamCut(streamInfo=cluster.info("a"), cut=cut),
        )
    )
    return answer.result


async def remove(cluster: FeatureCluster, writer: str) -> api.RemoveWriterResponse.Status:
    answer = await cluster.components.writer_marks.remove(
        api.RemoveWriterRequest(writer=writer, stream=cluster.info("a"))
    )
    return answer.result


def written(cluster: FeatureCluster, marks: str = MARKS) -> list[Watermark]:
    content = cluster.memory_segments.content(marks)
    found: list[Watermark] = []
    position = 0
    while position < len(content):
        kind, length = EVENT_HEADER.unpack_from(content, position)
        assert kind == 0
        position += EVENT_HEADER.size
        found.append(Watermark.decode(content[position : position + length]))
        position += length
    return found


async def test_a_watermark_has_the_lowest_time_and_the_latest_positions() -> None:
    cluster = await cluster_with()
    assert await note(cluster, "w1", 100, {0: 10, 1: 40}) == Note.SUCCESS
    assert await note(cluster, "w2", 130, {0: 30, 1: 20}) == Note.SUCCESS
    await cluster.components.watermarks.look_at_all()
    assert written(cluster) == [Watermark(100, 130, {LEFT: 30, RIGHT: 40}, "s", "a")]


async def test_no_watermark_is_written_before_every_writer_has_gone_on() -> None:
    cluster = await cluster_with()
    await note(cluster, "w1", 100, {0: 10, 1: 40})
    await note(cluster, "w2", 130, {0: 30, 1: 20})
    await cluster.components.watermarks.look_at_all()
    await note(cluster, "w2", 200, {0: 50, 1: 50})
    await cluster.components.watermarks.look_at_all()
    assert len(written(cluster)) == 1
    await note(cluster, "w1", 150, {0: 20, 1: 50})
    await cluster.components.watermarks.look_at_all()
    assert written(cluster)[1:] == [Watermark(150, 200, {LEFT: 50, RIGHT: 50}, "s", "a")]


async def test_nobody_waits_for_a_writer_that_was_closed() -> None:
    cluster = await cluster_with()
    await note(cluster, "w1", 100, {0: 10, 1: 10})
    await note(cluster, "w2", 100, {0: 10, 1: 10})
    await cluster.components.watermarks.look_at_all()
    assert await remove(cluster, "w1") == Remove.SUCCESS
    assert await remove(cluster, "w3") == Remove.UNKNOWN_WRITER
    await note(cluster, "w2", 200, {0: 20, 1: 20})
    await cluster.components.watermarks.look_at_all()
    assert [each.lower_time for each in written(cluster)] == [100, 200]
    assert await remove(cluster, "w1") == Remove.UNKNOWN_WRITER


async def test_times_and_positions_do_not_go_back() -> None:
    cluster = await cluster_with()
    assert await note(cluster, "w", 100, {0: 10, 1: 10}) == Note.SUCCESS
    assert await note(cluster, "w", 100, {0: 10, 1: 10}) == Note.SUCCESS
    assert await note(cluster, "w", 99, {0: 20, 1: 20}) == Note.INVALID_TIME
    assert await note(cluster, "w", 101, {0: 9, 1: 20}) == Note.INVALID_POSITION
    assert await note(cluster, "w", 101, {5: 9}) == Note.INVALID_POSITION


@pytest.mark.simulation
def test_a_silent_writer_is_waited_for_as_long_as_the_stream_says() -> None:
    async def main(loop: SimLoop) -> None:
        settings = WatermarkSettings(interval_seconds=1.0)
        cluster = await cluster_with(settings=settings, timeout_ms=20_000)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.watermarks.run())
            await note(cluster, "w1", 100, {0: 10, 1: 10})
            await note(cluster, "w2", 100, {0: 10, 1: 10})
            await asyncio.sleep(2)
            await note(cluster, "w2", 200, {0: 20, 1: 20})
            await asyncio.sleep(15)
            assert [each.lower_time for each in written(cluster)] == [100]
            await asyncio.sleep(15)
            assert [each.lower_time for each in written(cluster)] == [100, 200]
            assert await note(cluster, "w1", 300, {0: 10, 1: 30}) == Note.SUCCESS
            task.cancel()

    run_simulation(1, main)


async def test_the_next_controller_goes_on_behind_the_last_watermark() -> None:
    cluster = await cluster_with()
    await note(cluster, "w", 100, {0: 10, 1: 10})
    await cluster.components.watermarks.look_at_all()
    await cluster.restart()
    await cluster.components.watermarks.look_at_all()
    assert len(written(cluster)) == 1
    await note(cluster, "w", 110, {0: 20, 1: 10})
    await cluster.components.watermarks.look_at_all()
    assert [each.lower_time for each in written(cluster)] == [100, 110]


async def test_a_position_across_a_scale_is_filled_with_the_new_segments() -> None:
    cluster = await cluster_with()
    await note(cluster, "old", 100, {0: 10, 1: 10})
    await cluster.scale("a", [(0.0, 0.25), (0.25, 1.0)])
    first, second = await cluster.current("a")
    await note(cluster, "new", 120, {first: 7, 1: 30})
    await cluster.components.watermarks.look_at_all()
    [watermark] = written(cluster)
    assert watermark.cut == {
        SegmentWithRange(first, 0.0, 0.25): 7,
        SegmentWithRange(second, 0.25, 1.0): 0,
    }


async def test_the_mark_follows_two_watermarks_behind_and_the_segment_stays_short() -> None:
    cluster = await cluster_with(settings=WatermarkSettings(watermarks_kept=5))
    for number in range(1, 30):
        await note(cluster, "w", number, {0: number, 1: number})
        await cluster.components.watermarks.look_at_all()
    attributes = await cluster.memory_segments.attributes(MARKS)
    event_bytes = len(written(cluster)[0].encode_event())
    assert attributes[MARK_ATTRIBUTE] == 26 * event_bytes
    start = (await cluster.memory_segments.info(MARKS)).start_offset
    assert 29 - 10 <= start / event_bytes <= 29 - 5
    await cluster.restart()
    await note(cluster, "w", 30, {0: 30, 1: 30})
    await cluster.components.watermarks.look_at_all()
    assert written(cluster)[-1].lower_time == 30


async def test_a_commit_brings_its_writers_time_along() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        begun = await cluster.begin("a")
        await cluster.write("a", begun, [b"one", b"two"])
        await cluster.commit("a", begun.txnId, writer="w", timestamp=77)
        await cluster.settled("a")
    await cluster.components.watermarks.look_at_all()
    assert written(cluster) == [Watermark(77, 77, {LEFT: 11, RIGHT: 11}, "s", "a")]


def mark(time: int, *, alive: bool = True) -> WriterMarkRecord:
    return WriterMarkRecord(time=time, alive=alive, position={})


def test_writers_take_part_are_waited_for_or_forgotten() -> None:
    writers = [
        MarkedWriter("ahead", mark(11), 0.0),
        MarkedWriter("behind", mark(10), 5.0),
        MarkedWriter("silent", mark(10), 60.0),
        MarkedWriter("closed", mark(10, alive=False), 0.0),
        MarkedWriter("closed ahead", mark(12, alive=False), 0.0),
    ]
    sorted_ = participants(writers, last_lower_time=10, silent_seconds_max=60.0)
    assert [each.name for each in sorted_.taking_part] == ["ahead", "closed ahead"]
    assert list(sorted_.waited_for) == ["behind"]
    assert [each.name for each in sorted_.forgotten] == ["silent", "closed"]
    assert not sorted_.is_due
    first = participants(writers, last_lower_time=None, silent_seconds_max=60.0)
    assert first.is_due
    assert not participants([], last_lower_time=None, silent_seconds_max=60.0).is_due


def test_a_joined_cut_never_goes_back() -> None:
    before = {LEFT: 50, RIGHT: 5}
    assert joined_cut([{LEFT: 10, RIGHT: 30}], before=before, newest=[LEFT, RIGHT]) == {
        LEFT: 50,
        RIGHT: 30,
    }
    assert joined_cut([{RIGHT: 30}], before=None, newest=[LEFT, RIGHT]) == {LEFT: 0, RIGHT: 30}


async def test_a_start_does_not_note_the_times_of_earlier_commits_again() -> None:
    """A writer that was closed and forgotten came back, and its stream waited for it."""
    cluster = await cluster_with()
    async with cluster.finishing():
        begun = await cluster.begin("a")
        await cluster.write("a", begun, [b"one", b"two"])
        await cluster.commit("a", begun.txnId, writer="w", timestamp=77)
        await cluster.settled("a")
    await cluster.components.watermarks.look_at_all()
    await remove(cluster, "w")
    await cluster.components.watermarks.look_at_all()
    await cluster.restart()
    assert await cluster.state("a", begun.txnId) == api.TxnState.State.COMMITTED
    assert cluster.components.pending_times.take() == []


async def test_a_writer_that_is_new_does_not_read_the_marks_of_all_others() -> None:
    cluster = await cluster_with(settings=WatermarkSettings(writers_per_stream_max=40))
    reads: list[int] = []
    for number in range(40):
        before = cluster.tables._plan.keys_read
        assert await note(cluster, f"w{number:02}", number, {0: 0, 1: 0}) == Note.SUCCESS
        reads.append(cluster.tables._plan.keys_read - before)
    assert max(reads[1:]) <= reads[1] + 2
    with pytest.raises(RetryLaterError):
        await note(cluster, "one too many", 40, {0: 0, 1: 0})
    # Some left meanwhile: there is room again.
    for number in range(3):
        history = await cluster.streams.operations.history("s", "a")
        await cluster.components.writer_marks.forget(history, f"w{number:02}")
    for number in range(3):
        assert await note(cluster, f"later{number}", 50, {0: 0, 1: 0}) == Note.SUCCESS
    with pytest.raises(RetryLaterError):
        await note(cluster, "one too many", 50, {0: 0, 1: 0})


async def far_cluster(random: Random) -> FeatureCluster:
    """As `cluster_with`; its tables are on other nodes."""
    cluster = FeatureCluster()
    cluster.memory_tables = FarTables(random)
    cluster._build()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=2)
    return cluster


@pytest.mark.parametrize("seed", range(24))
async def test_a_writer_that_comes_while_the_last_one_is_forgotten_gets_its_watermarks(
    seed: int,
) -> None:
    random = Random(seed)
    cluster = await far_cluster(random)
    await note(cluster, "w1", 1, {0: 1, 1: 1})
    await cluster.components.watermarks.look_at_all()
    await remove(cluster, "w1")
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.components.watermarks.look_at_all())
        await turns(random.randint(0, 200))
        assert await note(cluster, "w2", 100, {0: 10, 1: 40}) == Note.SUCCESS
    await cluster.components.watermarks.look_at_all()
    assert [each.lower_time for each in written(cluster)] == [1, 100]


@pytest.mark.parametrize("seed", range(24))
async def test_a_note_beside_a_deletion_leaves_nothing_to_the_next_stream_of_the_name(
    seed: int,
) -> None:
    random = Random(seed)
    cluster = await far_cluster(random)
    await note(cluster, "w1", 1, {0: 1, 1: 1})
    await cluster.streams.seal("s", "a")
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.streams.delete("s", "a"))
        await turns(random.randint(0, 60))
        await note(cluster, "w2", 100, {0: 10, 1: 40})
    await cluster.create("a", segments=2)
    cut = dict.fromkeys(await cluster.current("a"), 1)
    assert await note(cluster, "w2", 7, cut) == Note.SUCCESS
    await cluster.components.watermarks.look_at_all()
    marks = await cluster.streams.operations.history("s", "_MARKa")
    name = marks.segment_name((await marks.epoch(0)).segments[0].segment_id)
    assert [each.lower_time for each in written(cluster, name)] == [7]


@pytest.mark.parametrize("writer", ["", "w" * 513, "ö" * 257])
async def test_what_is_no_name_for_a_writer_is_refused(writer: str) -> None:
    cluster = await cluster_with()
    with pytest.raises(InvalidRequestError):
        await note(cluster, writer, 1, {0: 1, 1: 1})


async def test_a_stream_whose_writer_has_no_name_can_be_deleted() -> None:
    cluster = await cluster_with()
    history = await cluster.streams.operations.history("s", "a")
    mark = WriterMarkRecord(time=1, alive=True, position={0: 1})
    batch = Batch()
    batch.put(mark_key("a", ""), mark, await history.table.read(mark_key("a", "")))
    batch.list_name("marks/a", "")
    batch.list_name("marked", "a")
    await history.table.commit(batch)
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    await cluster.create("a")
    cut = dict.fromkeys(await cluster.current("a"), 1)
    assert await note(cluster, "w", 1, cut) == Note.SUCCESS


async def test_writers_with_long_names_leave_room_for_others() -> None:
    cluster = await cluster_with()
    for number in range(300):
        await note(cluster, f"{number:04}".ljust(512, "w"), 1, {0: 1, 1: 1})
    assert await note(cluster, "0000", 1, {0: 1, 1: 1}) == Note.SUCCESS
