import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.streams.offsets import Position, decode_offset, encode_offset, lag_bytes

cuts = st.dictionaries(st.integers(0, (1 << 62) - 1), st.integers(0, (1 << 62) - 1), max_size=5)
scopes = st.dictionaries(st.sampled_from(["plant/a", "plant/b", "plant/c"]), cuts)


@given(cut=cuts)
def test_a_position_of_one_stream_survives_the_checkpoint(cut: dict[int, int]) -> None:
    written = json.dumps(encode_offset({"plant/a": cut}, single="plant/a"))
    assert decode_offset(json.loads(written), single="plant/a") == {"plant/a": cut}


@given(position=scopes)
def test_a_position_of_a_scope_survives_the_checkpoint(position: dict[str, dict[int, int]]) -> None:
    written = json.dumps(encode_offset(position, single=None))
    assert decode_offset(json.loads(written), single=None) == position


@given(cut=cuts.filter(bool))
def test_a_position_of_one_stream_is_taken_as_a_starting_position(cut: dict[int, int]) -> None:
    written = json.dumps(encode_offset({"plant/a": cut}, single="plant/a"))
    assert Position.parse(written).offsets == cut


@pytest.mark.parametrize(
    "content", [{"0": "12"}, {"zero": 12}, {"0": True}, {"0": {"1": 2}}, {"plant/a": {"0": 1}}]
)
def test_what_is_no_position_of_one_stream_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="not a position of this query"):
        decode_offset(content, single="plant/a")


def test_a_position_of_one_stream_is_refused_by_a_query_of_a_scope() -> None:
    with pytest.raises(InvalidRequestError, match="not a position of this query"):
        decode_offset({"0": 12}, single=None)


def test_positions_in_old_checkpoints_are_read_as_they_were_written() -> None:
    one = '{"0": 1024, "4294967297": 0}'
    assert decode_offset(json.loads(one), single="plant/a") == {"plant/a": {0: 1024, 4294967297: 0}}
    assert json.dumps(encode_offset({"plant/a": {4294967297: 0, 0: 1024}}, single="plant/a")) == one
    many = '{"plant/a": {"0": 1024}, "plant/b": {}}'
    assert decode_offset(json.loads(many), single=None) == {"plant/a": {0: 1024}, "plant/b": {}}
    assert json.dumps(encode_offset({"plant/b": {}, "plant/a": {0: 1024}}, single=None)) == many


def test_lag_counts_what_is_behind_in_known_and_in_later_segments() -> None:
    assert lag_bytes(end_offset={"0": 60}, latest_offset={"0": 140, "1": 100}) == 180
    assert lag_bytes(end_offset={"0": 60}, latest_offset={"0": 40}) == 0
    nested = {"plant/a": {"0": 10}}
    assert (
        lag_bytes(end_offset=nested, latest_offset={"plant/a": {"0": 15}, "plant/b": {"0": 4}}) == 9
    )
