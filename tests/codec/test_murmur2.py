"""The hash against values that Kafka's own clients have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.murmur2 import murmur2, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        ("abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafka(text: str, expected: int) -> None:
    assert murmur2(text.encode()) == expected % (1 << 32)


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_every_key_has_a_partition(key: bytes, count: int) -> None:
    assert 0 <= partition_of(key, partition_count=count) < count
