"""Keys hashed by the column go where a single key goes."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.routing_hash import event_position
from segmentstore.spark.sink.event_encoder import key_positions


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.text("abc/0", max_size=70)), max_size=30))
def test_the_position_of_a_key_is_that_of_every_other_writer(keys: list[str]) -> None:
    # Lone surrogates are no text that a column can hold.
    keys = [key.encode(errors="ignore").decode() for key in keys]
    column = pa.array([key.encode() for key in keys], pa.binary())
    assert key_positions(column).tolist() == [event_position(key) for key in keys]


def test_every_length_of_a_key_is_hashed_alike() -> None:
    keys = ["k" * length for length in range(70)]
    column = pa.array([key.encode() for key in keys], pa.binary())
    assert key_positions(column).tolist() == [event_position(key) for key in keys]


def test_a_key_that_is_no_text_has_a_place_too() -> None:
    keys = [b"\xff\x00", b"\xff\x00", b"\xff\x01", b"\xc3"]
    positions = key_positions(pa.array(keys, pa.binary()))
    assert positions[0] == positions[1] != positions[2]
    assert ((positions >= 0) & (positions < 1)).all()


def test_a_slice_of_a_column_is_hashed_as_what_it_shows() -> None:
    column = pa.array([b"a", b"bb", b"ccc", b"dd"], pa.binary())
    assert np.array_equal(key_positions(column)[1:3], key_positions(column.slice(1, 2)))
