"""Topics of a store of several processes: the catalogue, leaders, deletion, and coordinators that change."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from segmentstore.codec.topic_files import RecordFileName
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.tables import TableEntry
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.topics import gone_topics
from segmentstore.topics.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    NotLeaderError,
    PartitionUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
    UnknownPartitionError,
)
from segmentstore.topics.gone_topics import GoneTopics
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE, TopicPartition
from segmentstore.topics.groups.errors import GroupError, GroupProblem
from segmentstore.topics.groups.group import JoinRequest, Protocol
from segmentstore.topics.groups.groups import OffsetToCommit
from segmentstore.topics.topic_records import (
    CATALOGUE_TABLE,
    TopicRecord,
    TopicState,
    encode_topic,
    partition_segment_name,
)
from segmentstore.topics.topics import Topics
from tests.topics.batches import batch_of, files_in, read_all
from tests.topics.several_processes import Processes
from tier2.object_stores.memory import MemoryObjectStore

NO_CONFIG: Final[Mapping[str, str]] = {}


async def started(
    store: Processes, *, record_files: Tier2RecordFiles | None = None
) -> list[Topics]:
    topics = [store.topics(each, record_files=record_files) for each in store.processes]
    for each in topics:
        await each.start()
    return topics


def segment_of(topics: Topics, name: str, index: int) -> str:
    found = topics.describe(name)
    assert found is not None
    return partition_segment_name(name, found.topic_id, index)


# --- the catalogue ----------------------------------------------------------------------------


async def test_a_topic_that_one_process_made_is_found_by_the_others() -> None:
    one, other = await started(Processes(2))
    await one.create("a", 3, {"retention.ms": "5000"})
    assert other.describe("a") is None
    found = await other.find("a")
    assert found is not None
    assert (found.partitions, found.given) == (3, {"retention.ms": "5000"})
    assert found == one.describe("a")


async def test_any_process_changes_a_topic_whatever_the_others_have_done_meanwhile() -> None:
    one, other = await started(Processes(2))
    await one.create("a", 1, NO_CONFIG)
    await other.add_partitions("a", 2)
    await one.alter("a", {"retention.ms": "1"})
    with pytest.raises(TopicExistsError):
        await other.create("a", 1, NO_CONFIG)
    await other.delete("a")
    with pytest.raises(TopicNotFoundError):
        await one.delete("a")
    await one.create("a", 1, NO_CONFIG)
    assert await other.find("a") == one.describe("a")


async def test_a_topic_that_is_deleted_by_its_id_is_no_other_one_of_the_name() -> None:
    one, other = await started(Processes(2))
    await one.create("a", 1, NO_CONFIG)
    await other.refresh()
    former = one.describe("a")
    assert former is not None
    assert other.describe(former.topic_id) == former
    await one.delete("a")
    await one.create("a", 2, NO_CONFIG)

    assert other.describe("a") == former, "it has not heard of that yet"
    with pytest.raises(TopicNotFoundError):
        await other.delete("a", topic_id=former.topic_id)

    present = one.describe("a")
    assert present is not None
    assert await other.find("a") == present
    assert other.describe(former.topic_id) is None
    assert other.describe(present.topic_id) == present
    await other.delete("a", topic_id=present.topic_id)
    assert other.describe(present.topic_id) is None


@pytest.mark.parametrize("counts", [(5, 5), (5, 7), (7, 5)])
@pytest.mark.parametrize("process_count", [1, 2])
async def test_partitions_that_two_add_at_once_are_all_there_or_refused(
    process_count: int, counts: tuple[int, int]
) -> None:
    """Two administrators, or one that asks again because its first request takes long."""
    for turns in range(60):
        store = Processes(process_count)
        all_topics = await started(store)
        await all_topics[0].create("a", 3, NO_CONFIG)

        async def later(topics: Topics, count: int, turns: int = turns) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await topics.add_partitions("a", count)

        outcomes = await asyncio.gather(
            all_topics[0].add_partitions("a", counts[0]),
            later(all_topics[-1], counts[1]),
            return_exceptions=True,
        )
        assert all(each is None or isinstance(each, InvalidPartitionsError) for each in outcomes)
        made = [count for count, each in zip(counts, outcomes, strict=True) if each is None]
        assert made
        if counts[0] != counts[1] and len(made) == 1:
            assert made == [7]
        for topics in all_topics:
            await topics.refresh()
            found = topics.describe("a")
            assert found is not None
            assert found.partitions == max(made)
        names = [segment_of(all_topics[0], "a", index) for index in range(max(made))]
        assert sorted(each for each in store.segments.names() if "a" in each) == sorted(names)


async def test_topics_that_others_removed_are_noticed_by_their_count() -> None:
    one, other = await started(Processes(2))
    for name in ("a", "b", "c"):
        await one.create(name, 1, NO_CONFIG)
    await other.refresh()
    await one.delete("b")
    await one.create("d", 1, NO_CONFIG)
    await other.refresh()
    assert other.names() == ["a", "c", "d"]


async def test_many_who_ask_at_once_share_one_look() -> None:
    store = Processes(2)
    one, other = await started(store)
    await one.create("a", 1, NO_CONFIG)
    looks = 0
    original = other._catalogue._catch_up

    async def counted() -> None:
        nonlocal looks
        looks += 1
        await original()

    other._catalogue._catch_up = counted  # type: ignore[method-assign]
    found = await asyncio.gather(*(other.find("a") for _ in range(50)))
    assert all(found)
    assert looks <= 2


async def test_two_changes_of_one_topic_in_two_processes_are_both_made() -> None:
    one, other = await started(Processes(2))
    await one.create("a", 1, NO_CONFIG)
    await asyncio.gather(
        one.alter("a", {"retention.ms": "1"}), other.alter("a", {"retention.bytes": "2"})
    )
    await one.refresh()
    await other.refresh()
    found = [each.describe("a") for each in (one, other)]
    assert found[0] == found[1]
    assert found[0] is not None
    assert found[0].given == {"retention.bytes": "2", "retention.ms": "1"}


async def test_one_of_two_that_create_the_same_topic_is_told_that_it_exists() -> None:
    one, other = await started(Processes(2))
    outcomes = await asyncio.gather(
        one.create("a", 2, NO_CONFIG), other.create("a", 2, NO_CONFIG), return_exceptions=True
    )
    assert sorted(map(type, outcomes), key=str) == sorted(
        [type(None), TopicExistsError], key=str
    ), outcomes


async def test_a_setting_that_a_newer_process_wrote_hides_no_topic() -> None:
    store = Processes(2)
    one, other = await started(store)
    await one.create("a", 1, {"retention.ms": "5"})
    topic = one._catalogue.get("a")
    assert topic is not None
    config = {**topic.record.config, "of.a.later.version": "1"}
    entry = TableEntry(b"a", encode_topic(replace(topic.record, config=config)), topic.version)
    async with store.tables.open_table(CATALOGUE_TABLE) as table:
        await table.update([entry])
    found = await other.find("a")
    assert found is not None
    assert found.given == {"retention.ms": "5"}
    with pytest.raises(InvalidConfigError):
        await other.alter("a", {"retention.ms": "6"})


# --- leaders ----------------------------------------------------------------------------------


async def test_a_partition_is_opened_where_its_container_is_and_nowhere_else() -> None:
    store = Processes(2)
    one, other = await started(store)
    await one.create("a", 1, NO_CONFIG)
    store.move(segment_of(one, "a", 0), 0)
    partition = await one.own_partition("a", 0)
    await partition.produce(batch_of(b"x"))
    with pytest.raises(NotLeaderError):
        await other.own_partition("a", 0)
    store.move(segment_of(one, "a", 0), 1)
    with pytest.raises(NotLeaderError):
        await one.own_partition("a", 0)
    moved = await other.own_partition("a", 0)
    assert moved.high_watermark == 1
    assert (await moved.produce(batch_of(b"y"))).base_offset == 1


async def test_who_waits_at_a_partition_that_leaves_is_woken() -> None:
    store = Processes(2)
    one, _ = await started(store)
    await one.create("a", 1, NO_CONFIG)
    store.move(segment_of(one, "a", 0), 0)
    partition = await one.own_partition("a", 0)
    waiting = asyncio.ensure_future(partition.wait_behind(0))
    await asyncio.sleep(0)
    store.move(segment_of(one, "a", 0), 1)
    assert not waiting.done()
    one.close_left()
    await asyncio.wait_for(waiting, 60)
    assert not partition.is_open
    with pytest.raises(PartitionUnavailableError):
        await partition.produce(batch_of(b"x"))


async def test_a_leader_that_has_not_noticed_appends_nothing_behind_the_next_one() -> None:
    store = Processes(2)
    one, other = await started(store)
    await one.create("a", 1, NO_CONFIG)
    segment = segment_of(one, "a", 0)
    store.move(segment, 0)
    old = await one.own_partition("a", 0)
    await old.produce(batch_of(b"0"))
    store.move(segment, 1)
    await (await other.own_partition("a", 0)).produce(batch_of(b"1"))
    store.move(segment, 0)  # and back, before the first one has noticed anything
    with pytest.raises(PartitionUnavailableError) as refused:
        await old.produce(batch_of(b"2"))
    assert refused.value.stored is False
    again = await one.own_partition("a", 0)
    assert [record.value for record in await read_all(again)] == [b"0", b"1"]


# --- deletion ---------------------------------------------------------------------------------


class _FilesAtAGate(Tier2RecordFiles):
    """Puts of files wait until they may go on."""

    def __init__(self, objects: MemoryObjectStore) -> None:
        super().__init__(
            object_store=objects,
            writers=None,
            readers=None,
            cache_bytes=20_000,
            batch_bytes_max=1_000,
        )
        self.waiting = asyncio.Event()
        self.gate = asyncio.Event()

    async def put(self, key: str, image: BufferView) -> None:
        if RecordFileName.parsed(key) is not None:
            self.waiting.set()
            await self.gate.wait()
        await super().put(key, image)


@pytest.mark.parametrize("notices", [True, False])
async def test_a_file_that_another_process_puts_while_its_topic_is_deleted_is_not_left_behind(
    *, notices: bool
) -> None:
    """`notices`: whether the leader hears of the deletion before its put ends."""
    store = Processes(2)
    objects = MemoryObjectStore()
    files = _FilesAtAGate(objects)
    one = store.topics(store.processes[0], record_files=files_in(objects))
    other = store.topics(store.processes[1], record_files=files)
    for each in (one, other):
        await each.start()
    await one.create("a", 1, NO_CONFIG)
    store.move(segment_of(one, "a", 0), 1)
    partition = await other.own_partition("a", 0)
    await partition.produce(batch_of(b"x"))
    making = asyncio.ensure_future(partition.make_file())
    await files.waiting.wait()
    await one.delete("a")
    assert store.segments.names() == []
    if notices:
        await other.refresh()
    files.gate.set()
    if notices:
        await making
    else:
        with pytest.raises((PartitionUnavailableError, UnknownPartitionError)):
            await making
    assert [info.key async for info in objects.list("")] == ["topics/a/names-used"]


async def test_a_leader_that_has_not_heard_of_a_deletion_takes_nothing_more() -> None:
    store = Processes(2)
    one, other = await started(store)
    await one.create("a", 1, NO_CONFIG)
    segment = segment_of(one, "a", 0)
    store.move(segment, 1)
    partition = await other.own_partition("a", 0)
    await partition.produce(batch_of(b"x"))
    topic = one._catalogue.get("a")
    assert topic is not None
    # As a deletion that is broken off behind its second step.
    record = TopicRecord(
        TopicState.DELETING,
        topic.record.topic_id,
        1,
        1,
        topic.record.created_ms,
        topic.record.config,
    )
    topic = await one._catalogue.put("a", record, topic.version)
    await one._changes._retire_segment(topic, 0)
    with pytest.raises(PartitionUnavailableError):
        await partition.produce(batch_of(b"y"))
    with pytest.raises(UnknownPartitionError):
        await other.own_partition("a", 0)
    await one._changes._finish(topic)
    assert store.segments.names() == []


async def test_files_of_a_later_topic_of_the_same_name_survive_a_deletion_that_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gone_topics, "_LISTED_KEYS_MAX", 1)
    store = Processes(2)
    objects = MemoryObjectStore()
    one, other = await started(store, record_files=files_in(objects))
    await one.create("a", 1, NO_CONFIG)
    store.move(segment_of(one, "a", 0), 0)
    partition = await one.own_partition("a", 0)
    await partition.produce(batch_of(b"old"))
    await partition.make_file()
    await other.refresh()
    stands, still = asyncio.Event(), asyncio.Event()
    original = GoneTopics._delete_registered

    async def stand_still(self: GoneTopics, *arguments: object) -> None:
        await original(self, *arguments)  # type: ignore[arg-type]
        if self is one._gone:
            stands.set()
            await still.wait()

    monkeypatch.setattr(GoneTopics, "_delete_registered", stand_still)
    deleting = asyncio.ensure_future(one.delete("a"))
    await stands.wait()
    await other.refresh()
    await other._changes.finish_all(["a"])
    await other.create("a", 1, NO_CONFIG)
    store.move(segment_of(other, "a", 0), 1)
    later = await other.own_partition("a", 0)
    await later.produce(batch_of(b"new"))
    await later.make_file()
    still.set()
    await deleting
    assert [record.value for record in await read_all(later)] == [b"new"]
    (name,) = [info.key async for info in objects.list("") if RecordFileName.parsed(info.key)]
    files = later._registered
    (file,) = await files.some(later._log.require_open(), files.first, 1)
    assert file.name("a", 0).key == name


async def test_a_segment_that_was_made_too_late_is_swept() -> None:
    store = Processes(2)
    one, _ = await started(store)
    await one.create("a", 2, NO_CONFIG)
    topic = one._catalogue.get("a")
    assert topic is not None
    await one.create("b", 1, NO_CONFIG)
    await one.delete("a")
    await one._changes._create_segment(topic, 1)  # by a process that stood still meanwhile
    assert len(store.segments.names()) == 2
    await one._gone.sweep_segments()
    assert store.segments.names() == [segment_of(one, "b", 0)]


async def test_records_of_a_topic_that_the_catalogue_has_lost_are_not_swept() -> None:
    store = Processes(2)
    one, _ = await started(store)
    await one.create("a", 1, NO_CONFIG)
    segment = segment_of(one, "a", 0)
    store.move(segment, 0)
    await (await one.own_partition("a", 0)).produce(batch_of(b"x"))
    topic = one._catalogue.get("a")
    assert topic is not None
    await one._catalogue.remove(topic)  # as one that was restored as of an earlier time
    await one._gone.sweep_segments()
    assert store.segments.names() == [segment]


async def test_what_another_process_broke_off_is_finished_where_the_catalogue_is() -> None:
    store = Processes(2)
    store.move(CATALOGUE_TABLE, 0)
    one, other = await started(store)

    async def die(topic: object, index: int) -> None:
        raise asyncio.CancelledError(f"{topic} {index}")

    other._changes._create_segment = die  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await other.create("a", 2, NO_CONFIG)
    await one.refresh()
    assert one.describe("a") is None
    await one._changes.finish_all(one._changes.unsettled())
    assert one.describe("a") is not None
    assert await other.find("a") == one.describe("a")


# --- groups -----------------------------------------------------------------------------------


def _join(member_id: str = "") -> JoinRequest:
    return JoinRequest(
        member_id=member_id,
        client_id="c",
        client_host="h",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[Protocol("range", b"")],
        requires_known_id=False,
    )


async def test_a_coordinator_that_lost_the_offsets_sends_its_members_away() -> None:
    store = Processes(2)
    topics = await started(store)
    await topics[0].create("a", 1, NO_CONFIG)
    await topics[1].refresh()
    store.move(OFFSETS_TABLE, 0)
    first, second = (
        store.groups(process, each, OFFSETS_TABLE)
        for process, each in zip(store.processes, topics, strict=True)
    )
    await first.start()
    joined = await first.join("g", _join())
    await first.sync(
        "g",
        member_id=joined.member_id,
        generation=joined.generation,
        assignments={joined.member_id: b""},
    )
    place = TopicPartition("a", 0)
    await first.commit(
        "g",
        member_id=joined.member_id,
        generation=joined.generation,
        offsets={place: OffsetToCommit(offset=7)},
    )
    with pytest.raises(GroupError) as refused:
        await second.join("g", _join())
    assert refused.value.problem is GroupProblem.NOT_COORDINATOR
    waiting = asyncio.ensure_future(first.join("g", _join()))
    await asyncio.sleep(0)
    store.move(OFFSETS_TABLE, 1)
    for call in (
        lambda: first.committed("g"),
        lambda: first.commit(
            "g",
            member_id=joined.member_id,
            generation=joined.generation,
            offsets={place: OffsetToCommit(offset=8)},
        ),
    ):
        with pytest.raises(GroupError) as refused:
            await call()
        assert refused.value.problem is GroupProblem.NOT_COORDINATOR
    with pytest.raises(GroupError) as refused:
        first.heartbeat("g", member_id=joined.member_id, generation=joined.generation)
    assert refused.value.problem is GroupProblem.NOT_COORDINATOR
    await first.close()
    with pytest.raises(GroupError) as refused:
        await waiting
    assert refused.value.problem is GroupProblem.NOT_COORDINATOR
    await second.start()
    found = await second.committed("g")
    assert found[place].offset == 7
    with pytest.raises(GroupError) as refused:
        second.heartbeat("g", member_id=joined.member_id, generation=joined.generation)
    assert refused.value.problem is GroupProblem.UNKNOWN_MEMBER_ID
    for each in (first, second):
        each.check()
