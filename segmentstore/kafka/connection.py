"""One client: bytes in, requests one after the other, answers in the order of the requests.

    bytes -> whole frames, which wait -> one task takes them in turn -> answers wait for those before them -> sent

A request is begun when the one before it has been answered; only Produce is not waited for, so that a client may have
many of them under way. A fetch or a join that waits holds up what its client sends behind it, as in Kafka: clients use
other connections for other work.

Invariants:

- Answers leave in the order of the requests. A request with acks 0 has no answer at all; if such a batch is refused,
  the connection ends, which is how its client hears of it.
- Bytes that are no request of a spoken version end this connection, with one line in the log, and no other.
- Behind a request that was above its client's rate (`quotas.py`) none is begun until the time that the client was told
  is over.
- The socket is not read while too much of this connection, or of all, waits for an answer; no request is begun while
  too many answers are unsent: wait for those before them, or for the client to take them.
- A client that takes nothing while others wait for room for their answers (`answer_room.py`) loses its connection.
- A client of which nothing is heard, and which has no answer to come, loses its connection in time.
- When the connection goes, its task ends and what it waited for is withdrawn; batches that were handed over go on.
- A client that leaves behind batches (with acks 0 it need not wait for anything) has all of them handed over that
  came, unless it left while something else was answered. It is sent nothing more.
"""

import asyncio
import logging
from asyncio import Event
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from segmentstore.codec.kafka_protocol.api_table import APIS, ApiKey
from segmentstore.codec.kafka_protocol.cluster import ApiVersionsRequest
from segmentstore.codec.kafka_protocol.fetch import FetchResponse
from segmentstore.codec.kafka_protocol.fields import Buffer, KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import (
    RequestHeader,
    decode_request,
    encode_response,
    read_request_header,
)
from segmentstore.codec.kafka_protocol.produce import ProduceRequest
from segmentstore.kafka.answer_room import AnswerRoom
from segmentstore.kafka.cluster_requests import VERSION_TOO_NEW
from segmentstore.kafka.fetch_sessions import FetchSessions
from segmentstore.kafka.produce_requests import NO_ACKS, Producing, Submission
from segmentstore.kafka.received_frames import FrameMemories, ReceivedFrames
from segmentstore.kafka.refused_batches import RefusedBatches
from segmentstore.kafka.requests import Asker, Requests
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.runtime.shared_room import SharedRoom
from segmentstore.runtime.task_set import TaskSet
from segmentstore.runtime.waiting import sleep_and_tell_lateness
from segmentstore.runtime.written_parts import write_parts
from segmentstore.topics.errors import TopicError

_LOG = logging.getLogger(__name__)

_API_VERSIONS: Final = APIS[ApiKey.API_VERSIONS]
_API_KEY_BYTES: Final = 2
_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(_API_KEY_BYTES)


