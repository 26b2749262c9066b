"""Rows in the order of their keys: natively and in Python the same, and no row is lost or made."""

import sys
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tier2.volumes.index_database import NewRow
from tier2.volumes.rebuild import Order, native_order, order_in_python

NATIVE = native_order()
needs_native = pytest.mark.skipif(NATIVE is None, reason="it was not built, or is switched off")
orders = pytest.mark.parametrize(
    "order",
    [pytest.param(NATIVE, marks=needs_native, id="native"), order_in_python],
)
similar = st.lists(st.sampled_from([b"\0", b"a", b"\xff"]), max_size=12).map(b"".join)
keys = st.one_of(similar, st.binary(max_size=30), similar.map(lambda rest: b"o/common/" + rest))


def rows_of(found: list[bytes]) -> list[NewRow]:
    return [(key, memoryview(b"%d" % number)) for number, key in enumerate(found)]


def seen(rows: list[NewRow]) -> list[tuple[bytes, bytes]]:
    return [(key, bytes(row)) for key, row in rows]


@orders
@given(st.lists(keys, max_size=40))
@example([])
@example([b""])
@example([b"", b""])
@example([b"k12345678", b"k1234567", b"k1234567\0", b"k1234567"])
@example([b"a", b"a\0", b"a\0\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0"])
def test_rows_are_in_the_order_of_their_keys_and_repeated_ones_are_told(
    order: Order, found: list[bytes]
) -> None:
    rows = rows_of(found)
    before = list(rows)
    repeated = order(rows)
    assert seen(rows) == seen(sorted(before, key=lambda row: row[0]))
    assert sorted(map(id, rows)) == sorted(map(id, before))
    assert repeated is (len(set(found)) < len(found))


@orders
@pytest.mark.parametrize("front", [b"", b"key/", b"a long beginning of all of them/"])
def test_many_rows_are_ordered(order: Order, front: bytes) -> None:
    random = Random(3)
    found = [front + random.randbytes(random.choice((7, 8, 9, 20))) for _ in range(20_000)]
    rows = rows_of(found)
    assert not order(rows)
    assert [key for key, _ in rows] == sorted(found)
    rows = rows_of([*found, found[17]])
    assert order(rows)


@needs_native
def test_what_is_no_row_is_refused_and_the_list_is_as_it_was() -> None:
    assert NATIVE is not None
    good = rows_of([b"b", b"a"])
    for bad in (7, (), ("text", b"row"), [b"key"]):
        rows = [*good, bad]
        with pytest.raises(TypeError):
            NATIVE(rows)  # type: ignore[arg-type]
        assert rows == [*good, bad]
    with pytest.raises(TypeError):
        NATIVE(tuple(good))  # type: ignore[arg-type]


@needs_native
def test_nothing_is_counted_twice_or_kept() -> None:
    assert NATIVE is not None
    rows = rows_of([b"%d" % (number * 7 % 100) for number in range(100)])
    counts = {id(row): sys.getrefcount(row) for row in rows}
    before = sys.getallocatedblocks()
    for _ in range(100):
        rows.reverse()
        NATIVE(rows)
    assert sys.getallocatedblocks() - before < 50
    assert {id(row): sys.getrefcount(row) for row in rows} == counts
