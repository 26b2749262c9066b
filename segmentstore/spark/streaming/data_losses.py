"""What happens when events that a query has not read are gone: it fails, or it says so and goes on.

Invariants:

- With `fail_on_data_loss` nothing is passed over in silence: the first loss is an error that names range and head.
- Without it every lost stretch is logged once and counted.
"""

import logging

from segmentstore.spark.errors import DataLossError, StreamMissingError
from segmentstore.spark.stream_map import MappedSegment
from segmentstore.spark.streaming.stream_order import SegmentStretch

_LOG = logging.getLogger(__name__)


class DataLosses:
    """Of one query."""

    def __init__(self, *, fail_on_data_loss: bool) -> None:
        self._fail = fail_on_data_loss
        self._told: dict[tuple[str, int, int], None] = {}

    @property
    def count(self) -> int:
        """Stretches that were passed over."""
        return len(self._told)

    def compare(self, segment: MappedSegment, wanted: SegmentStretch) -> None:
        """Whether the stretch can be read. Raises DataLossError if that is asked for."""
        if segment.start_offset <= wanted.start and wanted.end <= segment.end_offset:
            return
        self._lost(segment.name, wanted.start, wanted.end, segment.start_offset, segment.end_offset)

    def segment_is_gone(self, stream: str, wanted: SegmentStretch) -> None:
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
