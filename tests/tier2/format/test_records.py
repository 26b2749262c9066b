"""The record encoding: every record comes back, and nothing else is accepted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.record_fields import Record
from segmentstore.contracts.errors import CorruptedDataError
from tier2.format.records import decode_records, encode_records


def test_the_bytes_are_those_of_the_format() -> None:
    records = [
        Record(1000, 300, b"k", b"value", (("h", b"1"), ("h", b""))),
        Record(1001, 299, b"", b""),
        Record(1131, 299, b"k", b"v"),
    ]
    assert encode_records(records) == bytes.fromhex(
        "e807" "d804" "01" "6b" "05" "76616c7565" "02" "01" "68" "01" "31" "01" "68" "00"
        "01" "01" "00" "00" "00"
        "8201" "00" "01" "6b" "01" "76" "00"
    )  # fmt: skip


def test_consecutive_records_spend_one_byte_on_offset_and_time_each() -> None:
    records = [Record(1 << 40 | number, 1_795_000_000_000, b"", b"") for number in range(1000)]
    first = len(encode_records(records[:1]))
    assert len(encode_records(records)) == first + 999 * 5


records_of_a_block = st.lists(
    st.tuples(
        st.integers(1, 2**40),
        st.integers(-(2**63), 2**63 - 1),
        st.binary(max_size=200),
        st.binary(max_size=20),
        st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=5)), max_size=3),
    ),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(start=st.integers(0, 2**63), parts=records_of_a_block)
def test_every_record_comes_back(
    start: int,
    parts: list[tuple[int, int, bytes, bytes, list[tuple[str, bytes]]]],
) -> None:
    records = []
    offset = start - 1
    for step, timestamp_ms, key, value, headers in parts:
        offset += step
        records.append(Record(offset, timestamp_ms, key, value, tuple(headers)))
    block = encode_records(records)
    assert list(decode_records(memoryview(block))) == records


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=60))
def test_noise_is_refused_or_is_the_one_encoding_of_what_it_reads_as(noise: bytes) -> None:
    try:
        records = list(decode_records(noise))
    except CorruptedDataError:
        return
    if all("\ufffd" not in name for each in records for name, _ in each.headers):
        assert encode_records(records) == noise


def test_a_cut_off_block_is_refused() -> None:
    block = encode_records([Record(5, 6, b"key", b"value", (("name", b"x"),))])
    for length in range(1, len(block)):
        with pytest.raises(CorruptedDataError):
            list(decode_records(block[:length]))


@pytest.mark.parametrize(
    "block",
    [
        "0000000000 0000000000",  # an offset that does not grow
        "8000 00000000",  # a varint with a byte too many
        "ffffffffffffffffffff01 00000000",  # a varint that does not end in time
        "ffffffffffffffffff02 00000000",  # a varint of more than 64 bits
        "ffffffffffffffffff01 00000000 0100000000",  # an offset behind the last one
        "0000 ffffffff0f 00",  # a key longer than the block
        "00000000 ffffffff0f",  # more headers than can follow
    ],
)
def test_a_record_that_cannot_be_is_refused(block: str) -> None:
    with pytest.raises(CorruptedDataError):
        list(decode_records(bytes.fromhex(block)))


@pytest.mark.parametrize(
    "records",
    [
        [Record(5, 0, b"", b""), Record(5, 0, b"", b"")],
        [Record(-1, 0, b"", b"")],
        [Record(2**64, 0, b"", b"")],
        [Record(0, 2**63, b"", b"")],
    ],
)
def test_a_record_that_does_not_fit_is_the_callers_mistake(records: list[Record]) -> None:
    with pytest.raises(ValueError, match="offset"):
        encode_records(records)
