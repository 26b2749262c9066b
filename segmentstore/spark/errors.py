"""What can go wrong in a read from Spark, beyond the errors of Tier 2 and of the client."""

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError


class DataLossError(SegmentStoreError):
    """What a query asked for is not there any more, or never was, and failOnDataLoss is true."""

    kind = ErrorKind.CONFLICT

    def __init__(self, segment: str, *, start: int, end: int, head: int, tail: int) -> None:
        super().__init__(
            f"data is lost: the range was asked for and is not all there; failOnDataLoss=false reads what is left "
            f"segment={segment!r} asked=[{start}, {end}) head={head} tail={tail}"
        )
        self.segment = segment
        self.start = start
        self.end = end
        self.head = head
        self.tail = tail
        """As far as it can be read; of a segment that is gone both are 0."""

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross from Spark's workers to its driver by pickle."""
        return (_again, (self.segment, self.start, self.end, self.head, self.tail))


class StreamMissingError(SegmentStoreError):
    """There is no such scope, stream or segment where the query looks for it."""

    kind = ErrorKind.NOT_FOUND


def _again(segment: str, start: int, end: int, head: int, tail: int) -> DataLossError:
    return DataLossError(segment, start=start, end=end, head=head, tail=tail)
