from random import Random

import pytest

from segmentstore.runtime.backoff import Backoff


def test_pauses_grow_to_the_longest_and_stay_there() -> None:
    backoff = Backoff(seconds_first=0.1, seconds_max=1.0)
    assert [backoff.next_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.attempts == 6


def test_a_first_pause_longer_than_the_longest_is_cut() -> None:
    assert Backoff(seconds_first=5.0, seconds_max=1.0).next_seconds() == 1.0


def test_pauses_stay_finite_after_many_attempts() -> None:
    backoff = Backoff(seconds_first=1.0, seconds_max=2.0)
    for _ in range(10_000):
        assert backoff.next_seconds() <= 2.0


def test_a_success_begins_with_the_first_pause_again() -> None:
    backoff = Backoff(seconds_first=1.0, seconds_max=8.0, factor=1.5)
    assert [backoff.next_seconds() for _ in range(3)] == [1.0, 1.5, 2.25]
    backoff.reset()
    assert backoff.attempts == 0
    assert backoff.next_seconds() == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_a_pause_takes_one_draw_and_keeps_at_least_half(seed: int) -> None:
    random, twin = Random(seed), Random(seed)
    backoff = Backoff(seconds_first=1.0, seconds_max=4.0, random=random)
    for full in (1.0, 2.0, 4.0, 4.0):
        assert full / 2 <= backoff.next_seconds() <= full
        twin.random()
        assert random.getstate() == twin.getstate()
