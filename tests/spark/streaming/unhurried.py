"""Settings of property tests that draw whole streams: slow to draw on a machine that does other things as well."""

from hypothesis import HealthCheck, settings

UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
