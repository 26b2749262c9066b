"""The look-ups of one key each that a connection sends, answered where they stand in what was received.

A client that keeps many of them under way sends some dozens in one read of the socket. What is in memory is found at
once, so nothing of them is kept: they are read one behind the other, and their answers are one piece of what is sent.

- Taken are neighbours of one table in their usual shape. The first that is anything else, or asks for what is not in
  memory, ends the run, and takes the way of all commands.
- A run ends after `RUN_FRAMES`, or when its answers have `_RUN_BYTES`: then it is time to look at how much is under
  way.
"""

from typing import Final

from segmentstore.codec.wire_protocol.command import FRAME_HEADER, FRAME_HEADER_BYTES
from segmentstore.codec.wire_protocol.tables import ReadTable
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.tables import Table
from segmentstore.wire.handle_pins import HandlePins
from segmentstore.wire.outgoing import Outgoing
from segmentstore.wire.statistics import WireCounters
from segmentstore.wire.table_frames import (
    KEY_AT,
    RUN_FRAMES,
    NamedTable,
    encode_single_read,
    payload_of_next,
    read_named_table,
    read_single_key,
)

_READ_TABLE: Final = ReadTable.type
_REQUEST_ID_BYTES: Final = 8
_RUN_BYTES: Final = 64 * 1024


class TableLookUps:
    """answer() any number."""

    def __init__(
        self, *, pins: HandlePins[Table], outgoing: Outgoing, counters: WireCounters
    ) -> None:
        self._pins = pins
        self._outgoing = outgoing
        self._counters = counters
        self._named: NamedTable | None = None
        """Of the look-up before: clients go on with the same table."""

    def answer(self, view: memoryview, position: int, limit: int) -> tuple[int, int]:
        """(where the first frame begins that is not answered, how many were answered before it).

        `limit` is where the received bytes end. Raises ProtocolError for a name that is no text.
        """
        _, length = FRAME_HEADER.unpack_from(view, position)
        begin = position + FRAME_HEADER_BYTES
        payload = bytes(view[begin : begin + length])
        named = self._named
        if named is None or not named.begins(payload):
            named = self._named = read_named_table(payload)
            if named is None:
                return position, 0
        pin = self._pins.lease_nowait(named.segment)
        if pin is None:
            return position, 0
        try:
            return self._answer_from(pin.handle, named, view, position, limit)
        finally:
            self._pins.release(pin)

    def _answer_from(
        self, table: Table, named: NamedTable, view: memoryview, position: int, limit: int
    ) -> tuple[int, int]:
        parts: list[bytes] = []
        count = byte_count = 0
        keys_begin = named.end
        while count < RUN_FRAMES and byte_count < _RUN_BYTES:
            frame = payload_of_next(view, position, limit, kind=_READ_TABLE)
            if frame is None:
                break
            payload, end = frame
            if not named.begins(payload):
                break
            key_end = read_single_key(payload, keys_begin)
            if key_end is None:
                break
            try:
                found = table.get_nowait((payload[keys_begin + KEY_AT : key_end],))
            except SegmentStoreError:
                break  # Met again, and told, by whoever takes over.
            if found is None:
                break
            entry = found[0]
            parts += encode_single_read(
                payload[:_REQUEST_ID_BYTES], named.name, payload[keys_begin:key_end], entry
            )
            byte_count += len(payload) + (0 if entry is None else len(entry.value))
            count += 1
            position = end
        if count:
            self._counters.requests += count
            self._outgoing.send(b"".join(parts))
        return position, count
