"""Goal: whatever a client sends in valid frames, each request is answered in its turn and about all that it names, what
is acknowledged is stored and what is refused is not, and nothing breaks.

Method: a server in a simulated loop, with connections whose sockets are buffers; requests drawn by field
(`random_requests.py`), many under way, while the log is held back or fails, and clients go.
"""

import asyncio
import logging
import struct
from asyncio import TaskGroup
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest

from segmentstore.codec.kafka_protocol import administration, cluster, fetch, groups, produce
from segmentstore.codec.kafka_protocol.api_table import APIS
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import NO_UUID
from segmentstore.codec.kafka_protocol.frames import api_of, decode_response
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.codec.record_batch import BATCH_HEADER_BYTES, batch_size, parse_header
from segmentstore.contracts.errors import ContainerNotFoundError, ContainerStoppedError
from segmentstore.kafka.connection import KafkaConnection
from tests.kafka.node import Node, running
from tests.kafka.random_requests import KEPT_TOPICS, RandomRequests, is_silent
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

PARTITIONS = 2
STEPS = 150
_MAY_BE_STORED = (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)


class Listener:
    """In the place of a listening socket."""

    def __init__(self, made: Callable[[], KafkaConnection]) -> None:
        self.made = made

    def close(self) -> None:
        pass


