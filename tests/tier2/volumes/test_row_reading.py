"""Small objects out of their rows, natively and row by row: the same answers, whatever bytes the index has.

Method: rows of all shapes, some of them damaged, stand in a pretended index; the same look-ups are made with the native
piece and without it. What they answer, or why they do not, has to be the same to the last type.
"""

import sys
from collections.abc import Sequence
from typing import cast
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.runtime.native import native_module
from tier2.volumes import reader
from tier2.volumes.index import ObjectRow, encode_object_row
from tier2.volumes.index_database import BufferedIndex
from tier2.volumes.objects import IndexRecord, RetentionMode, StoredObject
from tier2.volumes.reader import ObjectReader, ReadRequest
from tier2.volumes.volume_files import VolumeFiles

NATIVE = native_module("tier2.volumes.native.row_reading")
needs_native = pytest.mark.skipif(NATIVE is None, reason="it was not built, or is switched off")
numbers = st.integers(0, (1 << 64) - 1)
texts = st.text(max_size=12, alphabet=st.characters(codec="utf-8"))


def record_of(content: bytes, **changed: object) -> IndexRecord:
    fields: dict[str, object] = {
        "size": len(content),
        "sequence": 5,
        "content_hash": bytes(range(32)),
        "etag": "0123456789abcdef" * 2,
        "created_ms": 7,
        "piece_bytes": 256 << 10,
        "pieces": (crc32(content),),
        "inline": True,
    }
    return IndexRecord(**{**fields, **changed})  # type: ignore[arg-type]


def row_of(content: bytes, **changed: object) -> bytes:
    record = record_of(content, **changed)
    return encode_object_row(ObjectRow(1, 64, 200, record, content if record.inline else None))


GOOD = row_of(b"content")
RECORD_AT = 24
"""Where the index record of a row begins, behind its place and its length."""


@st.composite
def usual_fields(draw: st.DrawFn) -> dict[str, object]:
    return {
        "sequence": draw(numbers),
        "oldest": draw(numbers),
        "created_ms": draw(numbers),
        "etag": draw(texts),
        "content_type": draw(texts),
        "metadata": draw(st.dictionaries(texts, texts, max_size=3)),
        "version_id": draw(texts),
        "versioned": draw(st.booleans()),
    }


contents_of_objects = st.binary(min_size=1, max_size=300)


