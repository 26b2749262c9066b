"""Sessions of fetches: a consumer that names only what changes reads what one reads that names everything."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
)
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.codec.record_batch import parse_header
from segmentstore.kafka.fetch_sessions import FetchSession, FetchSessions
from segmentstore.kafka.settings import KafkaSettings
from tests.kafka.node import Client, Node, batch, fetch, fetched, produce, produced, running

_PARTITIONS = 8
_TOPICS = ("t", "u")


def in_session(
    request: FetchRequest, session_id: int, epoch: int, forgotten: tuple[ForgottenTopic, ...] = ()
) -> FetchRequest:
    return replace(request, session_id=session_id, session_epoch=epoch, forgotten_topics=forgotten)


def named(response: FetchResponse) -> dict[tuple[str, int], FetchedPartition]:
    found = [
        ((topic.topic, each.partition_index), each)
        for topic in response.topics
        for each in topic.partitions
    ]
    assert len(dict(found)) == len(found), "a partition is answered twice"
    return dict(found)


def next_offset(offset: int, records: bytes) -> int:
    while records:
        header = parse_header(records)
        offset, records = header.base_offset + header.record_count, records[header.size :]
    return offset


def asked(places: dict[tuple[str, int], int], **bounds: int) -> FetchRequest:
    requests = [
        fetch(*((index, at) for (name, index), at in places.items() if name == topic), topic=topic)
        for topic in _TOPICS
    ]
    topics = tuple(each.topics[0] for each in requests if each.topics[0].partitions)
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=bounds.get("bytes_max", 1 << 20), topics=topics
    )


@dataclass(slots=True)
class Consumer:
    """As Java's clients keep a session: what they name is the difference to what they named before."""

    client: Client
    session_id: int = 0
    epoch: int = 0
    told: dict[tuple[str, int], int] = field(default_factory=dict)
    """Offsets that the server has heard of."""
    bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """As the server has told them."""

    async def read(
        self, positions: dict[tuple[str, int], int], bytes_max: int
    ) -> dict[tuple[str, int], FetchedPartition]:
        changed = {place: at for place, at in positions.items() if self.told.get(place) != at}
        gone = [place for place in self.told if place not in positions]
        forgotten = tuple(ForgottenTopic(topic=name, partitions=(at,)) for name, at in gone)
        request = asked(changed if self.session_id else positions, bytes_max=bytes_max)
        response = await self.client.ask(
            in_session(request, self.session_id, self.epoch, forgotten), FetchResponse
        )
        assert response.error_code == ErrorCode.NONE
        assert response.session_id != 0
        found = named(response)
        if not self.session_id:
            assert found.keys() == positions.keys()
        self.session_id, self.epoch, self.told = response.session_id, self.epoch + 1, positions
        for place in gone:
            self.bounds.pop(place, None)
        for place, each in found.items():
            if not each.error_code:
                self.bounds[place] = each.high_watermark, each.log_start_offset
        return found


async def store(node: Node, topic: str, index: int, values: int) -> None:
    client = node.clients[0] if node.clients else await node.client()
    answer = await client.ask(
        produce((index, batch(*(b"v" * 100 for _ in range(values)))), topic=topic), ProduceResponse
    )
    assert produced(answer).error_code == ErrorCode.NONE


@pytest.mark.parametrize("seed", range(12))
async def test_what_a_session_leaves_out_is_what_its_client_knows(seed: int) -> None:
    random = Random(seed)
    async with running() as node:
        await node.topics.add_partitions("t", _PARTITIONS)
        await node.topics.create("u", _PARTITIONS, {})
        every = [(topic, index) for topic in _TOPICS for index in range(_PARTITIONS)]
        await store(node, *random.choice(every), 1)
        whole = await node.client()
        consumer = Consumer(await node.client())
        positions = dict.fromkeys(random.sample(every, 6), 0)
        named_count = 0
        for _ in range(60):
            for _ in range(random.randrange(3)):
                await store(node, *random.choice(every), random.randint(1, 3))
            if random.random() < 0.1:
                topic, index = random.choice(every)
                opened = await node.topics.own_partition(topic, index)
                await opened.delete_records(random.randint(0, opened.high_watermark))
            if random.random() < 0.3:
                positions.pop(random.choice(list(positions)), None)
            if random.random() < 0.3 or not positions:
                positions[random.choice(every)] = 0
            if random.random() < 0.05 and consumer.session_id:
                # The connection broke: the new one knows nothing of the session, and says so.
                consumer.client.close()
                again = Consumer(await node.client())
                stale = in_session(asked({}), consumer.session_id, consumer.epoch)
                answer = await again.client.ask(stale, FetchResponse)
                assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
                consumer = again
            expected = named(await whole.ask(asked(positions), FetchResponse))
            found = await consumer.read(dict(positions), 1 << 20)
            named_count += len(found)
            for place, right in expected.items():
                if right.error_code:
                    assert found[place].error_code == right.error_code
                    # Below the first offset: a consumer goes on at the earliest.
                    positions[place] = right.log_start_offset
                    continue
                assert consumer.bounds[place] == (right.high_watermark, right.log_start_offset)
                got = found[place].records if place in found else b""
                assert bytes(got or b"") == bytes(right.records or b"")
                positions[place] = next_offset(positions[place], bytes(right.records or b""))
        assert named_count < 60 * 4, "everything was named again and again"


