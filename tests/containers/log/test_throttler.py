"""Delays: zero below the threshold, growing, then stop; the greatest cause wins and is named."""

import pytest

from containers.container_settings import ThrottlerSettings
from containers.log.throttler import NO_THROTTLE, STOP, ThrottleGauges, Throttler, ramp

SETTINGS = ThrottlerSettings(
    cache_begin_fraction=0.5,
    cache_stop_fraction=0.9,
    log_bytes_begin=1000,
    log_bytes_stop=2000,
    items_begin=10,
    items_stop=20,
    delay_seconds_max=0.1,
)


def gauges(
    *, cache: float = 0.0, log_bytes: int = 0, items: int = 0, state: str = "ok"
) -> ThrottleGauges:
    return ThrottleGauges(
        cache_fraction=cache, log_bytes=log_bytes, item_count=items, storage_state=state
    )


@pytest.mark.parametrize(
    ("value", "delay"), [(0, 0.0), (9, 0.0), (10, 0.0), (15, 0.05), (20, STOP), (99, STOP)]
)
def test_a_ramp_begins_grows_and_stops(value: float, delay: float) -> None:
    assert ramp(value, 10, 20, 0.1) == pytest.approx(delay)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (gauges(cache=0.7), "cache_full"),
        (gauges(log_bytes=1500), "tier1_backlog"),
        (gauges(items=15), "operations_backlog"),
        (gauges(cache=0.6, items=19), "operations_backlog"),
        (gauges(cache=0.95, state="unavailable"), "tier2_unavailable"),
    ],
)
def test_the_greatest_cause_is_named(given: ThrottleGauges, reason: str) -> None:
    throttle = Throttler(gauges=lambda: given, settings=SETTINGS).throttle()
    assert throttle.is_active
    assert throttle.reason == reason


def test_below_every_threshold_nobody_waits_even_while_tier_2_is_down() -> None:
    throttler = Throttler(gauges=lambda: gauges(cache=0.4, state="unavailable"), settings=SETTINGS)
    assert throttler.throttle() == NO_THROTTLE
