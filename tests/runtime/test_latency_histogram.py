import math

from hypothesis import given
from hypothesis import strategies as st

from segmentstore.runtime.latency_histogram import LOGARITHMIC_BOUNDS_SECONDS, LatencyHistogram


@given(values=st.lists(st.floats(1e-6, 1000), min_size=1, max_size=200), share=st.floats(0.01, 1))
def test_a_quantile_is_at_most_one_bucket_above_the_true_one(
    values: list[float], share: float
) -> None:
    histogram = LatencyHistogram(LOGARITHMIC_BOUNDS_SECONDS)
    for value in values:
        histogram.record(value)
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    assert true * (1 - 1e-9) <= histogram.quantile(share) <= true * 2 ** (1 / 8) * (1 + 1e-9)


def test_quantiles_of_known_values() -> None:
    histogram = LatencyHistogram(LOGARITHMIC_BOUNDS_SECONDS)
    for millisecond in range(1, 1001):
        histogram.record(millisecond / 1000)
    assert histogram.count == 1000
    assert abs(histogram.sum_seconds - 500.5) < 1e-6
    assert 0.5 <= histogram.quantile(0.5) <= 0.5 * 1.1
    assert 0.99 <= histogram.quantile(0.99) <= 1.0
    assert histogram.max_seconds == 1.0


def test_a_value_that_equals_a_bound_counts_below_it() -> None:
    histogram = LatencyHistogram((1.0, 2.0))
    for seconds in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.record(seconds)
    assert histogram.counts == [2, 2, 1]


def test_nothing_recorded_is_all_zero() -> None:
    assert LatencyHistogram(LOGARITHMIC_BOUNDS_SECONDS).quantile(0.99) == 0.0


def test_a_duration_beyond_every_bucket_is_kept_as_the_maximum() -> None:
    histogram = LatencyHistogram(LOGARITHMIC_BOUNDS_SECONDS)
    histogram.record(1e9)
    assert histogram.quantile(0.5) == histogram.max_seconds == 1e9
