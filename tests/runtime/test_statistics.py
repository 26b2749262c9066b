import math

from hypothesis import given
from hypothesis import strategies as st

from segmentstore.runtime.latency_histogram import LatencyHistogram


@given(values=st.lists(st.floats(1e-6, 1000), min_size=1, max_size=200), share=st.floats(0.01, 1))
def test_a_quantile_is_at_most_one_bucket_above_the_true_one(
    values: list[float], share: float
) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    histogram.check()
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    assert true * (1 - 1e-9) <= histogram.quantile(share) <= true * 2 ** (1 / 8) * (1 + 1e-9)


def test_a_summary_of_known_values() -> None:
    histogram = LatencyHistogram()
    for millisecond in range(1, 1001):
        histogram.record(millisecond / 1000)
    summary = histogram.summary()
    assert summary.count == 1000
    assert abs(summary.mean_seconds - 0.5005) < 1e-9
    assert 0.5 <= summary.p50_seconds <= 0.5 * 1.1
    assert 0.99 <= summary.p99_seconds <= 1.0
    assert summary.max_seconds == 1.0


def test_nothing_recorded_is_all_zero() -> None:
    assert LatencyHistogram().summary().p99_seconds == 0.0


def test_a_duration_beyond_every_bucket_is_kept_as_the_maximum() -> None:
    histogram = LatencyHistogram()
    histogram.record(1e9)
    histogram.check()
    assert histogram.summary().max_seconds == 1e9
