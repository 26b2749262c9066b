"""What streams are and become: shapes, order of steps, heads, names that are never used twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import SegmentNumberRecord
from segmentstore.codec.controller_records.stream_records import (
    EpochRecord,
    ScalingPolicy,
    ScalingType,
    StreamConfigurationRecord,
)
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.errors import (
    EpochNotFoundError,
    PreconditionError,
    RetryLaterError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    StreamSegmentNotFoundError,
)
from segmentstore.controller.metadata.batch import RecordKey, Versioned
from segmentstore.controller.metadata.metadata_table import MetadataTable
from segmentstore.controller.settings import StreamSettings
from segmentstore.controller.streams.key_space import split_range
from segmentstore.controller.streams.stream_history import EPOCHS_PER_READ
from tests.controller.cluster import Cluster
from tests.controller.crashing_doors import ProcessDiedError

EPOCH = 1 << 32

Item = TypeVar("Item")


async def cluster_with(stream: str, *, segments: int = 1) -> Cluster:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create(stream, segments=segments)
    return cluster


async def scale(
    cluster: Cluster, sealed: list[int], ranges: list[tuple[float, float]], stream: str = "a"
) -> None:
    await cluster.streams.scaling.scale("s", stream, sealed=sealed, ranges=ranges)


def by_events(*, segment_count_min: int) -> ScalingPolicy:
    return ScalingPolicy(
        type=ScalingType.EVENTS_PER_SECOND,
        target_rate=1000,
        scale_factor=2,
        segment_count_min=segment_count_min,
    )


async def successors(cluster: Cluster, segment_id: int) -> dict[int, list[int]]:
    found = await cluster.streams.queries.successors("s", "a", segment_id)
    return {each.segment.segment_id: list(each.predecessors) for each in found}


async def test_a_new_stream_has_even_segments_of_epoch_0_and_a_mark_stream() -> None:
    cluster = await cluster_with("a", segments=4)
    segments = await cluster.streams.queries.current_segments("s", "a")
    assert [(each.segment_id, each.low, each.high) for each in segments] == [
        (0, 0.0, 0.25),
        (1, 0.25, 0.5),
        (2, 0.5, 0.75),
        (3, 0.75, 1.0),
    ]
    assert await cluster.current("_MARKa") == [0]
    assert cluster.memory_segments.names() == [
        "s/_MARKa/0.#epoch.0",
        *(f"s/a/{number}.#epoch.0" for number in range(4)),
    ]
    await cluster.check()


async def test_h63_of_concurrent_creates_exactly_one_wins() -> None:
    cluster = await cluster_with("b")
    outcomes = await asyncio.gather(
        *(cluster.create("a", segments=2) for _ in range(8)), return_exceptions=True
    )
    refused = [each for each in outcomes if isinstance(each, StreamExistsError)]
    assert len(refused) == 7
    await cluster.check()


async def test_a_stream_needs_its_scope_and_sane_numbers() -> None:
    cluster = await cluster_with("a")
    with pytest.raises(ScopeNotFoundError):
        await cluster.streams.create("t", "a", StreamConfigurationRecord())
    for count in (0, StreamSettings().segments_per_stream_max + 1):
        with pytest.raises(InvalidRequestError):
            await cluster.create("b", segments=count)
    with pytest.raises(StreamNotFoundError):
        await cluster.current("b")
    assert not await cluster.streams.queries.exists("t", "a")


async def test_a_stream_whose_segments_could_not_be_named_is_refused_at_once() -> None:
    cluster = await cluster_with("a")
    await cluster.scopes.create("s" * 250)
    with pytest.raises(InvalidRequestError):
        await cluster.streams.create("s" * 250, "a" * 250, StreamConfigurationRecord())
    for length in range(140, 160):
        with suppress(InvalidRequestError):
            await cluster.streams.create("s" * 250, "a" * length, StreamConfigurationRecord())
    names = (await cluster.scopes.streams("s" * 250, after="", count=100)).names
    assert {150, 151} <= {len(name) for name in names}
    assert 159 not in {len(name) for name in names}
    assert max(map(len, cluster.memory_segments.names())) <= 512
    assert cluster.streams.operations.unfinished_count == 0
    await cluster.check()


async def test_a_split_gives_each_successor_its_predecessor_and_keeps_the_old_epoch() -> None:
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [1], [(0.5, 0.75), (0.75, 1.0)])
    assert await cluster.current("a") == [0, EPOCH | 2, EPOCH | 3]
    assert await successors(cluster, 1) == {EPOCH | 2: [1], EPOCH | 3: [1]}
    old = await cluster.streams.queries.epoch_segments("s", "a", 0)
    assert [each.segment_id for each in old] == [0, 1]
    await cluster.check()


async def test_a_merge_lists_all_its_predecessors() -> None:
    cluster = await cluster_with("a", segments=3)
    await scale(cluster, [1, 2], [(1 / 3, 1.0)])
    assert await successors(cluster, 1) == {EPOCH | 3: [1, 2]}
    assert await successors(cluster, 2) == {EPOCH | 3: [1, 2]}


async def test_a_split_and_merge_at_once_links_only_what_overlaps() -> None:
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [0, 1], [(0.0, 0.25), (0.25, 1.0)])
    assert await successors(cluster, 0) == {EPOCH | 2: [0], EPOCH | 3: [0, 1]}
    assert await successors(cluster, 1) == {EPOCH | 3: [0, 1]}
    await cluster.check()


async def test_bounds_that_differ_by_rounding_are_made_equal() -> None:
    cluster = await cluster_with("a", segments=3)
    await scale(cluster, [0, 1], [(0.0, 0.2), (0.2000001, 0.66666)])
    segments = await cluster.streams.queries.current_segments("s", "a")
    assert [each.high for each in segments] == [0.2, 2 / 3, 1.0]
    await cluster.check()


def note_keys_per_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many records each look at a table is, from now on."""
    counts: list[int] = []
    read_many = MetadataTable.read_many

    async def counted(
        table: MetadataTable, keys: Sequence[RecordKey[EpochRecord]]
    ) -> Sequence[Versioned[EpochRecord]]:
        counts.append(len(keys))
        return await read_many(table, keys)

    monkeypatch.setattr(MetadataTable, "read_many", counted)
    return counts


