"""What happens when a read asks for data that is not there: failOnDataLoss decides whether it fails or goes on.

Invariants:

- With `fail_on_data_loss` nothing is passed over in silence: the first loss is an error that names range and head.
- Without it every lost range is logged: of a whole query once by `DataLossPolicy`, which counts it; by tasks as met.
"""

import logging

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.spark.streams.segment_graph import (
    OffsetRange,
    StreamMissingError,
    StreamSegmentMetadata,
)

_LOG = logging.getLogger(__name__)


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
        return (_rebuild_error, (self.segment, self.start, self.end, self.head, self.tail))


def pass_over(loss: DataLossError, *, fail: bool) -> None:
    """What one task of a query does about it. Raises the loss if that is asked for."""
    if fail:
        raise loss
    _LOG.warning("going on without what is lost: %s", loss)


def _rebuild_error(segment: str, start: int, end: int, head: int, tail: int) -> DataLossError:
    return DataLossError(segment, start=start, end=end, head=head, tail=tail)


class DataLossPolicy:
    """Of one query."""

    def __init__(self, *, fail_on_data_loss: bool) -> None:
        self._fail = fail_on_data_loss
        self._told: dict[tuple[str, int, int], None] = {}

    @property
    def fails(self) -> bool:
        """Whether a loss is an error."""
        return self._fail

    @property
    def count(self) -> int:
        """Stretches that were passed over."""
        return len(self._told)

    def compare(self, segment: StreamSegmentMetadata, wanted: OffsetRange) -> None:
        """Whether the stretch can be read. Raises DataLossError if that is asked for."""
        if segment.start_offset <= wanted.start and wanted.end <= segment.end_offset:
            return
        self._lost(segment.name, wanted.start, wanted.end, segment.start_offset, segment.end_offset)

    def segment_is_gone(self, stream: str, wanted: OffsetRange) -> None:
        """The segment lies before the head of its stream, or is none of it. Raises DataLossError."""
        self._lost(f"{stream} segment_id={wanted.segment_id}", wanted.start, wanted.end, 0, 0)

    def stream_is_gone(self, stream: str) -> None:
        """Raises StreamMissingError."""
        if self._fail:
            raise StreamMissingError(
                f"a stream that the query reads is gone; failOnDataLoss=false goes on without it stream={stream}"
            )
        self._tell(stream, 0, 0, "the stream is gone")

    def _lost(self, segment: str, start: int, end: int, head: int, tail: int) -> None:
        if self._fail:
            raise DataLossError(segment, start=start, end=end, head=head, tail=tail)
        self._tell(segment, start, end, f"head={head} tail={tail}")

    def _tell(self, name: str, start: int, end: int, why: str) -> None:
        key = (name, start, end)
        if key not in self._told:
            self._told[key] = None
            _LOG.warning(
                "data is lost and passed over what=%s range=[%d, %d) %s", name, *key[1:], why
            )
