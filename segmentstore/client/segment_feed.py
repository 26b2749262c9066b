"""The events of one segment from an offset on, a piece at a time, waiting at the tail.

Invariants:

- Events come in order, each once, whatever breaks: a read is repeated from where the last one ended.
- Where the head was truncated away, the feed goes on at the new head; a segment that is gone altogether has ended.
"""

from segmentstore.client.errors import DeadlineExceededError
from segmentstore.client.event_frames import EventParser
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.codec.wire_protocol.reads import ReadSegment, SegmentRead
from segmentstore.contracts.errors import (
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)


class SegmentFeed:
    """`next_events()` until it says that the segment has ended."""

    def __init__(
        self, *, stream: str, segment_id: int, segment: str, offset: int, calls: SegmentCalls
    ) -> None:
        self.stream = stream
        self.segment_id = segment_id
        self._segment = segment
        self._calls = calls
        self._parser = EventParser(segment, offset)
        self._has_ended = False

    async def next_events(self) -> list[tuple[bytes, int]] | None:
        """Some events with the offsets behind them, or None at the end of the segment.

        Waits as long as it takes. Raises CorruptedDataError if the bytes are no events, and ClientError.
        """
        while not self._has_ended:
            try:
                answer = await self._calls.ask(
                    self._segment,
                    lambda request_id: ReadSegment(
                        self._segment,
                        self._parser.next_offset,
                        self._calls.settings.read_bytes,
                        "",
                        request_id,
                    ),
                    SegmentRead,
                    seconds=self._calls.settings.long_poll_seconds,
                )
            except DeadlineExceededError:
                continue
            except SegmentTruncatedError as error:
                self._parser = EventParser(self._segment, error.start_offset)
                continue
            except (SegmentSealedError, SegmentNotFoundError):
                break
            self._has_ended = answer.end_of_segment
            if events := self._parser.events(answer.data):
                return events
        self._has_ended = True
        return None
