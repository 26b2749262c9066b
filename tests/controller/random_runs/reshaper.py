"""Actors that scale and truncate."""

import asyncio
import itertools

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_runs.cuts import draw_cut
from tests.controller.random_runs.random_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_runs.settings import Theme
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import Actor, Theatre

_SEGMENTS_MAX = 5
_SEGMENTS_EVER_MAX = 30


class Reshaper(Actor):
    """Scales and truncates one stream."""

    def __init__(self, theatre: Theatre, stream: str) -> None:
        super().__init__(theatre, f"reshaper of {stream}")
        self._stream = stream

    async def step(self) -> None:
        model = self.theatre.models[self._stream]
        if not model.is_open:
            return
        if self.theatre.settings.theme is Theme.TRUNCATIONS:
            # What a commit has reached in part goes while the rest is down: all that is older than the newest epoch.
            try:
                if len(model.ranges) < 2 * _SEGMENTS_EVER_MAX and self.random.random() < 0.7:
                    await self._scale(model)
                await self._truncate(model, newest=self.random.random() < 0.8)
            except REQUEST_ERRORS as error:
                if not says_nothing(error):
                    raise
                # Not more patient than a commit is.
                await asyncio.sleep(0.05)
        elif self.theatre.settings.theme is not None and self.random.random() < 0.8:
            # What is scaled all the time is retained whole segments late, and takes long to be deleted.
            return
        elif self.random.random() < 0.7 and len(model.ranges) < _SEGMENTS_EVER_MAX:
            await self._scale(model)
        elif not model.keeping.policies or self.random.random() < 0.1:
            # Where policies cut, few others do: what they take is to be explained by them.
            await self._truncate(model)

    async def _scale(self, model: StreamModel) -> None:
        try:
            answer = await self.world.call("getCurrentSegments", model.info, api.SegmentRanges)
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return
        if not answer.segmentRanges or not model.is_open:
            return
        active = sorted(model.learn_ranges(answer.segmentRanges).items(), key=lambda each: each[1])
        start = self.random.randrange(len(active))
        chosen = active[start : start + self.random.randint(1, 3)]
        low, high = chosen[0][1][0], chosen[-1][1][1]
        parts = self.random.randint(1, 3) if len(active) < _SEGMENTS_MAX else 1
        inner = sorted(self.random.uniform(low, high) for _ in range(parts - 1))
        bounds = [low, *inner, high]
        request = api.ScaleRequest(
            streamInfo=model.info,
            sealedSegments=[segment_id for segment_id, _ in chosen],
            newKeyRanges=[
                api.ScaleRequest.KeyRangeEntry(start=left, end=right)
                for left, right in itertools.pairwise(bounds)
            ],
        )
        try:
            scaled = await self.world.call("scale", request, api.ScaleResponse)
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return
        self.trace(
            "scale", scaled.epoch, scaled.status, [e.segmentId.segmentId for e in scaled.segments]
        )
        if scaled.status == api.ScaleResponse.ScaleStreamStatus.STARTED:
            for each in scaled.segments:
                model.ranges.setdefault(each.segmentId.segmentId, (each.minKey, each.maxKey))

    async def _truncate(self, model: StreamModel, *, newest: bool = False) -> None:
        await self.theatre.reading.learn_epochs(model)
        head = await self.theatre.reading.learn_head(model)
        if not model.is_open or not model.epochs or not head:
            return
        if newest:
            cut = dict.fromkeys(model.epochs[max(model.epochs)], 0)
            cut = {each: max(offset, head.get(each, 0)) for each, offset in cut.items()}
        else:
            cut = draw_cut(self.random, model, head)
        if not cut:
            return
        model.cut_asked(cut)
        request = api.StreamCut(streamInfo=model.info, cut=cut)
        try:
            answer = await self.world.call("truncateStream", request, api.UpdateStreamStatus)
        except SegmentStoreError as error:
            self._judge_refusal(model, error)
            return
        status = api.UpdateStreamStatus.Status
        self.trace("truncate", cut, status.Name(answer.status))
        if answer.status == status.SUCCESS and model.stage.value < Stage.DELETING.value:
            model.cut_answered(cut)

    def _judge_refusal(self, model: StreamModel, error: SegmentStoreError) -> None:
        """Raises it if it says nothing, or says something of a stream that is open."""
        if says_nothing(error) or model.is_open:
            raise error
