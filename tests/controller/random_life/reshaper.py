"""Actors that scale and truncate."""

import asyncio
import itertools

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_life.cuts import draw_cut
from tests.controller.random_life.life_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_life.settings import Theme
from tests.controller.random_life.stream_life import Stage, StreamLife
from tests.controller.random_life.theatre import Actor, Theatre

_SEGMENTS_MAX = 5
_SEGMENTS_EVER_MAX = 30


class Reshaper(Actor):
    """Scales and truncates one stream."""

    def __init__(self, theatre: Theatre, stream: str) -> None:
        super().__init__(theatre, f"reshaper of {stream}")
        self._stream = stream

    async def step(self) -> None:
        life = self.theatre.lives[self._stream]
        if not life.is_open:
            return
        if self.theatre.settings.theme is Theme.TRUNCATIONS:
            # What a commit has reached in part goes while the rest is down: all that is older than the newest epoch.
            try:
                if len(life.ranges) < 2 * _SEGMENTS_EVER_MAX and self.random.random() < 0.7:
                    await self._scale(life)
                await self._truncate(life, newest=self.random.random() < 0.8)
            except REQUEST_ERRORS as error:
                if not says_nothing(error):
                    raise
                # Not more patient than a commit is.
                await asyncio.sleep(0.05)
        elif self.theatre.settings.theme is not None and self.random.random() < 0.8:
            # What is scaled all the time is retained whole segments late, and takes long to be deleted.
            return
        elif self.random.random() < 0.7 and len(life.ranges) < _SEGMENTS_EVER_MAX:
            await self._scale(life)
        elif not life.keeping.policies or self.random.random() < 0.1:
            # Where policies cut, few others do: what they take is to be explained by them.
            await self._truncate(life)

    async def _scale(self, life: StreamLife) -> None:
        try:
            answer = await self.world.call("getCurrentSegments", life.info, api.SegmentRanges)
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return
        if not answer.segmentRanges or not life.is_open:
            return
        active = sorted(life.learn_ranges(answer.segmentRanges).items(), key=lambda each: each[1])
        start = self.random.randrange(len(active))
        chosen = active[start : start + self.random.randint(1, 3)]
        low, high = chosen[0][1][0], chosen[-1][1][1]
        parts = self.random.randint(1, 3) if len(active) < _SEGMENTS_MAX else 1
        inner = sorted(self.random.uniform(low, high) for _ in range(parts - 1))
        bounds = [low, *inner, high]
        request = api.ScaleRequest(
            streamInfo=life.info,
            sealedSegments=[segment_id for segment_id, _ in chosen],
            newKeyRanges=[
                api.ScaleRequest.KeyRangeEntry(start=left, end=right)
                for left, right in itertools.pairwise(bounds)
            ],
        )
        try:
            scaled = await self.world.call("scale", request, api.ScaleResponse)
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return
        self.trace(
            "scale", scaled.epoch, scaled.status, [e.segmentId.segmentId for e in scaled.segments]
        )
        if scaled.status == api.ScaleResponse.ScaleStreamStatus.STARTED:
            for each in scaled.segments:
                life.ranges.setdefault(each.segmentId.segmentId, (each.minKey, each.maxKey))

    async def _truncate(self, life: StreamLife, *, newest: bool = False) -> None:
        await self.theatre.reading.learn_epochs(life)
        head = await self.theatre.reading.learn_head(life)
        if not life.is_open or not life.epochs or not head:
            return
        if newest:
            cut = dict.fromkeys(life.epochs[max(life.epochs)], 0)
            cut = {each: max(offset, head.get(each, 0)) for each, offset in cut.items()}
        else:
            cut = draw_cut(self.random, life, head)
        if not cut:
            return
        life.cut_asked(cut)
        request = api.StreamCut(streamInfo=life.info, cut=cut)
        try:
            answer = await self.world.call("truncateStream", request, api.UpdateStreamStatus)
        except SegmentStoreError as error:
            self._judge_refusal(life, error)
            return
        status = api.UpdateStreamStatus.Status
        self.trace("truncate", cut, status.Name(answer.status))
        if answer.status == status.SUCCESS and life.stage.value < Stage.DELETING.value:
            life.cut_answered(cut)

    def _judge_refusal(self, life: StreamLife, error: SegmentStoreError) -> None:
        """Raises it if it says nothing, or says something of a stream that is open."""
        if says_nothing(error) or life.is_open:
            raise error
