"""Writers of events: sessions with keys of their own, which follow their stream from segment to segment."""

import asyncio
import itertools

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import SegmentWithRange
from segmentstore.codec.routing_hash import event_position
from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from tests.controller.random_runs.event_sender import EventSender
from tests.controller.random_runs.known_times import KnownWriter, Note
from tests.controller.random_runs.ledger import KnownEvent
from tests.controller.random_runs.random_world import says_nothing
from tests.controller.random_runs.stream_model import Ranges, Stage, StreamModel
from tests.controller.random_runs.theatre import Actor, Theatre
from tests.sim.node import NodeDiedError

_KEYS = 3
_BURSTS_PER_SESSION = 8


class StreamWriter(Actor):
    """Writes to whatever incarnation of its stream takes events."""

    def __init__(self, theatre: Theatre, stream: str, number: int) -> None:
        super().__init__(theatre, f"writer {number} of {stream}")
        self._stream = stream
        self._sessions = 0
        self._session: _Session | None = None

    async def step(self) -> None:
        if self._session is None:
            model = self.theatre.models.get(self._stream)
            if model is not None and model.is_open:
                self._sessions += 1
                self._session = _Session(self, model, f"{self.name} {self._sessions}")
            return
        if not await self._session.step():
            self._session = None

    def owes(self) -> bool:
        return self._session is not None


