"""Reads streams and tells the ledger; finds out which segments a stream has."""

from contextlib import aclosing, suppress
from math import inf

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.watermark_records import Watermark
from segmentstore.codec.event_frame import EVENT_HEADER
from segmentstore.codec.stream_names import mark_stream, segment_name
from segmentstore.contracts.errors import (
    ErrorKind,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.segments import ReadResultEntryKind, SegmentProperties
from tests.controller.random_life.head_judge import HeadJudge
from tests.controller.random_life.ledger import KnownEvent, KnownTransaction, Ledger
from tests.controller.random_life.life_world import LifeHost, LifeWorld
from tests.controller.random_life.stream_life import Stage, StreamLife
from tests.sim.attempts import ModelBreachError

_BYTES_PER_READ = 1000


class Reading:
    """What every reader does; raises REQUEST_ERRORS that say nothing, and breaches."""

    def __init__(self, world: LifeWorld, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self._random = world.random
        self._judge = HeadJudge(world)

    @property
    def retained(self) -> int:
        """Heads that a policy made."""
        return self._judge.retained

    async def learn_current(self, life: StreamLife) -> None:
        """Which segments take events now."""
        was_open = life.is_open
        try:
            answer = await self._world.call("getCurrentSegments", life.info, api.SegmentRanges)
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return
        if answer.segmentRanges:
            if life.stage.value < Stage.DELETING.value:
                life.learn_ranges(answer.segmentRanges)
        elif was_open and life.is_open:
            raise ModelBreachError(f"{life} takes no events")

    async def learn_epochs(self, life: StreamLife) -> None:
        """Every epoch of the stream, and thereby every segment that it ever had."""
        number = max(0, len(life.epochs) - self._random.choice((0, 0, 1, 3)))
        while True:
            request = api.GetEpochSegmentsRequest(streamInfo=life.info, epoch=number)
            # Before the call: it may be told behind others what it found before them.
            known = number in life.epochs or number == 0
            try:
                answer = await self._world.call("getEpochSegments", request, api.SegmentRanges)
            except SegmentStoreError as error:
                if error.kind is not ErrorKind.NOT_FOUND:
                    raise
                if known:
                    self._judge_refusal(life, error)
                return
            if life.stage.value >= Stage.DELETING.value:
                return
            life.learn_epoch(number, answer.segmentRanges)
            number += 1

    async def learn_head(self, life: StreamLife) -> dict[int, int]:
        """Where the stream begins; empty if it is going."""
        head = await self._ask_head(life)
        while head and life.keeping.policies and head != life.keeping.judged:
            lengths = await self._judge.lengths(life)
            again = await self._ask_head(life)
            if again == head:
                self._judge.judge(life, head, lengths)
            head = again
        return head

    async def _ask_head(self, life: StreamLife) -> dict[int, int]:
        before = [dict(life.head), dict(life.told_head)]
        request = api.GetSegmentsRequest(streamInfo=life.info, timestamp=0)
        try:
            answer = await self._world.call("getSegments", request, api.SegmentsAtTime)
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return {}
        head = {each.segmentId.segmentId: each.offset for each in answer.segments}
        if any(each not in life.ranges for each in head):
            await self.learn_epochs(life)
        if life.stage.value >= Stage.DELETING.value:
            return {}
        life.learn_head(head, before)
        return head

    async def walk(self, life: StreamLife) -> None:
        """As a reader does it that starts at the head and follows successors."""
        ready = list(await self.learn_head(life))
        seen = dict.fromkeys(ready)
        while ready and life.stage.value < Stage.DELETING.value:
            segment_id = ready.pop(0)
            info = await self.read_segment(life, segment_id)
            if info is None or not info.sealed:
                continue
            answer = await self._successors(life, segment_id)
            if answer is None:
                return
            for born in life.learn_successors(segment_id, answer):
                if born not in seen:
                    seen[born] = None
                    ready.append(born)

    async def _successors(self, life: StreamLife, segment_id: int) -> api.SuccessorResponse | None:
        request = api.SegmentId(streamInfo=life.info, segmentId=segment_id)
        try:
            answer = await self._world.call(
                "getSegmentsImmediatelyFollowing", request, api.SuccessorResponse
            )
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return None
        return answer if life.stage.value < Stage.DELETING.value else None

    async def read_segment(self, life: StreamLife, segment_id: int) -> SegmentProperties | None:
        """All of it; None if it is gone."""
        known = life.segment(segment_id)
        look, start_min = known.look(), life.start_min(segment_id)
        offset = self._random.choice((0, known.start, known.end))
        name = known.name
        try:
            info, start, data = await self._world.ask(lambda host: _read(host, name, offset))
        except SegmentNotFoundError as error:
            if life.start_max(segment_id) != inf:
                # What is gone lies before a head that can be asked for.
                await self.learn_head(life)
            if life.start_max(segment_id) != inf:
                raise ModelBreachError(f"{life} lost its segment {segment_id}") from error
            known.gone = True
            return None
        known.learn_length(info.length, look, sealed=info.sealed)
        if info.start_offset > life.start_max(segment_id):
            await self.learn_head(life)
        life.learn_start(segment_id, info.start_offset, start_min)
        self._ledger.learn_content(name, start, data)
        return info

    async def ask_early(self, life: StreamLife) -> None:
        """What comes behind segments that take events: something, or it is not known yet."""
        was_open = life.is_open
        answer = await self._world.call("getCurrentSegments", life.info, api.SegmentRanges)
        for each in answer.segmentRanges:
            segment_id = each.segmentId.segmentId
            found = await self._successors(life, segment_id)
            if found is not None and segment_id in life.ranges and was_open:
                life.learn_successors(segment_id, found)

    async def read_times(self, life: StreamLife, *, silent_seconds: float) -> None:
        """The stream's watermarks."""
        glance = life.times.glance(self._world.loop.time())
        info = api.StreamInfo(scope=life.scope, stream=mark_stream(life.stream))
        try:
            answer = await self._world.call("getCurrentSegments", info, api.SegmentRanges)
            name = segment_name(
                info.scope, info.stream, answer.segmentRanges[0].segmentId.segmentId
            )
            _, start, data = await self._world.ask(lambda host: _read(host, name, 0))
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return
        if life.stage.value < Stage.DELETING.value:
            life.times.learn(
                _watermarks(data, start),
                glance,
                now=self._world.loop.time(),
                silent_seconds=silent_seconds,
            )

    async def look_for(self, life: StreamLife, transaction: KnownTransaction) -> None:
        """A commit is done: everything of it can be read now."""
        # Not by epochs: the one that takes it in is shown when it is current, a moment later.
        await self.walk(life)
        for event in transaction.events:
            if event.acked_in is not None and event.found is None and not may_be_gone(life, event):
                raise ModelBreachError(f"{event} of {transaction} is missing in {life}")

    def _judge_refusal(self, life: StreamLife, error: SegmentStoreError) -> None:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise error
        if life.stage.value < Stage.DELETING.value:
            raise ModelBreachError(f"{life} is lost: {error}") from error


def may_be_gone(life: StreamLife, event: KnownEvent) -> bool:
    """Whether something was cut off where the event may have been."""
    if event.acked_in is not None and event.transaction is None:
        return any(
            life.name(segment_id) == event.acked_in
            and life.start_max(segment_id) > (event.acked_at or 0)
            for segment_id in life.ranges
        )
    return any(
        low <= event.position < high and life.start_max(segment_id) > 0
        for segment_id, (low, high) in life.ranges.items()
    )


async def _read(host: LifeHost, name: str, offset: int) -> tuple[SegmentProperties, int, bytes]:
    pieces: list[bytes] = []
    useless = (
        ReadResultEntryKind.FUTURE,
        ReadResultEntryKind.END_OF_SEGMENT,
        ReadResultEntryKind.TRUNCATED,
    )
    async with host.segments.open_segment(name) as segment:
        info = segment.info()
        start = at = max(offset, info.start_offset)
        while at < info.length:
            before = at
            # Truncated meanwhile: what was read until then is worth as much.
            with suppress(SegmentTruncatedError):
                async with aclosing(segment.read(at, _BYTES_PER_READ)) as cursor:
                    async for entry in cursor:
                        if entry.kind in useless:
                            break
                        content = await entry.content()
                        pieces.append(content)
                        at += len(content)
            if at == before:
                break
        return info, start, b"".join(pieces)


def _watermarks(data: bytes, start: int) -> list[tuple[int, int, Watermark]]:
    """With the offsets of their begins and ends."""
    found: list[tuple[int, int, Watermark]] = []
    at = 0
    while at + EVENT_HEADER.size <= len(data):
        _, length = EVENT_HEADER.unpack_from(data, at)
        end = at + EVENT_HEADER.size + length
        found.append(
            (start + at, start + end, Watermark.decode(data[at + EVENT_HEADER.size : end]))
        )
        at = end
    if at != len(data):
        raise ModelBreachError(f"a watermark is cut off {len(data)} {at}")
    return found
