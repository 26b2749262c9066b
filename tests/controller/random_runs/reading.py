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
from tests.controller.random_runs.head_judge import HeadJudge
from tests.controller.random_runs.ledger import KnownEvent, KnownTransaction, Ledger
from tests.controller.random_runs.random_world import RandomHost, RandomWorld
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.sim.attempts import ModelBreachError

_BYTES_PER_READ = 1000


class Reading:
    """What every reader does; raises REQUEST_ERRORS that say nothing, and breaches."""

    def __init__(self, world: RandomWorld, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self._random = world.random
        self._judge = HeadJudge(world)

    @property
    def retained(self) -> int:
        """Heads that a policy made."""
        return self._judge.retained

    async def learn_current(self, model: StreamModel) -> None:
        """Which segments take events now."""
        was_open = model.is_open
        try:
            answer = await self._world.call("getCurrentSegments", model.info, api.SegmentRanges)
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return
        if answer.segmentRanges:
            if model.stage.value < Stage.DELETING.value:
                model.learn_ranges(answer.segmentRanges)
        elif was_open and model.is_open:
            raise ModelBreachError(f"{model} takes no events")

    async def learn_epochs(self, model: StreamModel) -> None:
        """Every epoch of the stream, and thereby every segment that it ever had."""
        number = max(0, len(model.epochs) - self._random.choice((0, 0, 1, 3)))
        while True:
            request = api.GetEpochSegmentsRequest(streamInfo=model.info, epoch=number)
            # Before the call: it may be told behind others what it found before them.
            known = number in model.epochs or number == 0
            try:
                answer = await self._world.call("getEpochSegments", request, api.SegmentRanges)
            except SegmentStoreError as error:
                if error.kind is not ErrorKind.NOT_FOUND:
                    raise
                if known:
                    self._judge_refusal(model, error)
                return
            if model.stage.value >= Stage.DELETING.value:
                return
            model.learn_epoch(number, answer.segmentRanges)
            number += 1

    async def learn_head(self, model: StreamModel) -> dict[int, int]:
        """Where the stream begins; empty if it is going."""
        head = await self._ask_head(model)
        while head and model.keeping.policies and head != model.keeping.judged:
            lengths = await self._judge.lengths(model)
            again = await self._ask_head(model)
            if again == head:
                self._judge.judge(model, head, lengths)
            head = again
        return head

    async def _ask_head(self, model: StreamModel) -> dict[int, int]:
        before = [dict(model.head), dict(model.told_head)]
        request = api.GetSegmentsRequest(streamInfo=model.info, timestamp=0)
        try:
            answer = await self._world.call("getSegments", request, api.SegmentsAtTime)
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return {}
        head = {each.segmentId.segmentId: each.offset for each in answer.segments}
        if any(each not in model.ranges for each in head):
            await self.learn_epochs(model)
        if model.stage.value >= Stage.DELETING.value:
            return {}
        model.learn_head(head, before)
        return head

    async def walk(self, model: StreamModel) -> None:
        """As a reader does it that starts at the head and follows successors."""
        ready = list(await self.learn_head(model))
        seen = dict.fromkeys(ready)
        while ready and model.stage.value < Stage.DELETING.value:
            segment_id = ready.pop(0)
            info = await self.read_segment(model, segment_id)
            if info is None or not info.sealed:
                continue
            answer = await self._successors(model, segment_id)
            if answer is None:
                return
            for born in model.learn_successors(segment_id, answer):
                if born not in seen:
                    seen[born] = None
                    ready.append(born)

    async def _successors(
        self, model: StreamModel, segment_id: int
    ) -> api.SuccessorResponse | None:
        request = api.SegmentId(streamInfo=model.info, segmentId=segment_id)
        try:
            answer = await self._world.call(
                "getSegmentsImmediatelyFollowing", request, api.SuccessorResponse
            )
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return None
        return answer if model.stage.value < Stage.DELETING.value else None

    async def read_segment(self, model: StreamModel, segment_id: int) -> SegmentProperties | None:
        """All of it; None if it is gone."""
        known = model.segment(segment_id)
        look, start_min = known.look(), model.start_min(segment_id)
        offset = self._random.choice((0, known.start, known.end))
        name = known.name
        try:
            info, start, data = await self._world.ask(lambda host: _read(host, name, offset))
        except SegmentNotFoundError as error:
            if model.start_max(segment_id) != inf:
                # What is gone lies before a head that can be asked for.
                await self.learn_head(model)
            if model.start_max(segment_id) != inf:
                raise ModelBreachError(f"{model} lost its segment {segment_id}") from error
            known.gone = True
            return None
        known.learn_length(info.length, look, sealed=info.sealed)
        if info.start_offset > model.start_max(segment_id):
            await self.learn_head(model)
        model.learn_start(segment_id, info.start_offset, start_min)
        self._ledger.learn_content(name, start, data)
        return info

    async def ask_early(self, model: StreamModel) -> None:
        """What comes behind segments that take events: something, or it is not known yet."""
        was_open = model.is_open
        answer = await self._world.call("getCurrentSegments", model.info, api.SegmentRanges)
        for each in answer.segmentRanges:
            segment_id = each.segmentId.segmentId
            found = await self._successors(model, segment_id)
            if found is not None and segment_id in model.ranges and was_open:
                model.learn_successors(segment_id, found)

    async def read_times(self, model: StreamModel, *, silent_seconds: float) -> None:
        """The stream's watermarks."""
        glance = model.times.glance(self._world.loop.time())
        info = api.StreamInfo(scope=model.scope, stream=mark_stream(model.stream))
        try:
            answer = await self._world.call("getCurrentSegments", info, api.SegmentRanges)
            name = segment_name(
                info.scope, info.stream, answer.segmentRanges[0].segmentId.segmentId
            )
            _, start, data = await self._world.ask(lambda host: _read(host, name, 0))
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return
        if model.stage.value < Stage.DELETING.value:
            model.times.learn(
                _watermarks(data, start),
                glance,
                now=self._world.loop.time(),
                silent_seconds=silent_seconds,
            )

    async def look_for(self, model: StreamModel, transaction: KnownTransaction) -> None:
        """A commit is done: everything of it can be read now."""
        # Not by epochs: the one that takes it in is shown when it is current, a moment later.
        await self.walk(model)
        for event in transaction.events:
            if event.acked_in is not None and event.found is None and not may_be_gone(model, event):
                raise ModelBreachError(f"{event} of {transaction} is missing in {model}")

    def _judge_refusal(self, model: StreamModel, error: SegmentStoreError) -> None:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise error
        if model.stage.value < Stage.DELETING.value:
            raise ModelBreachError(f"{model} is lost: {error}") from error


def may_be_gone(model: StreamModel, event: KnownEvent) -> bool:
    """Whether something was cut off where the event may have been."""
    if event.acked_in is not None and event.transaction is None:
        return any(
            model.name(segment_id) == event.acked_in
            and model.start_max(segment_id) > (event.acked_at or 0)
            for segment_id in model.ranges
        )
    return any(
        low <= event.position < high and model.start_max(segment_id) > 0
        for segment_id, (low, high) in model.ranges.items()
    )


async def _read(host: RandomHost, name: str, offset: int) -> tuple[SegmentProperties, int, bytes]:
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