@st.composite
def shapes(draw: st.DrawFn) -> bytes:
    """Rows of all kinds, also such as are never written."""
    content, fields = draw(contents_of_objects), draw(usual_fields())
    pieces: tuple[int, ...] = (crc32(content),)
    unusual: list[dict[str, object]] = [
        {"legal_hold": True, "retention_mode": RetentionMode.GOVERNANCE, "retain_until_ms": 9},
        {"inline": False},
        {"delete_marker": True, "size": 0, "pieces": (), "inline": False},
        {"pieces": (pieces[0] ^ 1,)},
        {"pieces": pieces * 2},
        {"piece_bytes": draw(st.integers(1, 300))},
        {"size": draw(st.integers(0, 400))},
    ]
    return row_of(content, **fields, **draw(st.sampled_from([{}, {}, *unusual])))


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Also damaged ones, and what is no row."""
    row = draw(shapes())
    damage = draw(st.integers(0, 11))
    position = draw(st.integers(0, len(row) - 1))
    if damage == 0:
        return row[:position]
    if damage == 1:
        return row + draw(st.binary(min_size=1, max_size=9))
    if damage == 2:
        return draw(st.binary(max_size=200))
    if damage in (3, 4, 5):
        return row[:position] + bytes([draw(st.integers(0, 255))]) + row[position + 1 :]
    return row


class Rows:
    """An index that has these contents, for whoever asks for as many."""

    def __init__(self, contents: Sequence[bytes | None]) -> None:
        self._contents = contents

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        assert len(keys) == len(self._contents), f"{len(keys)=}"
        return self._contents


def looked_up(
    contents: Sequence[bytes | None], wanted: ReadRequest, *, native: bool
) -> list[StoredObject | ObjectRow | Exception]:
    index = cast(BufferedIndex, Rows([*contents, None]))
    with pytest.MonkeyPatch.context() as patched:
        if not native:
            patched.setattr(reader, "_NATIVE_ROW_READING", None)
        looking = ObjectReader(index=index, volumes=cast(VolumeFiles, None))
        found = looking.look_up([wanted] * (len(contents) + 1))
    return found[:-1]


def small_objects(contents: Sequence[bytes | Exception | None]) -> list[StoredObject | None]:
    assert NATIVE is not None
    found: list[StoredObject | None] = NATIVE.small_objects(contents, IndexRecord, StoredObject)
    return found


@needs_native
@given(
    st.lists(st.one_of(st.none(), rows()), min_size=1, max_size=8),
    st.integers(0, 400),
    st.one_of(st.none(), st.integers(0, 400)),
)
@example([row_of(b"content")], 0, None)
@example([row_of(b"content")], 0, 0)
@example([row_of(b"content")], 7, 1)
@example([row_of(b"\xff", etag="\u00e9", metadata={"\u00e9": "\U0001f600"})], 0, None)
def test_small_objects_are_the_same_natively_and_row_by_row(
    contents: list[bytes | None], start: int, length: int | None
) -> None:
    wanted = ReadRequest(b"key", None, start, length)
    natively = looked_up(contents, wanted, native=True)
    row_by_row = looked_up(contents, wanted, native=False)
    assert list(map(repr, natively)) == list(map(repr, row_by_row))


@needs_native
@given(contents_of_objects, usual_fields())
def test_what_is_usual_is_answered_by_the_native_piece(
    content: bytes, fields: dict[str, object]
) -> None:
    (found,) = small_objects([row_of(content, **fields)])
    assert repr(found) == repr(StoredObject(record_of(content, **fields), content))


@needs_native
def test_damaged_bytes_and_texts_are_never_answered() -> None:
    row = row_of(b"content", etag="etag", content_type="type", metadata={"name": "value"})
    assert small_objects([row]) != [None]
    assert small_objects([row[:-1] + b"T"]) == [None]
    for text in (b"etag", b"type", b"name", b"value"):
        assert small_objects([row.replace(text, b"\xff" * len(text))]) == [None]
    assert all(small_objects([row[:end]]) == [None] for end in range(len(row)))
    assert small_objects([None, CorruptedDataError("a page"), row, b""])[:2] == [None, None]


def patched(row: bytes, position: int, change: bytes) -> bytes:
    """From the start of the index record, or from its end, with other bytes there."""
    length = int.from_bytes(row[RECORD_AT - 4 : RECORD_AT], "big")
    start = RECORD_AT + (position if position >= 0 else length + position)
    return row[:start] + change + row[start + len(change) :]


def stretched(row: bytes) -> bytes:
    """With a byte behind its index record that is counted to it."""
    length = int.from_bytes(row[RECORD_AT - 4 : RECORD_AT], "big")
    end = RECORD_AT + length
    return (
        row[: RECORD_AT - 4]
        + (length + 1).to_bytes(4, "big")
        + row[RECORD_AT:end]
        + b"\0"
        + row[end:]
    )


@needs_native
@pytest.mark.parametrize(
    "row",
    [
        patched(GOOD, 0, b"\x02"),
        patched(GOOD, 1, b"\x60"),
        patched(GOOD, 1, b"\x22"),
        patched(GOOD, 1, b"\x30"),
        patched(GOOD, 3, b"\x01"),
        patched(GOOD, -8, bytes(4)),
        patched(GOOD, -8, b"\x00\x00\x00\x02"),
        stretched(GOOD),
        GOOD + b"t",
        row_of(b"content", size=3, pieces=(crc32(b"con"),)),
        row_of(b"content", size=8),
        row_of(b"content", piece_bytes=3),
        row_of(b"content", piece_bytes=0),
        row_of(b"content", pieces=()),
    ],
)
def test_rows_that_lie_are_judged_as_without_it(row: bytes) -> None:
    wanted = ReadRequest(b"key", None)
    natively, row_by_row = (looked_up([row], wanted, native=native) for native in (True, False))
    assert list(map(repr, natively)) == list(map(repr, row_by_row))


@needs_native
def test_nothing_is_kept_of_rows_that_were_looked_at() -> None:
    good = row_of(b"content" * 20, metadata={"name": "value"}, version_id="v")
    contents = [good, good.replace(b"value", b"\xff" * 5), good[:-3], None]
    small_objects(contents)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        small_objects(contents)
    assert sys.getallocatedblocks() - before < 100


@needs_native
def test_what_is_no_list_or_no_type_is_refused() -> None:
    assert NATIVE is not None
    with pytest.raises(TypeError):
        NATIVE.small_objects(7, IndexRecord, StoredObject)
    with pytest.raises(TypeError):
        NATIVE.small_objects([], IndexRecord(1, 1, b"", "", 0, 0), StoredObject)
    with pytest.raises(AttributeError):
        NATIVE.small_objects([row_of(b"content")], StoredObject, StoredObject)