class Socket(asyncio.Transport):
    """What a connection writes to."""

    def __init__(self, connection: KafkaConnection, received: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._connection = connection
        self._received = received
        self.is_closed = False
        self.is_paused = False
        self._is_gone = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        if self._is_gone:
            return
        assert not self.is_closed, "written behind the end"
        self._received(b"".join(bytes(each) for each in list_of_data))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def go(self) -> None:
        """The client has gone, which is seen a turn later; the connection may go on with its batches."""
        self._is_gone = True
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if self.is_closed or not self._connection.eof_received():
            self.close()


@dataclass(slots=True)
class Asked:
    """A request that has no answer yet."""

    number: int
    request: Structure
    version: int
    ends: dict[tuple[str, int], int]
    """The high watermarks when it was sent."""


@dataclass
class Told:
    """Of what was sent to the kept topics."""

    tries: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """Of each batch, that may have stored it: topic, partition, number of the batch."""
    acknowledged: list[tuple[str, int, int, int]] = field(default_factory=list)
    """And the base offset."""
    seen: Counter[str] = field(default_factory=Counter)


class Client:
    """One connection."""

    def __init__(
        self, node: Node, made: KafkaConnection, drawn: RandomRequests, told: Told
    ) -> None:
        self._node = node
        self._connection = made
        self._drawn = drawn
        self._told = told
        self._next = 1
        self._content = b""
        self.asked: deque[Asked] = deque()
        self.has_silent_refusals = False
        self.socket = Socket(made, self._received)
        made.connection_made(self.socket)

    def send(self, request: Structure, version: int) -> None:
        frame = self._drawn.frame(request, version, self._next)
        ends = {
            (topic, index): found.high_watermark
            for topic in KEPT_TOPICS
            for index in range(PARTITIONS)
            if (found := self._node.topics.own_partition_if_open(topic, index)) is not None
        }
        self.asked.append(Asked(self._next, request, version, ends))
        self._next += 1
        if is_silent(request):
            assert isinstance(request, produce.ProduceRequest)
            for place in self._batches_of(request):
                self._told.tries[place] += 1
        while frame:
            free = self._connection.get_buffer(-1)
            size = min(len(free), len(frame))
            free[:size] = frame[:size]
            self._connection.buffer_updated(size)
            frame = frame[size:]

    def end(self) -> None:
        """What was not answered may be stored."""
        for asked in self.asked:
            if isinstance(asked.request, produce.ProduceRequest) and not is_silent(asked.request):
                for place in self._batches_of(asked.request):
                    self._told.tries[place] += 1
        self.asked.clear()
        self.socket.go()

    def _batches_of(self, request: produce.ProduceRequest) -> list[tuple[str, int, int]]:
        return [
            (self._name_of(topic.key), each.index, self._number_of(each.records))
            for topic in request.topics
            for each in topic.partitions
        ]

    def _name_of(self, key: str | UUID) -> str:
        found = None if isinstance(key, str) else self._node.topics.describe(key)
        return str(key) if found is None else found.name

    def _number_of(self, records: Any) -> int:
        return self._drawn.numbers.get(bytes(records or b"")[BATCH_HEADER_BYTES:], -1)

    def _received(self, content: bytes) -> None:
        self._content += content
        while len(self._content) >= 4:
            (size,) = struct.unpack_from(">i", self._content)
            if len(self._content) < 4 + size:
                return
            frame, self._content = self._content[4 : 4 + size], self._content[4 + size :]
            while self.asked and is_silent(self.asked[0].request):
                self.asked.popleft()
            asked = self.asked.popleft()
            kind = api_of(asked.request).response
            answer = decode_response(kind, frame, asked.version, correlation_id=asked.number)
            self._told.seen[type(asked.request).__name__] += 1
            self._check(asked, answer)

    def _check(self, asked: Asked, answer: Structure) -> None:
        request = asked.request
        assert _named_in(answer) == _expected_of(request, asked.version, answer), (request, answer)
        match answer:
            case produce.ProduceResponse():
                assert isinstance(request, produce.ProduceRequest)
                self._note_produced(request, answer)
            case produce.InitProducerIdResponse(error_code=0):
                self._drawn.producers.append(answer.producer_id)
            case groups.JoinGroupResponse():
                if answer.member_id:
                    self._drawn.members.append(answer.member_id)
                self._drawn.generations.append(answer.generation_id)
                self._told.seen[f"joined {answer.error_code}"] += 1
            case groups.SyncGroupResponse():
                self._told.seen[f"synced {answer.error_code}"] += 1
            case groups.OffsetCommitResponse():
                for topic in answer.topics:
                    for each in topic.partitions:
                        self._told.seen[f"committed {each.error_code}"] += 1
            case cluster.MetadataResponse():
                self._drawn.topic_ids += [each.topic_id for each in answer.topics]
            case fetch.FetchResponse():
                assert isinstance(request, fetch.FetchRequest)
                self._check_fetched(asked, request, answer)

    def _note_produced(
        self, request: produce.ProduceRequest, answer: produce.ProduceResponse
    ) -> None:
        told = [each for topic in answer.topics for each in topic.partitions]
        sent = [each for topic in request.topics for each in topic.partitions]
        for (topic, index, number), each, batch in zip(
            self._batches_of(request), told, sent, strict=True
        ):
            self._told.seen[f"produced {each.error_code}"] += 1
            if each.error_code in _MAY_BE_STORED:
                self._told.tries[topic, index, number] += 1
            if each.error_code == ErrorCode.NONE and batch.records is not None:
                assert number >= 0, f"no batch is acknowledged {each}"
                assert each.base_offset >= 0, each
                if topic in KEPT_TOPICS:
                    self._told.acknowledged.append((topic, index, number, each.base_offset))

    def _check_fetched(
        self, asked: Asked, request: fetch.FetchRequest, answer: fetch.FetchResponse
    ) -> None:
        wanted = {
            (self._name_of(topic.key), each.partition): each.fetch_offset
            for topic in request.topics
            for each in topic.partitions
        }
        for topic in answer.topics:
            for each in topic.partitions:
                place = self._name_of(_key_of(topic)), each.partition_index
                self._told.seen[f"fetched {each.error_code}"] += 1
                end = asked.ends.get(place, -1)
                if each.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and place in wanted:
                    found = self._node.topics.own_partition_if_open(*place)
                    if found is not None:
                        assert not found.log_start_offset <= wanted[place] <= end, (each, end)
                offset = wanted.get(place, 0)
                for header, _ in _batches(bytes(each.records or b"")):
                    assert header.next_offset > offset, (wanted[place], header)
                    offset = header.next_offset
                if each.records:
                    self._told.seen["fetched records"] += 1


def _batches(content: bytes) -> list[tuple[Any, bytes]]:
    found, at = [], 0
    while at < len(content):
        size = batch_size(memoryview(content), at)
        found.append((parse_header(content, at), content[at : at + size]))
        at += size
    return found


def _key_of(topic: Any) -> str | UUID:
    """Its name or its id, however the message calls them."""
    topic_id: UUID = getattr(topic, "topic_id", NO_UUID)
    name: str = topic.topic if hasattr(topic, "topic") else topic.name
    return name if topic_id == NO_UUID else topic_id


def _pairs(topics: Sequence[Any]) -> list[tuple[str | UUID, int]]:
    """Topics and partitions, however the message calls them."""
    return [
        (
            _key_of(topic),
            each
            if isinstance(each, int)
            else each.index
            if hasattr(each, "index")
            else each.partition
            if hasattr(each, "partition")
            else each.partition_index,
        )
        for topic in topics
        for each in (
            topic.partition_indexes if hasattr(topic, "partition_indexes") else topic.partitions
        )
    ]


def _named_in(answer: Structure) -> object:
    """What the answer tells of."""
    match answer:
        case produce.ProduceResponse() | fetch.ListOffsetsResponse():
            return _pairs(answer.topics)
        case groups.OffsetCommitResponse() | administration.DeleteRecordsResponse():
            return _pairs(answer.topics)
        case fetch.FetchResponse() | groups.OffsetDeleteResponse():
            return Counter(_pairs(answer.topics))
        case groups.OffsetFetchResponse():
            several = [(each.group_id, Counter(_pairs(each.topics))) for each in answer.groups]
            return several or Counter(_pairs(answer.topics))
        case cluster.MetadataResponse() | administration.CreateTopicsResponse():
            return [each.name for each in answer.topics]
        case administration.DeleteTopicsResponse():
            return [each.name for each in answer.responses]
        case administration.CreatePartitionsResponse():
            return [each.name for each in answer.results]
        case groups.DescribeGroupsResponse():
            return [each.group_id for each in answer.groups]
        case groups.DeleteGroupsResponse():
            return [each.group_id for each in answer.results]
        case administration.DescribeConfigsResponse():
            return [(each.resource_type, each.resource_name) for each in answer.results]
        case (
            administration.AlterConfigsResponse() | administration.IncrementalAlterConfigsResponse()
        ):
            return [(each.resource_type, each.resource_name) for each in answer.responses]
        case groups.LeaveGroupResponse():
            return [(each.member_id, each.group_instance_id) for each in answer.members]
    return None


def _expected_of(request: Structure, version: int, answer: Structure) -> object:
    """What the answer is to tell of."""
    match request:
        case produce.ProduceRequest() | fetch.ListOffsetsRequest():
            return _pairs(request.topics)
        case groups.OffsetCommitRequest() | administration.DeleteRecordsRequest():
            return _pairs(request.topics)
        case fetch.FetchRequest():
            assert isinstance(answer, fetch.FetchResponse)
            if answer.error_code:
                return Counter()
            if request.session_epoch not in (0, -1):
                return _named_in(answer)
            return Counter(dict.fromkeys(_pairs(request.topics), 1))
        case groups.OffsetFetchRequest():
            if version >= 8 and request.groups:
                assert isinstance(answer, groups.OffsetFetchResponse)
                return _expected_of_groups(request, answer)
            if request.topics is None:
                return _named_in(answer)
            return Counter(dict.fromkeys(_pairs(request.topics), 1))
        case groups.OffsetDeleteRequest():
            assert isinstance(answer, groups.OffsetDeleteResponse)
            if answer.error_code:
                return Counter()
            return Counter(dict.fromkeys(_pairs(request.topics), 1))
        case cluster.MetadataRequest():
            if request.topics is None or (version == 0 and not request.topics):
                return _named_in(answer)
            assert isinstance(answer, cluster.MetadataResponse)
            names = {each.topic_id: each.name for each in answer.topics}
            names[NO_UUID] = None if version >= cluster.METADATA_WITHOUT_NAMES_SINCE else ""
            keys = [
                each.topic_id if each.name is None or each.topic_id != NO_UUID else each.name
                for each in request.topics
            ]
            return [key if isinstance(key, str) else names.get(key) for key in dict.fromkeys(keys)]
        case administration.CreateTopicsRequest() | administration.CreatePartitionsRequest():
            return [each.name for each in request.topics]
        case administration.DeleteTopicsRequest():
            return [*request.topic_names, *(each.name for each in request.topics)]
        case groups.DescribeGroupsRequest():
            return list(dict.fromkeys(request.groups))
        case groups.DeleteGroupsRequest():
            return list(request.group_ids)
        case administration.DescribeConfigsRequest():
            return list(
                dict.fromkeys(
                    (each.resource_type, each.resource_name) for each in request.resources
                )
            )
        case administration.AlterConfigsRequest() | administration.IncrementalAlterConfigsRequest():
            return [(each.resource_type, each.resource_name) for each in request.resources]
        case groups.LeaveGroupRequest():
            assert isinstance(answer, groups.LeaveGroupResponse)
            if answer.error_code:
                return []
            return [(each.member_id, each.group_instance_id) for each in request.members]
    return None


def _expected_of_groups(
    request: groups.OffsetFetchRequest, answer: groups.OffsetFetchResponse
) -> object:
    """Each once. Of one that is asked for all that it has it is not known how much that is."""
    told = {each.group_id: _pairs(each.topics) for each in answer.groups}
    every = {each.group_id for each in request.groups if each.topics is None}
    asked: dict[str, dict[tuple[str | UUID, int], int]] = {}
    for each in request.groups:
        places = (
            told.get(each.group_id, []) if each.group_id in every else _pairs(each.topics or ())
        )
        asked.setdefault(each.group_id, {}).update(dict.fromkeys(places, 1))
    return [(group_id, Counter(places)) for group_id, places in asked.items()]


async def _check_stored(node: Node, drawn: RandomRequests, told: Told) -> None:
    for topic in KEPT_TOPICS:
        for index in range(PARTITIONS):
            partition = await node.topics.own_partition(topic, index)
            partition.check()
            stored: dict[int, int] = {}
            offset = partition.log_start_offset
            while offset < partition.high_watermark:
                for header, content in _batches(await partition.fetch(offset, 1 << 20)):
                    assert header.base_offset <= offset < header.next_offset, (header, offset)
                    offset = header.next_offset
                    stored[header.base_offset] = drawn.numbers[content[BATCH_HEADER_BYTES:]]
            for name, at, number, base in told.acknowledged:
                if (name, at) == (topic, index) and base >= partition.log_start_offset:
                    assert stored.get(base) == number, f"{number} is lost {base} {stored}"
            for number, times in Counter(stored.values()).items():
                assert times <= told.tries[topic, index, number], f"refused, and stored {number}"
            told.seen["stored"] += len(stored)


async def one_run(loop: SimLoop, seed: int) -> Counter[str]:
    random = Random(seed)
    drawn, told = RandomRequests(random), Told()
    listeners: list[Listener] = []

    async def listen(made: Callable[[], KafkaConnection], *_: object, **__: object) -> Listener:
        listeners.append(Listener(made))
        return listeners[-1]

    loop.create_server = listen  # type: ignore[method-assign,assignment]
    async with running() as node, TaskGroup() as tasks:
        sessions = tasks.create_task(node.groups.run())
        await node.topics.create("u", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        clients: list[Client] = []
        stops_at = random.choice((STEPS, STEPS, STEPS // 2))
        for step in range(STEPS):
            if step == stops_at:
                node.tables.stop()
            if len(clients) < 3:
                clients.append(Client(node, listeners[0].made(), drawn, told))
            client = random.choice(clients)
            match random.random():
                case way if way < 0.02:
                    client.end()
                case way if way < 0.08:
                    node.segments.hold()
                case way if way < 0.16:
                    node.segments.let_go()
                case way if way < 0.18:
                    stopped = random.random() < 0.5
                    node.segments.fail(
                        ContainerStoppedError(0, "it ends")
                        if stopped
                        else ContainerNotFoundError(0, "it has ended")
                    )
                case way if way < 0.4:
                    await asyncio.sleep(random.choice((0, 0.001, 0.1, 2)))
                case _:
                    request, version = drawn.request()
                    if not client.socket.is_paused:
                        client.send(request, version)
            for each in [each for each in clients if each.socket.is_closed]:
                each.end()
                clients.remove(each)
        node.segments.let_go()
        async with asyncio.timeout(3_600):
            while any(each.asked and not each.socket.is_closed for each in clients):
                if all(is_silent(a.request) for each in clients for a in each.asked):
                    break
                await asyncio.sleep(1)
        for each in clients:
            each.end()
        await asyncio.sleep(1)
        await _check_stored(node, drawn, told)
        sessions.cancel()
    return told.seen


def _run(seed: int) -> Counter[str]:
    return run_simulation(seed, lambda loop: one_run(loop, seed)).result


def test_any_requests_are_answered_in_turn_and_as_they_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    seen: Counter[str] = Counter()
    for seed in range(24):
        seen += _run(seed)
        assert not caplog.records, (seed, caplog.text)
    assert {api.request.__name__ for api in APIS.values()} <= seen.keys()
    assert min(seen["stored"], seen["produced 0"]) > 50, seen
    assert min(seen["fetched records"], seen["joined 0"], seen["committed 0"]) > 1, seen
