"""The native walk over records and its twin in Python come to the same, whatever bytes they are given.

Method: random groups of records are written by hand, some with lengths that lie but checksums that hold, then damaged;
both walk over a copy of their own. What they say, what they made of the memory, and whom they asked has to be the same.
"""

import gc
import struct
import weakref
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tier2.volumes.index_database import NewRow
from tier2.volumes.rebuild import Walk, Walked, native_walk, walk_in_python

SEED = 0xDEADBEEF
START = (1 << 33) + 64
VOLUME = 7
MANY = 300
"""More than the native walk looks at in one go."""

NATIVE = native_walk()
needs_native = pytest.mark.skipif(NATIVE is None, reason="it was not built, or is switched off")


def native() -> Walk:
    assert NATIVE is not None
    return NATIVE


@dataclass
class Seen:
    """What one of them came to."""

    walked: Walked
    memory: bytes
    rows: list[tuple[bytes, bytes]]
    asked: list[int] = field(default_factory=list)


def walked_by(walk: Walk, content: bytes, refused: int) -> Seen:
    """`refused`: so manieth other record is said to be bad."""
    memory = memoryview(bytearray(content))
    rows: list[NewRow] = []
    asked: list[int] = []

    def take_other(offset: int) -> bool:
        asked.append(offset)
        return len(asked) != refused

    walked = walk(memory, START, VOLUME, SEED, rows, take_other)
    return Seen(walked, bytes(memory), [(key, bytes(row)) for key, row in rows], asked)


def record(
    key: bytes,
    blob: bytes,
    *,
    sequence: int,
    left: int,
    kind: int = 1,
    flags: int = 0x01200000,
    id_length: int = 0,
    short: int = 0,
    lies: dict[str, int] | None = None,
) -> bytes:
    """A record; `lies` are fields of it that say something else, under checksums that hold."""
    fields = {"size": len(blob), "number": sequence} | (lies or {})
    indexed = struct.pack(">IQQ60xH", flags, fields["size"], fields["number"], id_length)
    indexed = (indexed + b"rest")[: 86 - short]
    fields = {"key": len(key), "blob": len(blob), "indexed": len(indexed)} | fields
    body = key + indexed + blob
    checked = struct.pack(
        ">IQIQBBHIQ",
        crc32(body[: fields.get("checked")], SEED),
        1,
        fields["key"],
        fields["blob"],
        kind == 3,
        kind,
        left,
        fields["indexed"],
        sequence,
    )
    front = struct.pack(">4sI", b"S4rc", crc32(checked, SEED)) + checked
    return front + body + bytes(-len(front + body) % 8)


SMALL = [0, 1, 7, 8, 500, 1 << 12, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
HUGE = [
    (1 << 63) - 1,
    1 << 63,
    *((1 << 64) - less for less in (1, 8, 48, 89, 90, 96, 137, 138, 200)),
]
LENGTHS = st.sampled_from(SMALL)
LIES = st.one_of(
    st.none(),
    st.none(),
    st.none(),
    st.fixed_dictionaries(
        {}, optional={"key": LENGTHS, "blob": st.sampled_from(SMALL + HUGE), "indexed": LENGTHS}
    ),
    st.sampled_from([{"size": 3}, {"number": 3}]),
)


FILLINGS = st.sampled_from([b"\0", b"x", b"S4rc"])


@st.composite
def volumes(draw: st.DrawFn) -> bytes:
    """Groups of records, most of them plain."""
    random = Random(draw(st.integers(0, 1 << 30)))
    content = b""
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(1, 6))
        for left in range(count - 1, -1, -1):
            content += record(
                random.randbytes(draw(st.sampled_from([0, 1, 9, 20, 24, 60, 900]))),
                draw(FILLINGS) * draw(st.sampled_from([0, 1, 8, 100, 1000, 4095])),
                sequence=draw(st.sampled_from([1, 5, 1 << 40, (1 << 64) - 1])),
                left=left,
                kind=draw(st.sampled_from([1, 1, 1, 1, 1, 2, 3, 4, 9])),
                flags=draw(st.sampled_from([0x01200000] * 4 + [0x01210000, 0x02200000])),
                id_length=draw(st.sampled_from([0, 0, 0, 0, 5])),
                short=draw(st.sampled_from([0, 0, 0, 4, 5])),
                lies=draw(LIES),
            )
    return content


