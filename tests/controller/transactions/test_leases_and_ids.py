"""Leases run out in order, and ids are never given twice."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.container_hash import container_of
from segmentstore.codec.controller_records.stream_records import EpochRecord, StreamSegment
from segmentstore.codec.stream_names import (
    segment_name,
    transaction_epoch_of,
    transaction_halves,
    transaction_segment,
)
from segmentstore.controller.transactions.decisions import Leases
from segmentstore.controller.transactions.reservations import TransactionIds
from segmentstore.controller.transactions.rolling_commit import repeated_shape

STEPS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(-1, 20), st.integers(0, 5)), max_size=60
)


@given(steps=STEPS)
@settings(max_examples=200)
def test_leases_run_out_exactly_when_they_were_last_granted_to(
    steps: list[tuple[str, int, int]],
) -> None:
    leases: Leases[str] = Leases()
    expected: dict[str, float] = {}
    now = 0.0
    for name, length, wait in steps:
        if length < 0:
            leases.end(name)
            expected.pop(name, None)
        else:
            leases.grant(name, deadline=now + length)
            expected[name] = now + length
        leases.check()
        now += wait
        due = sorted(each for each, deadline in expected.items() if deadline <= now)
        assert sorted(leases.take_expired(now)) == due
        for each in due:
            del expected[each]
        assert leases.next_deadline() == min(expected.values(), default=None)
        assert len(leases) == len(expected)


def test_ids_of_two_controllers_do_not_meet() -> None:
    first, second = TransactionIds(random=Random(1)), TransactionIds(random=Random(2))
    taken = [ids.take(epoch=7) for _ in range(1_000) for ids in (first, second)]
    assert len(set(taken)) == len(taken)
    for transaction_id in taken:
        assert transaction_epoch_of(transaction_id) == 7
        high, low = transaction_halves(transaction_id)
        assert high >> 32 == 7
        assert low >= 0


def test_h60_a_transaction_lives_where_every_segment_of_its_number_lives() -> None:
    transaction_id = TransactionIds(random=Random(1)).take(epoch=3)
    shape = EpochRecord(
        3, 3, 0, tuple(StreamSegment((3 << 32) | n, n / 9, (n + 1) / 9, 0) for n in range(9))
    )
    detour = repeated_shape(shape, epoch=8, now_ms=5)
    detour.check()
    for parent, target in zip(shape.segments, detour.segments, strict=True):
        source = transaction_segment(segment_name("s", "a", parent.segment_id), transaction_id)
        name = segment_name("s", "a", target.segment_id)
        assert name != segment_name("s", "a", parent.segment_id)
        assert container_of(source, 64) == container_of(name, 64)