class _Session:
    """One writer id, and the segments to which its keys go."""

    def __init__(self, actor: Actor, model: StreamModel, name: str) -> None:
        self._actor = actor
        self._model = model
        self._world = actor.world
        self._random = actor.random
        self._sender = EventSender(actor.world, actor.random)
        self._keys = [f"{name} key {number}" for number in range(_KEYS)]
        self._sequences = dict.fromkeys(self._keys, 0)
        self._pieces: list[tuple[float, float, int]] = []
        """Ranges of keys and where they go; in their order."""
        self._pending: list[KnownEvent] = []
        self._bursts = 0
        self._writer = KnownWriter(name)
        self._notes = actor.theatre.settings.notes_times
        self._reached: dict[int, int] = {}
        """Segment -> behind the last event of this session there that was acknowledged."""

    async def step(self) -> bool:
        """Whether there is more to do."""
        if not self._pieces and not await self._look_up():
            return False
        if not self._pending:
            if self._bursts and self._notes and self._random.random() < 0.7:
                await self._note_time()
            if self._bursts == _BURSTS_PER_SESSION or self._actor.theatre.calm:
                await self._leave()
                return False
            self._bursts += 1
            self._pending = self._new_events()
        return await self._send_pending()

    async def _look_up(self) -> bool:
        """Where keys go; False if nowhere."""
        model = self._model
        try:
            answer = await self._world.call("getCurrentSegments", model.info, api.SegmentRanges)
        except SegmentStoreError as error:
            if error.kind is ErrorKind.NOT_FOUND and not model.is_open:
                return False
            raise
        if not answer.segmentRanges:
            if model.is_open:
                raise self._actor.breach(f"{model} takes no events, though nobody sealed it")
            return False
        if model.stage.value >= Stage.DELETING.value:
            return False
        ranges = model.learn_ranges(answer.segmentRanges)
        self._pieces = sorted((low, high, each) for each, (low, high) in ranges.items())
        return True

    def _new_events(self) -> list[KnownEvent]:
        events = []
        for _ in range(self._random.randint(1, self._actor.theatre.settings.burst_max)):
            key = self._random.choice(self._keys)
            length = self._random.randint(8, max(9, self._actor.theatre.settings.event_bytes_max))
            event = self._actor.ledger.new_event(key, self._sequences[key], length)
            self._sequences[key] += 1
            self._model.events.append(event)
            events.append(event)
        return events

    async def _send_pending(self) -> bool:
        groups: dict[int, list[KnownEvent]] = {}
        for event in self._pending:
            groups.setdefault(self._segment_of(event), []).append(event)
        going = await asyncio.gather(
            *(self._send(segment_id, group) for segment_id, group in groups.items()),
            return_exceptions=True,
        )
        for outcome in going:
            if isinstance(outcome, BaseException):
                raise outcome
        if not all(going):
            return False
        for event in self._pending:
            if event.acked_in is not None and event.acked_at is not None:
                segment_id = parse_segment(event.acked_in).segment_id
                end = event.acked_at + len(event.frame)
                self._reached[segment_id] = max(end, self._reached.get(segment_id, 0))
        self._pending = [
            event for event in self._pending if event.acked_in is None and not event.refused
        ]
        if any(self._is_unsure(event) for event in self._pending):
            await self._actor.be_patient()
        return True

    def _is_unsure(self, event: KnownEvent) -> bool:
        return bool(event.sent_to)

    async def _send(self, segment_id: int, group: list[KnownEvent]) -> bool:
        """Whether the session goes on."""
        model = self._model
        sealed_tick = model.sealed_tick
        sent = await self._sender.send(model.name(segment_id), group)
        if sealed_tick and any(event.acked_in and len(event.sent_to) == 1 for event in group):
            self._check_old(group, model)
        if sent.gone:
            if model.start_max(segment_id) == 0:
                await self._actor.theatre.reading.learn_head(model)
            if model.start_max(segment_id) == 0:
                raise self._actor.breach(f"{model} lost its segment {segment_id}")
            return False
        if sent.sealed:
            return await self._follow(segment_id, sent.rest)
        return True

    def _check_old(self, group: list[KnownEvent], model: StreamModel) -> None:
        for event in group:
            if event.acked_in is not None and event.acked_at is not None:
                raise self._actor.breach(f"{model} took {event} although it is sealed")

    async def _follow(self, segment_id: int, rest: list[KnownEvent]) -> bool:
        model = self._model
        answer = await self._successors(segment_id)
        if answer is None or model.stage.value >= Stage.DELETING.value:
            return False
        found = model.learn_successors(segment_id, answer)
        if not found:
            for event in rest:
                event.refused = True
                if event.found is not None:
                    raise self._actor.breach(f"{event} was refused")
            return False
        self._replace(segment_id, found)
        return True

    async def _successors(self, segment_id: int) -> api.SuccessorResponse | None:
        request = api.SegmentId(streamInfo=self._model.info, segmentId=segment_id)
        while True:
            try:
                return await self._world.call(
                    "getSegmentsImmediatelyFollowing", request, api.SuccessorResponse
                )
            except NodeDiedError:
                await self._actor.be_patient()
            except SegmentStoreError as error:
                if says_nothing(error):
                    await self._actor.be_patient()
                    continue
                if self._model.stage.value < Stage.DELETING.value:
                    raise self._actor.breach(f"nothing behind {segment_id}", error) from error
                return None

    # --- times ------------------------------------------------------------------------------------

    async def _note_time(self) -> None:
        """What comes behind the present position is not older than now."""
        model, writer = self._model, self._writer
        position: dict[SegmentWithRange, int] = {}
        for segment_id in {each for *_, each in self._pieces}:
            low, high = model.ranges[segment_id]
            position[SegmentWithRange(segment_id, low, high)] = self._reached.get(segment_id, 0)
        edges = sorted((each.low, each.high) for each in position)
        if any(left[1] > right[0] for left, right in itertools.pairwise(edges)):
            # Half of a merged segment's keys have not followed yet.
            return
        note = Note(int(self._world.loop.time() * 1000), position)
        writer.asked_time = note.time
        model.times.writers[writer.name] = writer
        request = api.TimestampFromWriter(
            writer=writer.name,
            timestamp=note.time,
            position=api.StreamCut(
                streamInfo=model.info, cut={s.segment_id: at for s, at in position.items()}
            ),
        )
        answer = await self._world.call("noteTimestampFromWriter", request, api.TimestampResponse)
        status = api.TimestampResponse.Status
        self._actor.trace("notes", note.time, status.Name(answer.result))
        if answer.result == status.SUCCESS:
            writer.answered = note
        elif model.stage.value < Stage.DELETING.value:
            raise self._actor.breach(f"{model} does not take {note}: {answer}")

    async def _leave(self) -> None:
        model, writer = self._model, self._writer
        if writer.asked_time < 0 or writer.leaves or self._random.random() < 0.1:
            return
        writer.leaves = True
        request = api.RemoveWriterRequest(writer=writer.name, stream=model.info)
        answer = await self._world.call("removeWriter", request, api.RemoveWriterResponse)
        status = api.RemoveWriterResponse.Status
        gone = answer.result == status.STREAM_DOES_NOT_EXIST
        if gone and model.stage.value < Stage.DELETING.value:
            raise self._actor.breach(f"{model} is lost: {answer}")

    def _replace(self, segment_id: int, found: Ranges) -> None:
        pieces = []
        for low, high, each in self._pieces:
            if each != segment_id:
                pieces.append((low, high, each))
                continue
            for born, (born_low, born_high) in found.items():
                if born_low < high and low < born_high:
                    pieces.append((max(low, born_low), min(high, born_high), born))
        self._pieces = sorted(pieces)

    def _segment_of(self, event: KnownEvent) -> int:
        position = event_position(event.key)
        for low, high, segment_id in self._pieces:
            if low <= position < high:
                return segment_id
        raise self._actor.breach(f"{self._model} has no segment for {event} {self._pieces}")
