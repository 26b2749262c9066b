"""One incarnation of a stream as its clients know it: whether it is there, its epochs, and the cuts that were made."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import creation_epoch_of, segment_name
from tests.controller.random_runs.keeping import Keeping
from tests.controller.random_runs.known_times import KnownTimes
from tests.controller.random_runs.ledger import (
    KnownEvent,
    KnownSegment,
    KnownTransaction,
    Ledger,
)
from tests.controller.random_runs.staged_versions import KnownVersion
from tests.sim.attempts import ModelBreachError

Ranges = dict[int, tuple[float, float]]
"""Segment id -> its keys."""


class Stage(Enum):
    """How far a stream has come; everything between two of them was asked for and is not answered yet."""

    ABSENT = 0
    CREATING = 1
    ACTIVE = 2
    SEALING = 3
    SEALED = 4
    DELETING = 5
    DELETED = 6


@dataclass(slots=True, eq=False)
class StreamModel:
    """What is known of one incarnation."""

    ledger: Ledger
    scope: str
    stream: str
    incarnation: int
    stage: Stage = Stage.ABSENT
    sealed_tick: int = 0
    """From this moment on the stream takes no events; 0 if nobody knows that it is sealed."""
    scales_itself: bool = False
    ranges: Ranges = field(default_factory=dict)
    """Every segment that anybody was told of."""
    epochs: dict[int, Ranges] = field(default_factory=dict)
    head: dict[int, int] = field(default_factory=dict)
    """The last cut that was answered."""
    told_head: dict[int, int] = field(default_factory=dict)
    """Where the stream began by the last answer that anybody had."""
    cuts: list[dict[int, int]] = field(default_factory=list)
    """Every one that was asked for."""
    retained: list[dict[int, int]] = field(default_factory=list)
    """Heads that nobody asked for, each explained by a policy."""
    keeping: Keeping = field(default_factory=Keeping)
    times: KnownTimes = field(default_factory=KnownTimes)
    events: list[KnownEvent] = field(default_factory=list)
    transactions: list[KnownTransaction] = field(default_factory=list)
    versions: list[KnownVersion] = field(default_factory=list)
    successors: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def info(self) -> api.StreamInfo:
        return api.StreamInfo(scope=self.scope, stream=self.stream)

    @property
    def is_open(self) -> bool:
        """Whether it surely exists and takes events."""
        return self.stage is Stage.ACTIVE

    def name(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    def segment(self, segment_id: int) -> KnownSegment:
        return self.ledger.segment(self.name(segment_id))

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}#{self.incarnation} {self.stage.name}"

    # --- epochs -----------------------------------------------------------------------------------

    def learn_ranges(self, answer: Sequence[api.SegmentRange]) -> Ranges:
        """Segments that take events together: each key has one."""
        ranges = {each.segmentId.segmentId: (each.minKey, each.maxKey) for each in answer}
        edges = sorted(ranges.values())
        whole = (
            len(ranges) == len(answer)
            and edges[0][0] == 0.0
            and edges[-1][1] == 1.0
            and all(low[1] == high[0] for low, high in itertools.pairwise(edges))
        )
        if not whole:
            raise ModelBreachError(f"{self} has an epoch that is no partition {ranges}")
        for segment_id, keys in ranges.items():
            if self.ranges.setdefault(segment_id, keys) != keys:
                raise ModelBreachError(f"{self} has two ranges for {segment_id}")
        return ranges

    def learn_epoch(self, number: int, answer: Sequence[api.SegmentRange]) -> None:
        ranges = self.learn_ranges(answer)
        if self.epochs.setdefault(number, ranges) != ranges:
            raise ModelBreachError(f"{self} has two epochs {number}")

    def learn_successors(self, segment_id: int, answer: api.SuccessorResponse) -> Ranges:
        """Its keys go on in these, or the stream ends there."""
        found: Ranges = {}
        for each in answer.segments:
            keys = (each.segment.minKey, each.segment.maxKey)
            found[each.segment.segmentId.segmentId] = keys
            if segment_id not in each.value:
                raise ModelBreachError(f"{self} {segment_id} is no predecessor of {each}")
        for each_id, keys in found.items():
            if self.ranges.setdefault(each_id, keys) != keys:
                raise ModelBreachError(f"{self} has two ranges for {each_id}")
        if not found:
            if self.stage is Stage.ACTIVE:
                raise ModelBreachError(f"{self} ends behind {segment_id}, though nobody sealed it")
            return found
        if self.successors.setdefault(segment_id, tuple(sorted(found))) != tuple(sorted(found)):
            raise ModelBreachError(f"{self} has two answers for what comes behind {segment_id}")
        low, high = self.ranges[segment_id]
        covered = sum(max(0.0, min(b, high) - max(a, low)) for a, b in found.values())
        if abs(covered - (high - low)) > 1e-9:
            raise ModelBreachError(f"{self} the keys of {segment_id} do not go on whole {found}")
        return found

    # --- cuts -------------------------------------------------------------------------------------

    def cut_asked(self, cut: Mapping[int, int]) -> None:
        """Whatever lies before it may go from now on."""
        self.cuts.append(dict(cut))

    def cut_answered(self, cut: Mapping[int, int]) -> None:
        """Nobody sees what lies before it any more."""
        self.head = dict(cut)

    def start_min(self, segment_id: int) -> int:
        """Bytes below it are gone, by the last answer."""
        return self.head.get(segment_id, 0)

    def start_max(self, segment_id: int) -> float:
        """Bytes from it on were never cut off, by anything that was asked; infinite if the segment may be gone."""
        if self.stage.value >= Stage.DELETING.value:
            return inf
        return max([0.0, *(self.cut_of(segment_id, cut) for cut in (*self.cuts, *self.retained))])

    def learn_start(self, segment_id: int, start: int, start_min: int) -> None:
        if not start_min <= start <= self.start_max(segment_id):
            raise ModelBreachError(
                f"{self} {segment_id} begins at {start}, cut between {start_min} and"
                f" {self.start_max(segment_id)}"
            )

    def learn_head(self, head: Mapping[int, int], before: Sequence[Mapping[int, int]]) -> None:
        """Where the stream begins. `before`: cuts that were answered before the question."""
        for segment_id, offset in head.items():
            if segment_id not in self.ranges:
                raise ModelBreachError(f"{self} begins in a segment that nobody knows {head}")
            if offset > self.start_max(segment_id) and not self.keeping.policies:
                raise ModelBreachError(f"{self} begins at {head}, where nobody cut it")
            for cut in before:
                if offset < cut.get(segment_id, 0) or (cut and self.lies_behind(segment_id, cut)):
                    raise ModelBreachError(f"{self} begins at {head}, behind the cut {cut}")
        self.told_head = dict(head)

    def lies_behind(self, segment_id: int, cut: Mapping[int, int]) -> bool:
        """Whether every key of the segment has gone on in a later one at the cut."""
        if segment_id in cut:
            return False
        low, high = self.ranges[segment_id]
        over = [each for each in cut if self.ranges[each][0] < high and low < self.ranges[each][1]]
        return all(creation_epoch_of(each) > creation_epoch_of(segment_id) for each in over)

    def cut_of(self, segment_id: int, cut: Mapping[int, int]) -> float:
        """Bytes of the segment below it lie before the cut."""
        if segment_id in cut:
            return cut[segment_id]
        return inf if self.lies_behind(segment_id, cut) else 0
