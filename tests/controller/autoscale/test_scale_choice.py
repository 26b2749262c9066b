"""Which segments are split and merged: by table."""

import math
from dataclasses import replace

import pytest

from segmentstore.codec.controller_records.stream_records import SegmentWithRange, StreamSegment
from segmentstore.controller.auto_scale import ScaleChoice, ScaleLimits, SegmentRates, choose_scale
from segmentstore.controller.settings import AutoScaleSettings, StreamSettings
from segmentstore.controller.streams.key_space import replacing_ranges

SETTINGS = AutoScaleSettings()
LIMITS = ScaleLimits(target=100.0, split_factor=4, segments_min=1)


def segments(*rates: float, seconds: int = 3_600) -> list[tuple[SegmentWithRange, SegmentRates]]:
    """Equal segments that have grown steadily for so long."""
    found = []
    for number, rate in enumerate(rates):
        measured = SegmentRates(windows_seconds=SETTINGS.windows_seconds, now=0.0, amount=0)
        for second in range(10, seconds + 1, 10):
            measured.sample(now=float(second), amount=int(rate * second))
        segment = SegmentWithRange(number, number / len(rates), (number + 1) / len(rates))
        found.append((segment, measured))
    return found


def choice(*rates: float, seconds: int = 3_600, limits: ScaleLimits = LIMITS) -> ScaleChoice | None:
    return choose_scale(
        segments=segments(*rates, seconds=seconds), limits=limits, settings=SETTINGS
    )


def test_a_segment_above_the_target_is_split_in_as_many_parts_as_its_rate_needs() -> None:
    assert choice(150.0) == ScaleChoice((0,), ((0.0, 0.5), (0.5, 1.0)))
    three = choice(310.0)
    assert three is not None
    assert len(three.ranges) == 3
    four = choice(5_000.0)
    assert four is not None
    assert len(four.ranges) == LIMITS.split_factor


def test_several_hot_segments_are_split_at_once_and_the_others_are_left() -> None:
    both = choice(150.0, 60.0, 150.0, 60.0)
    assert both == ScaleChoice((0, 2), ((0.0, 0.125), (0.125, 0.25), (0.5, 0.625), (0.625, 0.75)))


def test_neighbours_below_half_of_the_target_become_one() -> None:
    assert choice(10.0, 10.0, 60.0, 10.0, 10.0, 10.0) == ScaleChoice(
        (0, 1, 3, 4), ((0.0, 2 / 6), (3 / 6, 5 / 6))
    )


def test_a_merge_leaves_the_fewest_segments_that_the_policy_wants() -> None:
    limits = ScaleLimits(target=100.0, split_factor=2, segments_min=3)
    assert choice(1.0, 1.0, 1.0, limits=limits) is None
    four = choice(1.0, 1.0, 1.0, 1.0, limits=limits)
    assert four == ScaleChoice((0, 1), ((0.0, 0.5),))


def test_nothing_is_merged_while_a_segment_is_hot() -> None:
    both = choice(1.0, 1.0, 500.0)
    assert both is not None
    assert both.sealed == (2,)


@pytest.mark.parametrize(
    ("seconds", "rate", "splits"),
    [
        (110, 10_000.0, False),
        (120, 501.0, True),
        (120, 499.0, False),
        (300, 201.0, True),
        (290, 201.0, False),
        (600, 101.0, True),
        (590, 101.0, False),
        (3_600, 99.0, False),
    ],
)
def test_short_windows_need_a_large_excess_and_full_windows(
    seconds: int, rate: float, splits: bool
) -> None:
    assert (choice(rate, seconds=seconds) is not None) == splits


def test_a_new_segment_is_not_cold_before_the_longest_window_is_full() -> None:
    assert choice(0.0, 0.0, seconds=1_190) is None
    assert choice(0.0, 0.0, seconds=1_200) is not None


def test_splits_stop_at_the_bound() -> None:
    limits = replace(LIMITS, segments_max=3)
    chosen = choice(900.0, 900.0, limits=limits)
    assert chosen is not None
    assert len(chosen.ranges) == 2
    assert choice(900.0, 900.0, 900.0, limits=limits) is None


def test_what_is_asked_for_is_never_more_than_a_stream_may_have() -> None:
    """Ten hot segments of 995: all of it was refused, at every look."""
    chosen = choice(*[900.0] * 10, *[60.0] * 985)
    assert chosen is not None
    after = 995 - len(chosen.sealed) + len(chosen.ranges)
    assert after == StreamSettings().segments_per_stream_max


def test_a_hot_segment_of_one_single_key_is_left_and_holds_up_no_other() -> None:
    """Its key has split it until no number lies between the bounds: such a scale is refused as a whole."""
    (_, hot), (_, cold) = segments(900.0, 1.0)
    end = math.nextafter(0.5, 1.0)
    one_key = (SegmentWithRange(0, 0.5, end), hot)

    def chosen(*others: tuple[SegmentWithRange, SegmentRates]) -> ScaleChoice | None:
        return choose_scale(segments=[one_key, *others], limits=LIMITS, settings=SETTINGS)

    assert chosen() is None
    split = chosen((SegmentWithRange(1, 0.0, 0.5), hot))
    assert split is not None
    assert split.sealed == (1,)
    merged = chosen((SegmentWithRange(1, 0.0, 0.25), cold), (SegmentWithRange(2, 0.25, 0.5), cold))
    assert merged == ScaleChoice((1, 2), ((0.0, 0.5),))


def test_a_hot_segment_has_no_more_parts_than_there_are_numbers_between_its_bounds() -> None:
    ((_, hot),) = segments(900.0)
    end = math.nextafter(math.nextafter(0.5, 1.0), 1.0)
    narrow = [(SegmentWithRange(0, 0.5, end), hot)]
    chosen = choose_scale(segments=narrow, limits=LIMITS, settings=SETTINGS)
    assert chosen is not None
    sealed = [StreamSegment(0, 0.5, end, 0)]
    assert len(replacing_ranges(sealed, chosen.ranges)) == 2


def test_rates_do_not_depend_on_how_a_steady_growth_is_sampled() -> None:
    coarse = SegmentRates(windows_seconds=(60.0, 600.0), now=0.0, amount=0)
    fine = SegmentRates(windows_seconds=(60.0, 600.0), now=0.0, amount=0)
    for second in range(1, 601):
        fine.sample(now=float(second), amount=second * 7)
        if second % 60 == 0:
            coarse.sample(now=float(second), amount=second * 7)
    for window in (0, 1):
        assert abs(coarse.rate(window) - 7.0) < 1e-6
        assert abs(fine.rate(window) - 7.0) < 1e-6
    # Silence is forgotten faster by the short window.
    fine.sample(now=700.0, amount=4_200)
    assert fine.rate(0) < fine.rate(1) < 7.0


def test_a_segment_that_is_repeated_under_its_number_keeps_its_rates() -> None:
    rates = SegmentRates(windows_seconds=(60.0,), now=0.0, amount=1_000)
    rates.sample(now=60.0, amount=1_600)
    rates.go_on_empty()
    rates.sample(now=120.0, amount=600)
    assert abs(rates.rate(0) - 10.0) < 1e-6
    assert rates.watched_seconds() == 120.0
