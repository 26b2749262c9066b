"""Puts the records of a log together again from its data frames.

Invariants checked on the way (each violation is corruption: Tier 1 vouched for these entries):
- within an epoch frame numbers have no gap; epochs only grow;
- the first frame of an epoch continues nothing; what the epoch before left half written is dropped, because it
  was never acknowledged;
- a record that is continued continues exactly where it stopped.
"""

from collections.abc import Callable, Iterator

from containers.log.data_frame import DataFrame
from containers.operations.record_codec import LENGTH_FIELD_BYTES
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import Epoch


def _take_none(_payload: memoryview, position: int) -> int:
    return position


class RecordStream:
    """Feed frames in order; get whole records."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)
        self._frame_number = 0
        self._seen = False
        self._partial = bytearray()
        self._wanted = 0
        """Whole length of the record in `_partial`; 0 while its length field is not complete."""
        self._skipping = False
        """The head of the present record was truncated away."""

    def records(
        self, frame: DataFrame, *, take: Callable[[memoryview, int], int] = _take_none
    ) -> Iterator[memoryview]:
        """The records that end in this frame, each as one view that is valid until the next step.

        `take` is asked before each record that begins here, with the payload and the record's position: it may make use
        of that record and any number of whole ones behind it, and gives the position behind those. They are left out.
        """
        self._follow(frame)
        payload = frame.payload
        position = frame.leading_bytes
        if frame.leading_bytes and not self._skipping:
            self._partial += payload[: frame.leading_bytes]
            self._learn_length()
            if self._wanted and len(self._partial) > self._wanted:
                raise DataCorruptionError(
                    f"record is continued too far frame={frame.frame_number} "
                    f"wanted={self._wanted} have={len(self._partial)}"
                )
            if len(self._partial) == self._wanted:
                whole, self._partial, self._wanted = self._partial, bytearray(), 0
                yield memoryview(whole)
        if self._skipping and frame.leading_bytes < len(payload):
            self._skipping = False
        if self._partial and position < len(payload):
            raise DataCorruptionError(f"record is not continued frame={frame.frame_number}")
        end = len(payload)
        while position < end:
            position = take(payload, position)
            if end - position < LENGTH_FIELD_BYTES:
                break
            length = LENGTH_FIELD_BYTES + int.from_bytes(
                payload[position : position + LENGTH_FIELD_BYTES], "little"
            )
            if position + length > end:
                break
            yield payload[position : position + length]
            position += length
        if position < end:
            self._partial = bytearray(payload[position:])
            self._wanted = 0
            self._learn_length()

    def _learn_length(self) -> None:
        if not self._wanted and len(self._partial) >= LENGTH_FIELD_BYTES:
            self._wanted = LENGTH_FIELD_BYTES + int.from_bytes(
                self._partial[:LENGTH_FIELD_BYTES], "little"
            )

    def _follow(self, frame: DataFrame) -> None:
        if not self._seen:
            self._seen = True
            self._skipping = frame.leading_bytes > 0
        elif frame.epoch > self._epoch:
            if frame.leading_bytes:
                raise DataCorruptionError(
                    f"an epoch begins in the middle of a record epoch={frame.epoch}"
                )
            self._partial = bytearray()
            self._wanted = 0
            self._skipping = False
        elif frame.epoch < self._epoch or frame.frame_number != self._frame_number + 1:
            raise DataCorruptionError(
                f"data frames have a gap epoch={self._epoch} frame={self._frame_number} "
                f"next_epoch={frame.epoch} next_frame={frame.frame_number}"
            )
        elif frame.leading_bytes and not self._partial and not self._skipping:
            raise DataCorruptionError(
                f"a record is continued that never began {frame.frame_number}"
            )
        self._epoch = frame.epoch
        self._frame_number = frame.frame_number