class NotServedError(Exception):
    """A request that cannot be answered now: its connection ends, and its client comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionServices:
    """What all connections of a server share."""

    settings: KafkaSettings
    counters: KafkaCounters
    requests: Requests
    producing: Producing
    fetch_sessions: FetchSessions
    frame_memories: FrameMemories
    answer_room: SharedRoom
    ready: Event
    """Set while topics and groups answer."""
    opened: Callable[["KafkaConnection"], bool]
    """Whether there is room for it."""
    closed: Callable[["KafkaConnection"], None]
    add_waiting: Callable[[int], None]
    """Bytes of all connections that wait for an answer."""
    is_too_much_waiting: Callable[[], bool]


@dataclass(slots=True)
class _Answer:
    """A request that was begun, in its place among the answers."""

    frame_bytes: int
    parts: list[Buffer] | None = None
    """None: not known yet."""
    kept_bytes: int = 0
    """Of it, while it waits for answers before it."""
    room: AnswerRoom | None = None
    """For its records, if it has any."""


class KafkaConnection(asyncio.BufferedProtocol):
    """Made by the server for every client."""

    def __init__(self, *, services: ConnectionServices) -> None:
        self._services = services
        self._settings = services.settings
        self._received = ReceivedFrames(
            memories=services.frame_memories, frame_bytes_max=services.settings.frame_bytes_max
        )
        self._frames: deque[memoryview] = deque()
        self._answers: deque[_Answer] = deque()
        self._has_received = True
        """Since the last look whether it is idle, or the beginning."""
        self._waiting_bytes = 0
        """Of frames that wait, and of those that were begun and are not answered."""
        self._waiting_requests = 0
        self._fetch_session = services.fetch_sessions.of_connection()
        self._refused_batches = RefusedBatches(
            partitions_max=self._settings.refused_batches_max,
            seconds=self._settings.resend_seconds,
        )
        self._has_frames = Event()
        self._can_write = Event()
        """Unless too many answers are unsent."""
        self._can_write.set()
        self._is_taking = True
        """Whether the client takes what it is sent."""
        self._times_taken = 0
        """How often it has taken all but a little of what it was sent."""
        self._kept_bytes = 0
        """Of answers that wait for those before them."""
        self._sent_rooms: list[AnswerRoom] = []
        """Of answers that were sent and may not be taken yet."""
        self._is_watched = False
        """Whether a task looks if they are."""
        self._submitted = 0
        """Requests whose batches were handed over and are not settled."""
        self._all_settled = Event()
        self._all_settled.set()
        self._is_paused = False
        self._begun: memoryview | None = None
        """The request that is being handed over, or answered."""
        self._has_left = False
        """The client, and batches that came from it are still to be handed over."""
        self._is_closing = False
        self._gone = Event()
        self._is_admitted = False
        self._transport: asyncio.Transport
        self._tasks = TaskSet(on_failure=self._failed)
        self._reached_at = ("", 0)
        self._client_host = "?"

    @property
    def waiting_bytes(self) -> int:
        """Of requests that are not answered yet."""
        return self._waiting_bytes

    # --- the socket --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream's transport by what it does; uvloop's is of another class.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        name = transport.get_extra_info("sockname")
        if not peer or not name:
            # It has gone already.
            self._transport.abort()
            return
        self._client_host = str(peer[0])
        self._reached_at = (str(name[0]), int(name[1]))
        self._is_admitted = self._services.opened(self)
        if not self._is_admitted:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._settings.send_buffer_bytes_max)
        self._tasks.start(self._work(), name="kafka connection")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio names it
        return self._received.free()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        self._has_received = True
        try:
            frames = self._received.filled(nbytes)
        except KafkaProtocolError as error:
            self._refuse(error)
            return
        for frame in frames:
            self._frames.append(frame)
            self._add_waiting(len(frame), requests=1)
        if frames:
            self._has_frames.set()
            self.update_reading()

    def eof_received(self) -> bool:
        """The client has gone. True: the transport stays, for the batches that came from it."""
        if self._is_closing or (self._begun is not None and not _has_batches(self._begun)):
            return False
        batches = deque(filter(_has_batches, self._frames))
        if self._begun is None and not batches:
            return False
        others = [frame for frame in self._frames if not _has_batches(frame)]
        self._frames = batches
        self._add_waiting(-sum(map(len, others)), requests=-len(others))
        self._has_left = True
        self._can_write.set()
        return True

    def pause_writing(self) -> None:
        self._is_taking = False
        self._update_writing()

    def resume_writing(self) -> None:
        self._is_taking = True
        self._times_taken += 1
        self._update_writing()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio names it
        self._is_closing = True
        self._gone.set()
        if not self._is_admitted:
            return
        self._tasks.cancel()
        self._received.close()
        self._fetch_session.end()
        self._add_waiting(
            -sum(map(len, self._frames)) - sum(each.frame_bytes for each in self._answers),
            requests=-len(self._frames) - len(self._answers),
        )
        self._frames.clear()
        for room in (*self._sent_rooms, *(each.room for each in self._answers)):
            if room is not None:
                room.give_back()
        self._sent_rooms.clear()
        self._answers.clear()
        self._kept_bytes = 0
        self._services.closed(self)

    # --- requests ------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Requests one after the other, until the connection ends."""
        turn = 0
        while not self._is_closing:
            if not self._frames:
                if self._has_left:
                    self._end()
                    return
                self._has_frames.clear()
                await self._has_frames.wait()
                turn = 0
            await self._can_write.wait()
            frame = self._frames.popleft()
            answer = _Answer(len(frame))
            self._answers.append(answer)
            self._begun = frame
            try:
                await self._begin(frame, answer)
                self._begun = None
                self._received.give_back(frame)
            except KafkaProtocolError as error:
                self._refuse(error)
                return
            except (NotServedError, TopicError) as error:
                _LOG.info("connection of %s closed, to come again: %s", self._client_host, error)
                self._end()
                return
            turn += 1
            if turn >= self._settings.requests_per_turn_max:
                turn = 0
                await asyncio.sleep(0)

    async def _begin(self, frame: memoryview, answer: _Answer) -> None:
        header = read_request_header(frame)
        self._services.counters.requests += 1
        if header.api_key == ApiKey.API_VERSIONS and header.api_version > _API_VERSIONS.newest:
            self._answered(answer, encode_response(header.correlation_id, VERSION_TOO_NEW, 0))
            return
        request = decode_request(header, frame)
        if not isinstance(request, ApiVersionsRequest):
            await self._wait_until_ready()
        client_id = header.client_id or ""
        if isinstance(request, ProduceRequest):
            submission = await self._services.producing.submit(
                request, client_id, self._failed, self._refused_batches
            )
            self._submitted += 1
            self._all_settled.clear()
            submission.when_done(
                partial(self._produced, submission, header, answer, request.acks == NO_ACKS)
            )
            await _pause(submission.throttle_ms)
            return
        room = answer.room = AnswerRoom(self._services.answer_room)
        asker = Asker(
            version=header.api_version,
            client_id=client_id,
            client_host=self._client_host,
            reached_at=self._reached_at,
            fetch_session=self._fetch_session,
            answer_room=room,
        )
        response = await self._services.requests.answer(request, asker)
        self._answered(answer, encode_response(header.correlation_id, response, header.api_version))
        if isinstance(response, FetchResponse):
            await _pause(response.throttle_time_ms)

    async def _wait_until_ready(self) -> None:
        if self._services.ready.is_set():
            return
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                await self._services.ready.wait()
        except TimeoutError as error:
            raise NotServedError("topics do not answer yet") from error

    def _produced(
        self, submission: Submission, header: RequestHeader, answer: _Answer, is_silent: bool
    ) -> None:
        self._submitted -= 1
        if self._submitted == 0:
            self._all_settled.set()
        if self._is_closing:
            return
        if not is_silent:
            response = submission.response()
            self._answered(
                answer, encode_response(header.correlation_id, response, header.api_version)
            )
            return
        self._answered(answer, [])
        if submission.has_refusal:
            _LOG.info("connection of %s closed: its batch was refused", self._client_host)
            self._end()

    # --- answers -----------------------------------------------------------------------------------

    def _answered(self, answer: _Answer, parts: list[Buffer]) -> None:
        assert answer.parts is None, "a request is answered twice"
        answer.parts = parts
        if self._answers and self._answers[0] is not answer:
            answer.kept_bytes = sum(map(len, parts))
            self._kept_bytes += answer.kept_bytes
        ready: list[Buffer] = []
        while self._answers and (first := self._answers[0].parts) is not None:
            ready += first
            sent = self._answers.popleft()
            self._kept_bytes -= sent.kept_bytes
            if sent.room is not None and not sent.room.is_empty:
                self._sent_rooms.append(sent.room)
            self._add_waiting(-sent.frame_bytes, requests=-1)
        if ready and not self._is_closing and not self._has_left:
            write_parts(self._transport, ready)
        self._update_writing()
        self.update_reading()

    def _update_writing(self) -> None:
        """Begin requests, or do not, by how much is unsent; give back the room of what the client has taken."""
        if self._has_left:
            return
        if self._is_taking and self._kept_bytes <= self._settings.send_buffer_bytes_max:
            self._can_write.set()
        else:
            self._can_write.clear()
        if self._is_taking:
            for room in self._sent_rooms:
                room.give_back()
            self._sent_rooms.clear()
        elif self._sent_rooms and not self._is_watched and not self._is_closing:
            self._is_watched = True
            self._tasks.start(self._end_unless_taken(), name="kafka answers that are not taken")

    async def _end_unless_taken(self) -> None:
        """A client that takes nothing of its answers is not waited for while others need the room that they have."""
        seconds = self._settings.taking_seconds
        while self._sent_rooms:
            before = self._times_taken, self._transport.get_write_buffer_size()
            late = await sleep_and_tell_lateness(seconds)
            has_moved = (
                self._times_taken != before[0]
                or self._transport.get_write_buffer_size() < before[1]
            )
            if has_moved or late > seconds or not self._services.answer_room.waiting_count:
                continue
            _LOG.info(
                "connection of %s closed: it takes no answer, and others wait", self._client_host
            )
            self._transport.abort()
            break
        self._is_watched = False

    def _add_waiting(self, byte_count: int, *, requests: int) -> None:
        self._waiting_bytes += byte_count
        self._waiting_requests += requests
        self._services.add_waiting(byte_count)

    def update_reading(self) -> None:
        """Read the socket, or not, by how much waits."""
        if self._is_closing or self._has_left:
            return
        settings = self._settings
        is_much = (
            self._waiting_bytes > settings.waiting_bytes_max
            or self._waiting_requests >= settings.waiting_requests_max
            or (self._waiting_requests > 0 and self._services.is_too_much_waiting())
        )
        if is_much == self._is_paused:
            return
        self._is_paused = is_much
        if is_much:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def end_if_idle(self) -> None:
        """Asked once in `idle_seconds`. A connection whose client takes nothing of its answer is left to TCP."""
        has_received, self._has_received = self._has_received, False
        if has_received or self._is_closing or self._waiting_requests:
            return
        if self._transport.get_write_buffer_size():
            return
        self._services.counters.connections_idle += 1
        _LOG.debug("connection of %s closed: it was idle", self._client_host)
        self._end()

    # --- the end -----------------------------------------------------------------------------------

    def _refuse(self, error: KafkaProtocolError) -> None:
        self._services.counters.connections_malformed += 1
        _LOG.warning("connection of %s closed: %s", self._client_host, error)
        self._end()

    def _failed(self, error: BaseException) -> None:
        """A bug: this client's connection ends, others go on."""
        _LOG.error("connection of %s broke", self._client_host, exc_info=error)
        self._end()

    def _end(self) -> None:
        """What was answered is sent, if the client takes it; nothing else is."""
        if self._is_closing:
            return
        self._is_closing = True
        self._transport.close()
        self._tasks.start(self._abort_later(), name="kafka connection that ends")

    async def _abort_later(self) -> None:
        """A client that takes nothing must not keep its connection."""
        await asyncio.sleep(self._settings.drain_seconds)
        self._transport.abort()

    async def drain(self) -> None:
        """Begin nothing more; returns when every batch that was handed over is answered and the client has taken it."""
        self._tasks.cancel()
        await self._tasks.join()
        await self._all_settled.wait()
        self._is_closing = True
        self._transport.close()
        await self._gone.wait()

    async def close(self) -> None:
        """At once."""
        self._is_closing = True
        self._transport.abort()
        await self._tasks.close()

    @property
    def answer_bytes(self) -> int:
        """That its answers have taken of the room for all."""
        rooms = (*self._sent_rooms, *(each.room for each in self._answers if each.room is not None))
        return sum(each.taken_bytes for each in rooms)

    @property
    def partitions_followed(self) -> int:
        """By its session of fetches."""
        return self._fetch_session.partition_count

    def check(self) -> None:
        """O(requests that wait)."""
        expected = sum(map(len, self._frames)) + sum(each.frame_bytes for each in self._answers)
        assert self._waiting_bytes == expected, f"{self._waiting_bytes} != {expected}"
        expected = len(self._frames) + len(self._answers)
        assert self._waiting_requests == expected, f"{self._waiting_requests} != {expected}"
        expected = sum(each.kept_bytes for each in self._answers)
        assert self._kept_bytes == expected, f"{self._kept_bytes} != {expected}"


def _has_batches(frame: memoryview) -> bool:
    return frame[:_API_KEY_BYTES] == _PRODUCE


async def _pause(milliseconds: int) -> None:
    if milliseconds:
        await asyncio.sleep(milliseconds / 1000)