async def test_the_bound_of_an_answer_starves_no_partition() -> None:
    async with running() as node:
        await node.topics.add_partitions("t", _PARTITIONS)
        for index in range(_PARTITIONS):
            await store(node, "t", index, 2)
        consumer = Consumer(await node.client())
        positions = {("t", index): 0 for index in range(_PARTITIONS)}
        for _ in range(_PARTITIONS):
            # More comes to the first one all the time.
            await store(node, "t", 0, 2)
            for place, each in (await consumer.read(dict(positions), 1)).items():
                positions[place] = next_offset(positions[place], bytes(each.records or b""))
        assert all(positions.values())


async def test_an_error_is_told_until_it_has_gone() -> None:
    async with running() as node:
        consumer = Consumer(await node.client())
        positions = {("t", 0): 0, ("t", 5): 0}
        for _ in range(3):
            found = await consumer.read(dict(positions), 1 << 20)
            assert found["t", 5].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await node.topics.add_partitions("t", 6)
        found = await consumer.read(dict(positions), 1 << 20)
        assert found.keys() == {("t", 5)}
        assert found["t", 5].error_code == ErrorCode.NONE
        assert not await consumer.read(dict(positions), 1 << 20)


async def test_epochs_and_ids() -> None:
    async with running() as node:
        client = await node.client()

        async def ask(session_id: int, epoch: int, *places: tuple[int, int]) -> FetchResponse:
            return await client.ask(
                in_session(fetch(*places, wait_ms=0), session_id, epoch), FetchResponse
            )

        first = await ask(0, 0, (0, 0))
        assert first.session_id
        wrong = await ask(first.session_id, 2)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        right = await ask(first.session_id, 1)
        assert (right.error_code, right.session_id) == (ErrorCode.NONE, first.session_id)
        again = await ask(first.session_id, 0, (0, 0), (1, 0))
        assert again.session_id not in (0, first.session_id)
        old = await ask(first.session_id, 2)
        assert old.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        ended = await ask(again.session_id, -1, (0, 0))
        assert ended.session_id == 0
        assert fetched(ended).high_watermark == 0
        gone = await ask(again.session_id, 1)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        # An id from before the connection broke.
        assert (await ask(77, 0, (0, 0))).session_id


async def test_without_room_a_consumer_goes_on_without_a_session() -> None:
    async with running(KafkaSettings(fetch_session_partitions_max=2)) as node:
        await store(node, "t", 1, 1)
        first, second = Consumer(await node.client()), await node.client()
        await first.read({("t", 0): 0}, 1 << 20)
        request = in_session(fetch((0, 0), (1, 0)), 0, 0)
        answer = await second.ask(request, FetchResponse)
        assert answer.session_id == 0
        assert [each.high_watermark for each in answer.topics[0].partitions] == [0, 1]
        more = in_session(fetch((1, 0), (2, 0)), first.session_id, 1)
        refused = await first.client.ask(more, FetchResponse)
        assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await second.ask(request, FetchResponse)).session_id


def test_epochs_begin_again_behind_the_largest() -> None:
    sessions = FetchSessions(partitions_max=10)
    session = sessions.of_connection()
    assert session.take(in_session(fetch((0, 0)), 0, 0)) == ErrorCode.NONE
    session._epoch_expected = 0x7FFFFFFF
    one_more = in_session(fetch(), session.session_id, 0x7FFFFFFF)
    assert session.take(replace(one_more, topics=())) == ErrorCode.NONE
    assert session.take(replace(one_more, topics=(), session_epoch=1)) == ErrorCode.NONE


def test_bounds_beside_an_error_are_told_again() -> None:
    """Clients do not look at them there."""
    session = FetchSessions(partitions_max=10).of_connection()
    assert session.take(in_session(fetch((0, 0)), 0, 0)) == ErrorCode.NONE
    well = FetchedPartition(partition_index=0, error_code=0, high_watermark=7, records=b"")
    failed = replace(well, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    later = in_session(fetch(), session.session_id, 1)
    assert session.tell(later, "t", failed)
    assert session.tell(later, "t", well)
    assert not session.tell(later, "t", well)


def test_what_ended_sessions_remembered_is_free_again() -> None:
    sessions, random = FetchSessions(partitions_max=50), Random(3)
    several: list[FetchSession] = [sessions.of_connection() for _ in range(8)]
    epochs = dict.fromkeys(range(8), 0)
    for _ in range(3000):
        at = random.randrange(8)
        places = [(index, 0) for index in random.sample(range(12), random.randint(0, 8))]
        request = in_session(
            fetch(*places),
            several[at].session_id,
            random.choice((0, -1, epochs[at], epochs[at], epochs[at])),
            (ForgottenTopic(topic="t", partitions=tuple(random.sample(range(12), 3))),),
        )
        if random.random() < 0.05:
            several[at].end()
        several[at].take(request)
        epochs[at] = several[at]._epoch_expected
        assert sessions.remembered == sum(each.partition_count for each in several) <= 50
    for each in several:
        each.end()
    assert sessions.remembered == 0
