"""The native digests are those of their twins in Python, whatever the sizes, buffers and kinds of buffers."""

import hashlib
import struct
import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.volumes import objects, volume_format

NATIVE = native_module("segmentstore.runtime.native.digests")
pytestmark = pytest.mark.skipif(NATIVE is None, reason="built without native pieces")
BYTES = Random(1).randbytes(600_000)
PIECE_BYTES = 256 << 10
EDGES = (0, 1, 2, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 129, 1000, 4096, 5000)
KINDS: tuple[Callable[[bytes], BufferView], ...] = (
    bytes,
    lambda content: memoryview(bytearray(content)),
    lambda content: memoryview(content),
)
Contents: TypeAlias = list[list[BufferView]]
Sum: TypeAlias = Callable[[Contents], object]


def buffer_of(size: int, offset: int, kind: int) -> BufferView:
    return KINDS[kind](BYTES[offset : offset + size])


BUFFERS = st.builds(
    buffer_of,
    st.sampled_from(EDGES) | st.integers(0, 3000),
    st.integers(0, 1000),
    st.integers(0, len(KINDS) - 1),
)
CONTENTS = st.lists(st.lists(BUFFERS, max_size=5), max_size=20)


def by_native(contents: Contents, piece_bytes: int, *, hashed: bool) -> object:
    assert NATIVE is not None
    return NATIVE.digest_all(contents, piece_bytes, hashed)


def by_python(contents: Contents, piece_bytes: int, *, hashed: bool) -> object:
    return [objects._digest_parts(one, piece_bytes, hashed=hashed) for one in contents]  # the twin


@settings(deadline=None)
@given(CONTENTS, st.sampled_from((1, 64, 100, 1000, PIECE_BYTES)), st.booleans())
def test_digests_are_those_of_the_twin(contents: Contents, piece_bytes: int, hashed: bool) -> None:
    expected = by_python(contents, piece_bytes, hashed=hashed)
    assert by_native(contents, piece_bytes, hashed=hashed) == expected


@settings(deadline=None)
@given(CONTENTS, st.integers(0, (1 << 32) - 1))
def test_checksums_are_those_of_the_twin(contents: Contents, value: int) -> None:
    assert NATIVE is not None
    expected = [zlib.crc32(b"".join(one), value) for one in contents]
    assert NATIVE.crc32_all(contents, value) == expected
    assert volume_format._crc32_all_in_python(contents, value) == expected  # the twin


def test_checksums_are_right_around_the_widths_of_vectors() -> None:
    assert NATIVE is not None
    for size in (*range(300), *range(1000, 1600), 4095, 4096, 4097, 70_001):
        content = memoryview(BYTES)[size % 67 : size % 67 + size]
        assert NATIVE.crc32_all([[content]], size) == [zlib.crc32(content, size)], size


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 8, 9, 16, 17, 23])
def test_contents_of_every_small_size_are_hashed_side_by_side(count: int) -> None:
    assert NATIVE is not None
    for size in range(300):
        # About the same lengths, in two buffers that are cut anywhere: what is hashed in lanes.
        wholes = [BYTES[number : number + size + number % 3] for number in range(count)]
        contents = [
            [whole[: number * 7 % (size + 1)], whole[number * 7 % (size + 1) :]]
            for number, whole in enumerate(wholes)
        ]
        found = NATIVE.digest_all(contents, PIECE_BYTES, True)
        assert [one[1] for one in found] == [hashlib.sha256(one).digest() for one in wholes], size


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES])
def test_pieces_end_where_they_should(size: int) -> None:
    whole: Contents = [[BYTES[:size]]]
    divided: Contents = [[BYTES[:17], memoryview(BYTES)[17:size]]] * 9
    for contents in (whole, divided):
        expected = by_python(contents, PIECE_BYTES, hashed=True)
        assert by_native(contents, PIECE_BYTES, hashed=True) == expected


@pytest.mark.parametrize(
    "sum_of",
    [
        pytest.param(partial(by_python, piece_bytes=100, hashed=True), id="python"),
        pytest.param(partial(by_native, piece_bytes=100, hashed=True), id="native"),
        pytest.param(
            lambda contents: volume_format._crc32_all_in_python(contents, 0), id="python sums"
        ),  # the twin
        pytest.param(lambda contents: volume_format.crc32_all(contents, 0), id="native sums"),
    ],
)
def test_what_is_no_row_of_bytes_is_refused_by_both(sum_of: Sum) -> None:
    with pytest.raises(BufferError):
        sum_of([[b"good"], [memoryview(b"abcdef")[::2]]])
    for bad in ("text", 7, None):
        with pytest.raises(TypeError):
            sum_of([[b"good", bad]])  # type: ignore[list-item]  # as the test says
    with pytest.raises(TypeError):
        sum_of([5])  # type: ignore[list-item]  # as the test says


def test_numbers_of_several_bytes_are_read_as_bytes() -> None:
    words = memoryview(struct.pack("100I", *range(100))).cast("I")
    contents: Contents = [[words]] * 8
    expected = by_python(contents, 64, hashed=True)
    assert by_native(contents, 64, hashed=True) == expected


def test_buffers_are_given_back() -> None:
    held = bytearray(b"x" * 10_000)
    for_a_while: BufferView = held  # type: ignore[assignment]  # resizable, unlike what it is declared to be
    by_native([[for_a_while]] * 8, 100, hashed=True)
    with pytest.raises(BufferError):
        by_native([[for_a_while], [memoryview(b"abcdef")[::2]]], 100, hashed=True)
    held.clear()  # whoever still held it would refuse
