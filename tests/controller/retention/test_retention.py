"""Streams lose their oldest bytes by age, by size, and not before subscribers have read them."""

import asyncio
from random import Random

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import (
    RetentionCutsRecord,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfigurationRecord,
)
from segmentstore.controller.retention import cuts_key
from segmentstore.controller.settings import ControllerSettings, RetentionSettings
from segmentstore.controller.streams.stream_cuts import CutWithRanges
from segmentstore.controller.streams.stream_history import StreamHistory
from tests.controller.far_tables import FarTables, turns
from tests.controller.transactions.feature_cluster import FeatureCluster
from tests.sim.clock import SimulatedWallClock
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

SETTINGS = RetentionSettings(
    interval_seconds=10.0, clock_difference_seconds_max=2.0, clock_settle_seconds=60.0
)
EVENT_BYTES = 108


class RetentionCluster(FeatureCluster):
    """One stream `a`, one event a second."""

    def __init__(self, loop: SimLoop, settings: RetentionSettings = SETTINGS) -> None:
        self.wall = SimulatedWallClock(loop)
        super().__init__(settings=ControllerSettings(retention=settings))

    def _build(self) -> None:
        self.clock = self.wall  # type: ignore[assignment]  # the base class moves its clock by hand
        super()._build()

    async def begin_with(self, policy: RetentionPolicy, *, segments: int = 1) -> None:
        await self.start()
        await self.scopes.create("s")
        await self.streams.create(
            "s",
            "a",
            StreamConfigurationRecord(
                retention=policy, scaling=ScalingPolicy(segment_count_min=segments)
            ),
        )

    async def fill(self, *, seconds: int) -> None:
        for second in range(seconds):
            current = await self.current("a")
            await self.append_event("a", current[second % len(current)], b"x" * 100)
            await asyncio.sleep(1)

    async def head(self) -> dict[int, int]:
        history = await self.streams.operations.history("s", "a")
        return await history.head()

    async def stored(self, stream: str = "a") -> int:
        """Bytes between the head and the end."""
        total = 0
        for name in self.memory_segments.names():
            if name.startswith(f"s/{stream}/"):
                info = await self.memory_segments.info(name)
                total += info.length - info.start_offset
        return total


def by_time(seconds: int, *, at_most: int = 0) -> RetentionPolicy:
    return RetentionPolicy(type=RetentionType.TIME, limit=seconds * 1000, maximum=at_most * 1000)


def by_size(size: int, *, at_most: int = 0) -> RetentionPolicy:
    return RetentionPolicy(type=RetentionType.SIZE, limit=size, maximum=at_most)


def test_bytes_older_than_the_policy_go_and_younger_ones_stay() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_time(100), segments=2)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=400)
            # A grain of cuts and of passes more than the policy asks for, never less.
            assert 100 * EVENT_BYTES <= await cluster.stored() <= 122 * EVENT_BYTES
            await asyncio.sleep(200)
            assert await cluster.stored() == 0
            task.cancel()
        await cluster.check()

    run_simulation(1, main)


def test_bytes_beyond_the_size_of_the_policy_go_also_across_scales() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_size(50 * EVENT_BYTES))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=100)
            assert 50 * EVENT_BYTES <= await cluster.stored() <= 72 * EVENT_BYTES
            await cluster.scale("a", [(0.0, 0.5), (0.5, 1.0)])
            await cluster.fill(seconds=100)
            assert 50 * EVENT_BYTES <= await cluster.stored() <= 72 * EVENT_BYTES
            assert "s/a/0.#epoch.0" not in cluster.memory_segments.names()
            task.cancel()
        await cluster.check()

    run_simulation(1, main)


def test_a_stream_without_a_policy_keeps_everything() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(RetentionPolicy())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=300)
            task.cancel()
        assert await cluster.stored() == 300 * EVENT_BYTES

    run_simulation(1, main)


def test_h77_a_wall_clock_that_jumps_stops_deletion_by_age_until_it_is_settled() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_time(1_000))
        watch = cluster.components.clock_watch
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=100)
            assert watch.complaint() == ""
            cluster.wall.step(365 * 86_400_000)
            await asyncio.sleep(30)
            assert "jumped" in watch.complaint()
            assert await cluster.stored() == 100 * EVENT_BYTES
            cluster.wall.step(-365 * 86_400_000)
            await asyncio.sleep(5)
            assert watch.complaint() == ""
            await asyncio.sleep(500)
            assert await cluster.stored() == 100 * EVENT_BYTES
            # A jump that lasts is the truth in the end.
            cluster.wall.step(365 * 86_400_000)
            await asyncio.sleep(100)
            assert watch.complaint() == ""
            assert await cluster.stored() == 0
            task.cancel()

    run_simulation(1, main)