async def test_a_cut_with_segments_of_very_many_epochs_is_refused_by_the_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await cluster_with("a")
    cut = {epoch * EPOCH + epoch: 0 for epoch in range(10_000)}
    counts = note_keys_per_read(monkeypatch)
    with pytest.raises(StreamSegmentNotFoundError):
        await cluster.streams.truncation.truncate("s", "a", cut)
    assert not await cluster.streams.queries.is_cut_valid("s", "a", cut)
    assert sum(counts) < 100


async def test_segments_of_many_epochs_are_found_with_a_few_epochs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await cluster_with("a")
    ids = await cluster.current("a")
    for _ in range(100):
        await scale(cluster, ids[-1:], [(0.0, 1.0)])
        ids += await cluster.current("a")
    history = await cluster.streams.operations.history("s", "a")
    counts = note_keys_per_read(monkeypatch)
    found = await history.segments_of(reversed(ids))
    assert [each.segment_id for each in found] == ids
    assert max(counts) <= EPOCHS_PER_READ


class Unread(list[Item]):
    """Nothing of it is looked at but its length."""

    def __iter__(self) -> Iterator[Item]:
        raise AssertionError("looked at one by one")


@pytest.mark.parametrize(("sealed", "ranges"), [(1, 1001), (1001, 1), (100_000, 100_000)])
async def test_a_scale_of_more_segments_than_a_stream_has_is_refused_by_their_number(
    sealed: int, ranges: int
) -> None:
    cluster = await cluster_with("a")
    with pytest.raises(PreconditionError):
        await cluster.streams.scaling.scale(
            "s",
            "a",
            sealed=Unread(range(sealed)),
            ranges=Unread(split_range(0.0, 1.0, ranges)),
        )
    assert len(await cluster.current("a")) == 1


@pytest.mark.parametrize(
    ("sealed", "ranges"),
    [
        ([], [(0.0, 1.0)]),
        ([0], []),
        ([7], [(0.0, 0.5)]),
        ([0, 0], [(0.0, 0.5)]),
        ([0], [(0.0, 0.4)]),
        ([0], [(0.0, 0.6)]),
        ([0], [(0.1, 0.5)]),
        ([0], [(0.0, 0.2), (0.3, 0.5)]),
        ([0], [(0.0, 0.3), (0.2, 0.5)]),
        ([0], [(0.0, 0.5), (0.5, 1.0)]),
        ([0], [(0.0, 0.0), (0.0, 0.5)]),
        ([0], [(0.0, float("nan")), (0.2, 0.5)]),
    ],
)
async def test_a_scale_that_does_not_fit_changes_nothing(
    sealed: list[int], ranges: list[tuple[float, float]]
) -> None:
    cluster = await cluster_with("a", segments=2)
    with pytest.raises(PreconditionError):
        await scale(cluster, sealed, ranges)
    assert await cluster.current("a") == [0, 1]
    await cluster.check()