DAMAGE = st.lists(
    st.tuples(st.sampled_from(["bit", "cut", "foreign"]), st.integers(0, 1 << 30)), max_size=2
)


def damaged(content: bytes, damage: list[tuple[str, int]]) -> bytes:
    bad = bytearray(content)
    for what, number in damage:
        if not bad:
            break
        place = number % len(bad)
        match what:
            case "bit":
                bad[place] ^= 1 << number % 8
            case "cut":
                del bad[place:]
            case _:
                bad[place : place + 16] = Random(number).randbytes(min(16, len(bad) - place))
    return bytes(bad)


@needs_native
@example(content=b"", damage=[], refused=1)
@given(content=volumes(), damage=DAMAGE, refused=st.integers(1, 6))
def test_h71_the_native_walk_and_its_twin_come_to_the_same(
    content: bytes, damage: list[tuple[str, int]], refused: int
) -> None:
    bad = damaged(content, damage)
    assert walked_by(native(), bad, refused) == walked_by(walk_in_python, bad, refused)


def many() -> bytes:
    return b"".join(
        record(b"key/%05d" % number, b"x" * (number % 50), sequence=number + 1, left=number % 7)
        for number in range(MANY * 4)
    )


@needs_native
def test_more_records_than_are_looked_at_in_one_go_are_all_taken() -> None:
    seen = walked_by(native(), many(), 0)
    assert len(seen.rows) == MANY * 4
    assert seen == walked_by(walk_in_python, many(), 0)


@needs_native
def test_every_place_where_a_stretch_may_end_is_safe() -> None:
    content = record(b"one", b"blob", sequence=1, left=0) + record(b"two", b"", sequence=2, left=0)
    for size in range(len(content) + 1):
        cut = content[:size]
        assert walked_by(native(), cut, 0) == walked_by(walk_in_python, cut, 0)


@needs_native
@pytest.mark.parametrize("name", ["key", "blob", "indexed"])
def test_no_length_leads_out_of_the_stretch(name: str) -> None:
    for length in SMALL + HUGE if name == "blob" else SMALL:
        lies = {name: length, "size": length}
        # Where the sum of the lengths runs over 64 bits, the checksum is that of what the rest of it leads to.
        lies["checked"] = (length + 3 + 86) % (1 << 64) if name == "blob" else 3 + 86 + 4
        content = record(b"key", b"blob", sequence=1, left=0, lies=lies)
        content += record(b"two", b"", sequence=2, left=0)
        assert walked_by(native(), content, 1) == walked_by(walk_in_python, content, 1)


@needs_native
def test_what_is_raised_on_the_way_comes_through_and_the_memory_is_free_again() -> None:
    memory = bytearray(
        record(b"key", b"", sequence=1, left=1) + record(b"", b"", sequence=2, left=0, kind=3)
    )
    rows: list[NewRow] = []

    def fail(_offset: int) -> bool:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        native()(memoryview(memory), START, VOLUME, SEED, rows, fail)
    assert len(rows) == 1
    with pytest.raises(BufferError):
        memory += b"its rows are still there"
    rows.clear()
    memory += b"now it may move"


@needs_native
def test_a_row_lives_as_long_as_somebody_has_it() -> None:
    class Memory(bytearray):
        """Can be watched."""

    memory = Memory(record(b"key", b"blob", sequence=1, left=0))
    watched = weakref.ref(memory)
    rows: list[NewRow] = []
    native()(memoryview(memory), START, VOLUME, SEED, rows, lambda _offset: False)
    view = memoryview(rows[0][1])
    del memory
    rows.clear()
    gc.collect()
    assert watched() is not None
    assert view.readonly
    assert bytes(view).endswith(b"blob")
    del view
    gc.collect()
    assert watched() is None


@needs_native
def test_memory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((BufferError, TypeError)):
        native()(memoryview(b"read only"), START, VOLUME, SEED, [], lambda _offset: False)