def test_h77_a_controller_that_starts_lets_time_settle_before_it_deletes_by_age() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_time(100))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=80)
            task.cancel()
        cluster.wall.step(365 * 86_400_000)
        await cluster.restart()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await asyncio.sleep(55)
            assert "started" in cluster.components.clock_watch.complaint()
            assert await cluster.stored() == 80 * EVENT_BYTES
            task.cancel()

    run_simulation(1, main)


@pytest.mark.parametrize(
    ("policy", "complains"),
    [
        (RetentionPolicy(), False),
        (by_size(1_000), False),
        (by_time(100), True),
    ],
)
def test_that_deletion_by_age_waits_is_told_only_where_a_stream_has_such_a_policy(
    policy: RetentionPolicy, complains: bool
) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(policy)
        retention = cluster.components.retention
        async with asyncio.TaskGroup() as group:
            task = group.create_task(retention.run())
            await asyncio.sleep(5)
            assert ("started" in retention.complaint()) is complains
            await asyncio.sleep(SETTINGS.clock_settle_seconds)
            assert retention.complaint() == ""
            # A stream that comes later counts from the next pass on.
            await cluster.streams.create(
                "s", "b", StreamConfigurationRecord(retention=by_time(1_000))
            )
            await asyncio.sleep(2 * SETTINGS.interval_seconds)
            cluster.wall.step(86_400_000)
            await asyncio.sleep(2)
            assert "jumped" in retention.complaint()
            task.cancel()

    run_simulation(1, main)


def test_what_a_subscriber_has_not_read_stays_up_to_the_policys_maximum() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_size(50 * EVENT_BYTES, at_most=200 * EVENT_BYTES))
        await cluster.components.reader_groups.create(
            api.ReaderGroupConfiguration(
                scope="s",
                readerGroupName="g",
                readerGroupId="id",
                retentionType=1,
                startingStreamCuts=[api.StreamCut(streamInfo=cluster.info("a"))],
            )
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=150)
            assert await cluster.stored() == 150 * EVENT_BYTES
            answer = await cluster.components.subscribers.update_cut(
                api.SubscriberStreamCut(
                    subscriber="s/g",
                    readerGroupId="id",
                    streamCut=api.StreamCut(
                        streamInfo=cluster.info("a"), cut={0: 30 * EVENT_BYTES}
                    ),
                )
            )
            assert answer.status == api.UpdateSubscriberStatus.Status.SUCCESS
            await asyncio.sleep(20)
            assert await cluster.head() == {0: 30 * EVENT_BYTES}
            await cluster.fill(seconds=200)
            assert 200 * EVENT_BYTES <= await cluster.stored() <= 222 * EVENT_BYTES
            task.cancel()

    run_simulation(1, main)


