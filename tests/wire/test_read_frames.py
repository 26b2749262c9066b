"""A ReadSegment says the same whether the general codec reads it or not."""

from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.reads import ReadSegment
from segmentstore.wire.reads import read_request

HEADER_BYTES = 8
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(max_size=12)
REQUESTS = st.builds(ReadSegment, TEXT, INT64, INT32, TEXT, INT64)


@given(REQUESTS)
def test_a_request_is_read_as_the_codec_reads_it(command: ReadSegment) -> None:
    assert read_request(command.encode()[HEADER_BYTES:]) == command


@given(REQUESTS, st.data())
def test_a_damaged_request_is_read_as_the_codec_reads_it_or_left_to_it(
    command: ReadSegment, data: st.DataObject
) -> None:
    payload = bytearray(command.encode()[HEADER_BYTES:])
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload) - 1)) :]
    else:
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload)
    expected: ReadSegment | None
    try:
        expected = ReadSegment.decode(damaged)
    except ProtocolError:
        expected = None
    try:
        assert read_request(damaged) in (expected, None)
    except ProtocolError:
        assert expected is None
