"""What a segment knows of its attributes while values come, are published, and leave memory."""

from hypothesis import given
from hypothesis import strategies as st

from containers.metadata.attribute_table import AttributeLedger, AttributeTable
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.identifiers import (
    CORE_ATTRIBUTE_PREFIX,
    AttributeKey,
    SegmentId,
    SequenceNumber,
)

KEY = AttributeKey(b"writer")


def key(number: int) -> AttributeKey:
    return AttributeKey(bytes([number]))


def test_h26_a_dropped_value_becomes_unknown_not_absent() -> None:
    table = AttributeTable(complete=True)
    table.commit([(key(n), n) for n in range(10)], SequenceNumber(1))
    assert table.sweep(SequenceNumber(1), 6) == 6
    assert not table.is_known(key(0))
    assert not table.is_known(AttributeKey(b"never"))
    assert table.committed_value(key(9)) == 9


def test_a_sweep_goes_on_where_the_last_one_stopped_and_comes_round_again() -> None:
    table = AttributeTable(complete=True)
    table.commit([(key(n), n) for n in range(10)], SequenceNumber(1))
    table.sweep(SequenceNumber(1), 3)
    assert table.extended_count == 7
    assert table.committed_value(key(5)) == 5  # used: it outlives the others
    table.sweep(SequenceNumber(1), 7)
    assert [name for name, _ in table.extended()] == [key(5)]
    table.sweep(SequenceNumber(1), 1)
    assert table.extended_count == 0
    table.check()


def test_h14_what_is_not_published_is_never_dropped() -> None:
    table = AttributeTable(complete=True)
    table.commit([(KEY, 1)], SequenceNumber(1))
    table.commit([(KEY, 2)], SequenceNumber(2))
    table.sweep(SequenceNumber(1), 10)
    table.sweep(SequenceNumber(1), 10)
    assert table.committed_value(KEY) == 2


def test_h67_a_removal_that_is_not_published_is_never_dropped() -> None:
    table = AttributeTable(complete=True)
    table.commit([(KEY, 1)], SequenceNumber(1))
    table.commit([(KEY, None)], SequenceNumber(2))
    table.commit([(KEY, 1)], SequenceNumber(3))
    table.commit([(KEY, None)], SequenceNumber(4))
    table.sweep(SequenceNumber(2), 10)  # an equal value was published, an older one
    table.commit([(key(1), 1)], SequenceNumber(5))
    table.sweep(SequenceNumber(2), 10)
    assert table.is_known(KEY)
    assert table.committed_value(KEY) is None


def test_h26_what_an_accepted_operation_was_judged_against_stays() -> None:
    table = AttributeTable(complete=True)
    table.commit([(KEY, 1)], SequenceNumber(1))
    table.accept([(KEY, 2)], SequenceNumber(2))
    table.sweep(SequenceNumber(1), 10)
    assert table.committed_value(KEY) == 1
    assert table.pending_value(KEY) == 2


def test_what_was_used_lately_outlives_what_was_not() -> None:
    table = AttributeTable(complete=True)
    table.commit([(key(n), n) for n in range(10)], SequenceNumber(1))
    table.sweep(SequenceNumber(1), 1)
    assert table.committed_value(key(5)) == 5
    table.sweep(SequenceNumber(1), 9)
    assert [n for n in range(10) if table.is_known(key(n))] == [5]


def test_core_attributes_are_never_dropped_and_always_known() -> None:
    core = AttributeKey(CORE_ATTRIBUTE_PREFIX + b"12345678")
    table = AttributeTable(complete=False)
    assert table.is_known(core)
    table.commit([(core, 1)], SequenceNumber(1))
    table.sweep(SequenceNumber(1), 10)
    assert table.core() == {core: 1}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.none() | st.integers(0, 3) | st.binary()),
        st.tuples(st.just("publish"), st.integers(0, 9), st.none()),
        st.tuples(st.just("sweep"), st.integers(1, 4), st.none()),
        st.tuples(st.just("fetch"), st.integers(0, 5), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
def test_known_values_are_right_and_the_rest_is_in_tier_2(
    steps: list[tuple[str, int, int | bytes | None]],
) -> None:
    table, ledger = AttributeTable(complete=True), AttributeLedger()
    table.join(ledger, SegmentMetadata(segment_id=SegmentId(1), name="s"))
    history: list[tuple[AttributeKey, int | bytes | None]] = []
    published = 0
    for step, number, value in steps:
        stored = {
            each: held for each, held in dict(history[:published]).items() if held is not None
        }
        match step:
            case "set":
                history.append((key(number), value))
                table.accept([history[-1]], SequenceNumber(len(history)))
                table.commit([history[-1]], SequenceNumber(len(history)))
            case "publish":
                published = min(len(history), published + number)
            case "sweep":
                table.sweep(SequenceNumber(published), number)
            case _:
                if not table.is_known(key(number)):
                    table.learn([key(number)], stored)
        table.check()
        assert ledger.held_bytes == table.held_bytes
        stored = {
            each: held for each, held in dict(history[:published]).items() if held is not None
        }
        truth = dict(history)
        for each in map(key, range(6)):
            known = table.committed_value(each) if table.is_known(each) else stored.get(each)
            assert known == truth.get(each)
