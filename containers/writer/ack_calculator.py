"""How far the log may be truncated.

Every aggregator names the lowest sequence number of it that is not yet under a published root: bytes, attributes,
creation, seal, truncation, merge and deletion alike. Everything below the lowest of them is in Tier 2 (H13), and if
nobody holds anything back, everything that was consumed.

    consumed up to 90
    segment 1 holds 41, 60      lowest 41
    segment 2 holds 44, 45      lowest 44      ->  acknowledge 40
"""

from segmentstore.contracts.identifiers import SequenceNumber


class AckCalculator:
    """One calculation: made with what was consumed, told what is held back, asked for the result."""

    def __init__(self, consumed_up_to: SequenceNumber) -> None:
        self._up_to = consumed_up_to

    def hold_back(self, lowest_unpublished: SequenceNumber) -> None:
        """An aggregator has not published this operation; all its others come later."""
        if lowest_unpublished <= self._up_to:
            self._up_to = SequenceNumber(lowest_unpublished - 1)

    @property
    def result(self) -> SequenceNumber:
        """The highest number that may be acknowledged."""
        return self._up_to
