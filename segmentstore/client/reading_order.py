"""When a segment that follows others may be read, and which segments make up a position in the stream.

Invariants:

- A successor is let go exactly once, by the last of its predecessors to finish, whatever their order.
- A finished segment belongs to the position (at its end) until everything that follows it has begun and everything
  before it has left; a reader that starts from the position then neither misses a successor nor waits for a predecessor
  that was read long ago.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from segmentstore.client.key_space import Successor


@dataclass(slots=True)
class ReadingOrder:
    """Of one stream. The user keeps which segments have begun (`begun`): those in its position."""

    waiting: dict[int, list[int]] = field(default_factory=dict)
    """By successor: the predecessors that are not finished yet."""
    ended: dict[int, list[int]] = field(default_factory=dict)
    """By finished segment that is still in the position: what follows it."""

    def finish(
        self, segment_id: int, successors: Sequence[Successor], begun: Container[int]
    ) -> list[int]:
        """Note that a segment was read to its end; the successors that begin now."""
        self.ended[segment_id] = [each.range.segment_id for each in successors]
        ready: list[int] = []
        for each in successors:
            following = each.range.segment_id
            if following in begun:
                continue  # the position that the reading began with holds it already
            # The first predecessor to finish brings the whole list; the others find it here.
            rest = self.waiting.setdefault(following, list(each.predecessors))
            if segment_id in rest:
                rest.remove(segment_id)
            if not rest:
                del self.waiting[following]
                ready.append(following)
        return ready

    def settle(self, begun: Container[int]) -> list[int]:
        """Finished segments that leave the position now. O(finished segments in it, squared)."""
        left: list[int] = []
        # Ids grow with epochs, so predecessors come first.
        for segment_id in sorted(self.ended):
            following = self.ended[segment_id]
            has_predecessor = any(segment_id in other for other in self.ended.values())
            if following and not has_predecessor and all(each in begun for each in following):
                del self.ended[segment_id]
                left.append(segment_id)
        return left