async def test_h75_successors_are_known_before_the_first_segment_is_sealed() -> None:
    # The process dies before each seal in turn; whoever asks then must already find successors.
    for die_at in range(1, 30):
        cluster = await cluster_with("a", segments=2)
        cluster.plan.arm(die_at=die_at, behind=True)
        with suppress(ProcessDiedError):
            await scale(cluster, [0, 1], [(0.0, 0.3), (0.3, 1.0)])
        died = cluster.plan.dead
        sealed = [
            number
            for number in (0, 1)
            if (await cluster.memory_segments.info(f"s/a/{number}.#epoch.0")).sealed
        ]
        # The records as they are: asking for successors would resume the scale first.
        cluster.plan.dead = False
        history = await cluster.streams.operations.history("s", "a")
        for number, replaced in (await history.sealed(sealed)).items():
            assert replaced.record is not None, f"sealed without successors {number=} {die_at=}"
        if not died:
            return
    raise AssertionError("the scale never came to its end")


async def test_h75_no_successors_is_not_answered_while_the_stream_goes_on() -> None:
    cluster = await cluster_with("a", segments=2)
    with pytest.raises(RetryLaterError):
        await successors(cluster, 0)
    await cluster.streams.seal("s", "a")
    assert await successors(cluster, 0) == {}


async def test_h75_asking_during_a_scale_waits_for_the_answer() -> None:
    cluster = await cluster_with("a")
    scaling = asyncio.ensure_future(scale(cluster, [0], [(0.0, 0.5), (0.5, 1.0)]))
    await asyncio.sleep(0)
    assert await successors(cluster, 0) == {EPOCH | 1: [0], EPOCH | 2: [0]}
    await scaling


async def test_a_stream_whose_segments_its_client_sealed_has_no_successors() -> None:
    cluster = await cluster_with("a")
    await cluster.memory_segments.seal("s/a/0.#epoch.0")
    assert await successors(cluster, 0) == {}


async def test_unknown_segments_and_epochs_are_not_found() -> None:
    cluster = await cluster_with("a")
    for segment_id in (1, EPOCH, EPOCH | 7, -1):
        with pytest.raises(StreamSegmentNotFoundError):
            await successors(cluster, segment_id)
    for epoch in (-1, 1):
        with pytest.raises(EpochNotFoundError):
            await cluster.streams.queries.epoch_segments("s", "a", epoch)


async def test_a_sealed_stream_has_no_current_segments_and_refuses_changes() -> None:
    cluster = await cluster_with("a")
    await cluster.streams.seal("s", "a")
    await cluster.streams.seal("s", "a")
    assert await cluster.current("a") == []
    with pytest.raises(StreamSealedError):
        await scale(cluster, [0], [(0.0, 1.0)])
    with pytest.raises(StreamSealedError):
        await cluster.streams.truncation.truncate("s", "a", {0: 0})
    with pytest.raises(StreamSealedError):
        await cluster.streams.update("s", "a", StreamConfigurationRecord())
    await cluster.check()


async def test_sealing_enters_what_other_rooms_registered() -> None:
    cluster = await cluster_with("a")
    seen: list[str] = []

    @asynccontextmanager
    async def closing(scope: str, stream: str) -> AsyncIterator[None]:
        seen.append(f"close {scope}/{stream}")
        yield
        assert await cluster.current(stream) == []
        seen.append("open")

    cluster.streams.register_while_sealing(closing)
    await cluster.streams.seal("s", "a")
    await cluster.streams.seal("s", "a")
    assert seen == ["close s/a", "open"]


async def test_an_open_stream_is_not_deleted() -> None:
    cluster = await cluster_with("a")
    with pytest.raises(StreamNotSealedError):
        await cluster.streams.delete("s", "a")
    assert await cluster.current("a") == [0]


async def test_a_stream_created_again_uses_no_name_of_the_one_before() -> None:
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [0], [(0.0, 0.2), (0.2, 0.5)])
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    assert cluster.memory_segments.names() == []
    await cluster.restart()
    await cluster.create("a", segments=2)
    assert await cluster.current("a") == [4, 5]
    await cluster.check()
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    await cluster.scopes.delete("s")
    await cluster.scopes.create("s")
    await cluster.create("a")
    assert await cluster.current("a") == [6]


async def test_deleting_leaves_no_record_but_the_numbers() -> None:
    cluster = await cluster_with("a", segments=3)
    for _ in range(40):
        current = await cluster.current("a")
        await scale(cluster, current, [(0.0, 0.5), (0.5, 1.0)])
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    assert await keys_of_scope(cluster) == [
        "index/pending",
        "index/streams",
        "numbers",
        *sorted(record_keys.deleted_numbers(each) for each in ("a", "_MARKa")),
    ]


