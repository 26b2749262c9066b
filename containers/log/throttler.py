"""How long writers have to wait before their next append is accepted, and why.

The delay is the greatest of several pure functions of gauges, each zero below its threshold, growing to its maximum,
and "stop" beyond (the delay comes before acceptance, never after it). What frees space is never delayed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from containers.container_settings import ThrottlerSettings

STOP = float("inf")
"""A delay that lasts until the gauge falls."""


@dataclass(frozen=True, slots=True)
class ThrottleGauges:
    """What the throttler looks at."""

    cache_fraction: float
    """Un-flushed bytes in the cache, as a fraction of its budget."""
    log_bytes: int
    """Bytes in Tier 1 that are not truncated."""
    item_count: int
    """Items that the storage writer has not published."""
    storage_state: str
    """"ok" or what is wrong with Tier 2."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """A delay in seconds (0, or STOP) and its reason ("" for none)."""

    delay_seconds: float
    reason: str

    @property
    def is_active(self) -> bool:
        return self.delay_seconds > 0.0


NO_THROTTLE = Throttle(0.0, "")


def ramp(value: float, begin: float, stop: float, delay_max: float) -> float:
    """0 up to `begin`, growing to delay_max at `stop`, STOP from there on."""
    if value < begin:
        return 0.0
    if value >= stop:
        return STOP
    return delay_max * (value - begin) / (stop - begin)


class Throttler:
    """The greatest delay of all causes."""

    def __init__(
        self, *, gauges: Callable[[], ThrottleGauges], settings: ThrottlerSettings
    ) -> None:
        self._gauges = gauges
        self._settings = settings

    def throttle(self) -> Throttle:
        """The delay now. When Tier 2 is the cause of a full cache, the reason says so."""
        gauges, settings = self._gauges(), self._settings
        most = settings.delay_seconds_max
        causes = (
            (
                ramp(
                    gauges.cache_fraction,
                    settings.cache_begin_fraction,
                    settings.cache_stop_fraction,
                    most,
                ),
                "cache_full",
            ),
            (
                ramp(gauges.log_bytes, settings.log_bytes_begin, settings.log_bytes_stop, most),
                "tier1_backlog",
            ),
            (
                ramp(gauges.item_count, settings.items_begin, settings.items_stop, most),
                "operations_backlog",
            ),
        )
        delay, reason = max(causes)
        if delay == 0.0:
            return NO_THROTTLE
        if gauges.storage_state != "ok":
            reason = f"tier2_{gauges.storage_state}"
        return Throttle(delay, reason)
