"""Retention of segments by name, as a person writes it in one setting.

    PREFIX=LIMIT[+LIMIT][;PREFIX=...]      e.g.  logs/=7d+100GiB; metrics/=30d; =365d

A limit with a unit of time keeps what is younger, one with a unit of size keeps that much from the end. The first rule
whose prefix fits decides; an empty prefix fits every name.
"""

from containers.segment_expiry import RetentionRule
from segmentstore.codec.quantities import parse_bytes, parse_seconds


def parse_retention_rules(text: str) -> tuple[RetentionRule, ...]:
    """Raises ValueError with a sentence."""
    return tuple(_rule(part.strip()) for part in text.split(";") if part.strip())


def _rule(text: str) -> RetentionRule:
    prefix, equals, limits = text.rpartition("=")
    if not equals:
        raise ValueError(f"a retention rule is PREFIX=LIMIT, such as logs/=7d, not {text!r}")
    age: float | None = None
    size: int | None = None
    for limit in limits.split("+"):
        seconds = _seconds_or_none(limit)
        if seconds is not None and age is None:
            age = seconds
        elif seconds is None and size is None:
            size = parse_bytes(limit)
        else:
            raise ValueError(f"a retention rule has one age and one size at most, not {text!r}")
    return RetentionRule(prefix=prefix.strip(), age_seconds=age, bytes_max=size)


def _seconds_or_none(limit: str) -> float | None:
    if limit.strip()[-1:].isdigit():
        raise ValueError(f"a retention limit needs a unit, such as 7d or 100GiB, not {limit!r}")
    try:
        return parse_seconds(limit)
    except ValueError:
        return None
