"""Where a transaction stands in memory: it moves as the table of phases says, and the table of records decides."""

from dataclasses import replace

import pytest

from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.controller.transactions.transaction_states import (
    UNFINISHED,
    Phase,
    StreamTransactions,
)

OPEN = TransactionRecord(state=TransactionState.OPEN, lease_ms=1, created_ms=0)


def committing(number: int, **fields: object) -> TransactionRecord:
    record = replace(OPEN, state=TransactionState.COMMITTING, commit_number=number)
    return replace(record, **fields)  # type: ignore[arg-type]  # fields of the record


def ended(state: TransactionState) -> TransactionRecord:
    return replace(OPEN, state=state)


def test_a_commit_whose_record_is_being_written_holds_back_later_ones() -> None:
    stream = StreamTransactions("s", "a")
    for transaction_id in (1, 2, 3):
        stream.follow_table(transaction_id, OPEN, now=0.0)
    numbers = {each: stream.begin_decision(each) for each in (2, 1, 3)}
    assert numbers == {2: 1, 1: 2, 3: 3}
    for transaction_id in (3, 1):
        stream.follow_table(transaction_id, committing(numbers[transaction_id]), now=0.0)
    assert stream.next_commits(count=9) == []
    assert not stream.is_settled
    stream.follow_table(2, committing(numbers[2]), now=0.0)
    assert [each for each, _ in stream.next_commits(count=2)] == [2, 1]
    stream.check()


def test_a_finished_one_is_new_once_and_keeps_its_place() -> None:
    stream = StreamTransactions("s", "a")
    committed = ended(TransactionState.COMMITTED)
    assert stream.follow_table(1, committed, now=1.0)
    assert not stream.follow_table(2, ended(TransactionState.ABORTED), now=2.0)
    assert not stream.follow_table(1, committed, now=3.0)
    assert stream.phase(1) is Phase.MERGED
    stream.mark_forgotten([1, 2, 7])
    assert not stream.follow_table(1, committed, now=4.0)
    assert [(each, known.phase, known.since) for each, known in stream.finished()] == [
        (1, Phase.COMMITTED, 1.0),
        (2, Phase.ABORTED, 2.0),
    ]
    stream.mark_unknown(1)
    assert stream.is_settled, "what is finished stays so"
    stream.check()


@pytest.mark.parametrize(
    "found", [OPEN, committing(1), ended(TransactionState.COMMITTED), None], ids=str
)
def test_what_is_unknown_is_what_the_table_says(found: TransactionRecord | None) -> None:
    stream = StreamTransactions("s", "a")
    stream.follow_table(1, OPEN, now=0.0)
    stream.begin_decision(1)
    stream.mark_unknown(1)
    assert stream.has_work
    assert not stream.is_settled
    stream.follow_table(1, found, now=0.0)
    assert stream.find(1) == found
    assert not stream.has(Phase.UNKNOWN)
    stream.check()


def test_the_table_counts_and_not_what_was_believed() -> None:
    """Another process decided it, or an attempt whose caller left."""
    stream = StreamTransactions("s", "a")
    stream.follow_table(1, OPEN, now=0.0)
    assert stream.follow_table(1, ended(TransactionState.COMMITTED), now=0.0)
    stream.check()


def test_stages_are_found_beside_the_transaction_that_they_join() -> None:
    stream = StreamTransactions("s", "a")
    for stage in (1, 2):
        stream.follow_table(stage, OPEN, now=0.0)
        stream.begin_decision(stage, number=5)
    assert stream.begin_decision(9, number=5) == 5
    assert stream.find(9) is None
    stream.follow_table(9, committing(5, stages=(1, 2)), now=0.0)
    for stage in (1, 2):
        stream.follow_table(stage, committing(0, joins=9), now=0.0)
    stream.check()
    assert stream.ids(Phase.STAGE) == [1, 2]
    assert [each for each, _ in stream.next_commits(count=9)] == [9]
    assert stream.unfinished_count == 3
    for stage in (1, 2):
        stream.follow_table(stage, None, now=0.0)
    stream.follow_table(9, committing(5), now=0.0)
    assert stream.ids(*UNFINISHED) == [9]
    stream.check()


def test_a_reserved_one_is_nobodys_until_it_is_taken_and_what_is_given_back_is_removed() -> None:
    stream = StreamTransactions("s", "a")
    stream.reserve([1, 2], OPEN, now=1.0)
    stream.reserve([3], OPEN, now=2.0)
    assert (stream.find(1), stream.unfinished_count, stream.is_settled) == (None, 0, True)
    assert stream.take_reserved() == (3, OPEN)
    assert stream.phase(3) is None
    stream.give_back(3)
    assert sorted(stream.give_back_reserved(before=1.0)) == [1, 2, 3]
    stream.check()
    stream.removed([1, 2, 3])
    assert stream.is_empty


def test_a_way_that_the_table_of_phases_does_not_have_is_a_bug() -> None:
    stream = StreamTransactions("s", "a")
    stream.reserve([1], OPEN, now=0.0)
    with pytest.raises(AssertionError, match="no way to DECIDING"):
        stream.begin_decision(1)
    stream.follow_table(2, committing(1), now=0.0)
    with pytest.raises(AssertionError, match="no way to DECIDING"):
        stream.begin_decision(2)
