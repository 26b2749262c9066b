from hypothesis import given
from hypothesis import strategies as st

from segmentstore.spark.streaming.micro_batches import TriggerDelay, TriggerSettings, fair_shares
from tests.spark.streaming.unhurried import UNHURRIED

waiting = st.dictionaries(st.integers(0, 1 << 40), st.integers(0, 1 << 40), max_size=20)
limits = st.integers(1, 1 << 41)


@UNHURRIED
@given(waiting=waiting, limit=limits)
def test_every_segment_with_data_gets_a_share_and_none_more_than_it_has(
    waiting: dict[int, int], limit: int
) -> None:
    shares = fair_shares(waiting, limit)
    assert set(shares) == {key for key, amount in waiting.items() if amount > 0}
    assert all(1 <= share <= waiting[key] for key, share in shares.items())


@UNHURRIED
@given(waiting=waiting, limit=limits)
def test_the_limit_is_used_up_and_exceeded_only_by_first_units(
    waiting: dict[int, int], limit: int
) -> None:
    shares = fair_shares(waiting, limit)
    segments = sum(1 for amount in waiting.values() if amount > 0)
    total = sum(waiting.values())
    assert sum(shares.values()) == min(total, max(limit, segments))


@UNHURRIED
@given(waiting=waiting, limit=limits)
def test_shares_are_in_proportion_to_what_waits(waiting: dict[int, int], limit: int) -> None:
    shares = fair_shares(waiting, limit)
    total = sum(waiting.values()) - len(shares)
    rest = min(total, max(0, limit - len(shares)))
    for key, share in shares.items():
        exact_times_total = rest * (waiting[key] - 1)
        assert abs((share - 1) * total - exact_times_total) <= total


@UNHURRIED
@given(waiting=waiting, limit=limits, more=st.integers(0, 1 << 40))
def test_a_larger_limit_takes_no_segments_share_away_beyond_rounding(
    waiting: dict[int, int], limit: int, more: int
) -> None:
    before, after = fair_shares(waiting, limit), fair_shares(waiting, limit + more)
    assert all(after[key] >= before[key] - 1 for key in before)


@UNHURRIED
@given(waiting=waiting, limit=limits)
def test_the_order_in_which_segments_are_named_does_not_matter(
    waiting: dict[int, int], limit: int
) -> None:
    turned = dict(reversed(list(waiting.items())))
    assert list(fair_shares(waiting, limit).items()) == list(fair_shares(turned, limit).items())


def test_a_large_segment_does_not_starve_a_small_one() -> None:
    assert fair_shares({1: 1_000_000, 2: 100, 3: 1}, 1_000) == {1: 998, 2: 1, 3: 1}


def test_the_first_batch_comes_at_once_and_small_ones_wait_for_bytes_or_time() -> None:
    delay = TriggerDelay(TriggerSettings(bytes_min=1_000, delay_seconds_max=10.0))
    assert delay.admits(1, now=100.0)
    assert not delay.admits(999, now=101.0)
    assert delay.admits(1_000, now=102.0)
    assert not delay.admits(999, now=111.9)
    assert delay.admits(1, now=112.0)


def test_without_bytes_no_batch_comes_and_no_time_is_used_up() -> None:
    delay = TriggerDelay(TriggerSettings(bytes_min=1_000, delay_seconds_max=10.0))
    assert not delay.admits(0, now=0.0)
    assert delay.admits(1, now=1.0)
    assert not delay.admits(0, now=50.0)
    assert delay.admits(1, now=51.0)


def test_without_a_minimum_every_byte_is_worth_a_batch() -> None:
    delay = TriggerDelay(TriggerSettings())
    assert [delay.admits(1, now=float(second)) for second in range(3)] == [True] * 3
