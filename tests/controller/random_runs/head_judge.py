"""Whether a stream may begin where it begins, if policies may cut it: events before its head have to be explained."""

from collections.abc import Mapping, Sequence

from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.segments import SegmentProperties
from tests.controller.random_runs.keeping import Measure
from tests.controller.random_runs.ledger import KnownEvent
from tests.controller.random_runs.random_world import RandomHost, RandomWorld
from tests.controller.random_runs.stream_model import StreamModel
from tests.sim.attempts import ModelBreachError

_PAGE = 100


class HeadJudge:
    """Judges heads of streams that have, or had, a policy."""

    def __init__(self, world: RandomWorld) -> None:
        self._world = world
        # What a jump does to policies by time while a process is down, nobody can see.
        self._clock_steps = world.settings.swarm.trouble.clock_step > 0
        self.retained = 0
        """Heads that a policy made."""

    async def lengths(self, model: StreamModel) -> Mapping[int, int]:
        """Segment -> length, of all that are there. Raises REQUEST_ERRORS."""
        prefix = f"{model.scope}/{model.stream}/"
        found = await self._world.ask(lambda host: _listed(host, prefix))
        parsed = {parse_segment(each.name): each.length for each in found}
        return {name.segment_id: n for name, n in parsed.items() if name == name.parent}

    def judge(
        self, model: StreamModel, head: Mapping[int, int], lengths: Mapping[int, int]
    ) -> None:
        """`lengths` were asked for between two answers that both said `head`."""
        keeping, now = model.keeping, self._world.loop.time()
        size = sum(
            max(0.0, length - (model.cut_of(each, head) if each in model.ranges else 0.0))
            for each, length in lengths.items()
        )
        for event in _events(model):
            if not _is_before(model, event, head):
                continue
            if any(_is_before(model, event, cut) for cut in model.cuts):
                continue
            held = keeping.subscription
            guarded = (
                held is not None
                and event.tick > held.since
                and not any(_is_before(model, event, cut) for cut in held.excuses)
            )
            seconds = now - event.born
            if not any(
                policy.allows(seconds=seconds, size=size, guarded=guarded)
                or (policy.measure is Measure.TIME and self._clock_steps and not guarded)
                for policy in keeping.policies
            ):
                raise ModelBreachError(
                    f"{model} begins at {head}: {event} went ahead of its time, {seconds} seconds old"
                    f" with {size} bytes behind, {'not consumed' if guarded else ''} {keeping}"
                )
        keeping.judged = dict(head)
        if head not in model.cuts:
            model.retained.append(dict(head))
            self.retained += 1


def _events(model: StreamModel) -> list[KnownEvent]:
    return [*model.events, *(event for each in model.transactions for event in each.events)]


def _is_before(model: StreamModel, event: KnownEvent, cut: Mapping[int, int]) -> bool:
    if event.place is None:
        return False
    name, offset = event.place
    return model.cut_of(parse_segment(name).segment_id, cut) > offset


async def _listed(host: RandomHost, prefix: str) -> Sequence[SegmentProperties]:
    segments: list[SegmentProperties] = []
    while True:
        after = segments[-1].name if segments else ""
        page = await host.segments.list_segments(prefix, after, _PAGE)
        segments += page
        if len(page) < _PAGE:
            return segments