class Group:
    """A group as its readers know it: where it stands, in which generation."""

    def __init__(self, cluster: RetentionCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.generation = 0
        self.position = 0
        """In bytes; everything from here on it has yet to read."""

    def config(self, position: int) -> api.ReaderGroupConfiguration:
        stream = self.cluster.info("a")
        return api.ReaderGroupConfiguration(
            scope="s",
            readerGroupName=self.name,
            readerGroupId="id",
            retentionType=1,
            generation=self.generation,
            startingStreamCuts=[api.StreamCut(streamInfo=stream, cut={0: position})],
        )

    async def reset(self, position: int) -> None:
        """What resetReaderGroup of the clients does."""
        groups = self.cluster.components.reader_groups
        answer = await groups.update(self.config(position))
        assert answer.status == api.UpdateReaderGroupResponse.Status.SUCCESS
        assert answer.generation == self.generation + 1
        self.generation, self.position = answer.generation, position

    async def consume(self, position: int, *, generation: int) -> api.UpdateSubscriberStatus.Status:
        answer = await self.cluster.components.subscribers.update_cut(
            api.SubscriberStreamCut(
                subscriber=f"s/{self.name}",
                readerGroupId="id",
                generation=generation,
                streamCut=api.StreamCut(streamInfo=self.cluster.info("a"), cut={0: position}),
            )
        )
        return answer.status


@pytest.mark.parametrize("seed", range(20))
def test_a_group_that_was_reset_reads_all_that_it_has_yet_to_read(seed: int) -> None:
    """Random lives of two groups: no byte goes that one of them has yet to read, and what nobody needs goes."""

    async def main(loop: SimLoop) -> None:
        random = Random(seed)
        status = api.UpdateSubscriberStatus.Status
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_size(5 * EVENT_BYTES))
        groups = [Group(cluster, name) for name in ("g", "h")]
        for group in groups:
            await cluster.components.reader_groups.create(group.config(0))
        for _ in range(40):
            await cluster.fill(seconds=random.randrange(1, 15))
            (head,) = (await cluster.head()).values()
            end = head + await cluster.stored()
            group = random.choice(groups)
            place = EVENT_BYTES * random.randrange(head // EVENT_BYTES, end // EVENT_BYTES + 1)
            match random.randrange(3):
                case 0:
                    await group.reset(place)
                case 1 if group.generation:
                    old = await group.consume(end, generation=group.generation - 1)
                    assert old == status.GENERATION_MISMATCH
                case _:
                    answer = await group.consume(place, generation=group.generation)
                    # Retention may have passed a reset group's start, but nothing that it has consumed since.
                    if answer == status.SUCCESS:
                        group.position = place
                    else:
                        assert answer == status.STREAM_CUT_NOT_VALID
                        assert place < group.position
            await cluster.components.retention.look_at_all()
            (head,) = (await cluster.head()).values()
            assert head <= min(each.position for each in groups), "somebody has yet to read it"
        for group in groups:
            (head,) = (await cluster.head()).values()
            await group.reset(head + await cluster.stored())
        await cluster.fill(seconds=30)
        for _ in range(2):
            await cluster.components.retention.look_at_all()
            await cluster.fill(seconds=6)
        assert (await cluster.head())[0] >= min(each.position for each in groups)

    run_simulation(seed, main)


@pytest.mark.parametrize("turn_of", ["a", "b"])
def test_what_an_updated_policy_keeps_stays_though_the_update_comes_in_the_middle_of_a_pass(
    turn_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`b` is updated while the pass looks at `a`, which was read in one page with it, or at `b` itself."""

    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_size(10))
        small = StreamConfigurationRecord(retention=by_size(10))
        await cluster.streams.create("s", "b", small)
        look = cluster.components.retention.look_at_all
        await cluster.append("b", 0, 100)
        await look()
        await cluster.append("b", 0, 100)
        lowest_cut = cluster.components.subscribers.lowest_cut

        async def update_first(history: StreamHistory) -> CutWithRanges | None:
            if history.stream == turn_of:
                large = StreamConfigurationRecord(retention=by_size(10_000))
                await cluster.streams.update("s", "b", large)
            return await lowest_cut(history)

        with monkeypatch.context() as patched:
            patched.setattr(cluster.components.subscribers, "lowest_cut", update_first)
            await look()
        assert await cluster.stored("b") == 200
        # Its cuts are still there for the policies to come.
        await cluster.streams.update("s", "b", small)
        await look()
        assert await cluster.stored("b") == 100

    run_simulation(1, main)


def test_cuts_are_bounded_and_get_coarser_with_age() -> None:
    async def main(loop: SimLoop) -> None:
        settings = RetentionSettings(
            interval_seconds=1.0, cuts_per_stream_max=16, clock_settle_seconds=1.0
        )
        cluster = RetentionCluster(loop, settings)
        await cluster.begin_with(by_time(10_000))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=500)
            task.cancel()
        history = await cluster.streams.operations.history("s", "a")
        stored = (await history.table.read(cuts_key("a"))).record
        assert stored is not None
        record = RetentionCutsRecord.decode(stored.encode())
        record.check()
        assert 8 <= len(record.cuts) <= 16
        gaps = [
            later.time_ms - earlier.time_ms
            for earlier, later in zip(record.cuts, record.cuts[1:], strict=False)
        ]
        assert gaps[0] > gaps[-1]

    run_simulation(1, main)


def test_a_deleted_stream_leaves_no_cuts_for_its_successor() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = RetentionCluster(loop)
        await cluster.begin_with(by_size(10))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.retention.run())
            await cluster.fill(seconds=50)
            await cluster.streams.seal("s", "a")
            await cluster.streams.delete("s", "a")
            await cluster.create("a")
            history = await cluster.streams.operations.history("s", "a")
            assert (await history.table.read(cuts_key("a"))).record is None
            task.cancel()

    run_simulation(1, main)


@pytest.mark.parametrize("seed", range(2))
def test_a_cut_taken_beside_a_deletion_holds_up_nothing_in_the_next_stream_of_the_name(
    seed: int,
) -> None:
    # The first look at a stream that was scaled often takes as long as its deletion, where tables are on other nodes.
    async def main(loop: SimLoop) -> None:
        random = Random(seed)
        cluster = RetentionCluster(loop)
        cluster.memory_tables = FarTables(random)
        cluster._build()
        await cluster.begin_with(by_size(10))
        for _ in range(12):
            await cluster.streams.scaling.scale(
                "s", "a", sealed=await cluster.current("a"), ranges=[(0.0, 0.5), (0.5, 1.0)]
            )
        configuration = await cluster.streams.queries.configuration("s", "a")
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.components.retention.look_at_all())
            await turns(random.randint(0, 100))
            await cluster.streams.seal("s", "a")
            await cluster.streams.delete("s", "a")
        await cluster.streams.create("s", "a", configuration)
        for _ in range(3):
            await cluster.append("a", (await cluster.current("a"))[0], 100)
            await cluster.components.retention.look_at_all()
        assert await cluster.stored() == 100

    run_simulation(seed, main)