async def test_what_deleted_streams_leave_does_not_grow_with_their_count() -> None:
    """Their names may never come again, as those of reader groups that are made for one job each."""
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    for number in range(200):
        await cluster.create(f"a{number}")
        await cluster.streams.seal("s", f"a{number}")
        await cluster.streams.delete("s", f"a{number}")
    # 256 for the hashes of names, and the indexes.
    assert len(await keys_of_scope(cluster)) <= 260


async def test_a_name_that_an_earlier_version_noted_goes_on_behind_its_number() -> None:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    async with cluster.memory_tables.open_table("_system/_tables/s/1") as table:
        await table.update([TableEntry(b"number/a", SegmentNumberRecord(7).encode())])
    await cluster.create("a")
    await cluster.create("b")
    assert (await cluster.current("a"), await cluster.current("b")) == ([7], [0])


async def keys_of_scope(cluster: Cluster) -> list[str]:
    async with cluster.memory_tables.open_table("_system/_tables/s/1") as table:
        page = await table.read_keys(count=10_000)
    return sorted(key.key.decode() for key in page.keys)


async def test_tags_follow_the_configuration() -> None:
    cluster = await cluster_with("b")
    await cluster.create("a", tags=["x", "y/z"])
    await cluster.streams.update(
        "s",
        "a",
        StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=1), tags=("w", "y/z")),
    )
    for tag, names in (("x", []), ("y/z", ["a"]), ("w", ["a"])):
        page = await cluster.scopes.streams_with_tag("s", tag, after="", count=10)
        assert page.names == names
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    assert (await cluster.scopes.streams_with_tag("s", "w", after="", count=10)).names == []


@pytest.mark.parametrize(
    ("policy", "now"),
    [
        (ScalingPolicy(segment_count_min=3), [EPOCH | 2, EPOCH | 3, EPOCH | 4]),
        (ScalingPolicy(segment_count_min=1), [EPOCH | 2]),
        (ScalingPolicy(segment_count_min=2), [0, 1]),
        (by_events(segment_count_min=3), [EPOCH | 2, EPOCH | 3, EPOCH | 4]),
        (by_events(segment_count_min=1), [0, 1]),
    ],
    ids=["more", "fewer", "the same", "more at least", "fewer at least"],
)
async def test_a_stream_has_the_segments_that_its_new_policy_asks_for(
    policy: ScalingPolicy, now: list[int]
) -> None:
    cluster = await cluster_with("a", segments=2)
    await cluster.streams.update("s", "a", StreamConfigurationRecord(scaling=policy))
    segments = await cluster.streams.queries.current_segments("s", "a")
    assert [each.segment_id for each in segments] == now
    assert [(each.low, each.high) for each in segments] == split_range(0.0, 1.0, len(now))
    assert (await cluster.streams.queries.configuration("s", "a")).scaling == policy
    await cluster.check()


async def test_a_cancelled_operation_is_taken_up_again() -> None:
    cluster = await cluster_with("a")
    operations = cluster.streams.operations
    scaling = asyncio.ensure_future(scale(cluster, [0], [(0.0, 0.5), (0.5, 1.0)]))
    while "s/a/1.#epoch.1" not in cluster.memory_segments.names():
        await asyncio.sleep(0)
    scaling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scaling
    assert operations.unfinished_count == 1
    running = asyncio.ensure_future(operations.run())
    while operations.unfinished_count:
        await asyncio.sleep(0)
    # Whoever asks for the stream now waits for the one that finishes it.
    async with operations.exclusive("s", "a"):
        pass
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert await cluster.current("a") == [EPOCH | 1, EPOCH | 2]
    await cluster.check()


async def test_a_missing_segment_is_no_missing_stream() -> None:
    cluster = await cluster_with("a")
    await cluster.memory_segments.delete("s/a/0.#epoch.0")
    with pytest.raises(RetryLaterError):
        await cluster.streams.seal("s", "a")


async def test_a_stream_with_thousands_of_epochs_answers_as_fast_as_a_new_one() -> None:
    cluster = await cluster_with("a")
    for _ in range(1000):
        await scale(cluster, await cluster.current("a"), [(0.0, 1.0)])
    cluster.plan.keys_read = 0
    await cluster.current("a")
    await cluster.streams.queries.segments_at("s", "a", 0)
    await successors(cluster, 700 << 32 | 700)
    assert cluster.plan.keys_read < 20


async def test_streams_that_are_deleted_at_once_do_not_stand_in_each_others_way() -> None:
    """All of them raise the number above which the streams of a new scope of the name begin."""
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    names = [f"a{number}" for number in range(8)]
    for place, name in enumerate(names):
        await cluster.create(name, segments=1 + place)
        await cluster.streams.seal("s", name)
    await asyncio.gather(*(cluster.streams.delete("s", name) for name in names))
    await cluster.check()
