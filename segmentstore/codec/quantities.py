"""Sizes and durations as people write them: `64MB`, `64MiB`, `10s`, `250ms`.

Invariants:

- `parse_bytes(format_bytes(n)) == n` and `parse_seconds(format_seconds(s)) == s`: what is shown can be written back.
- A bare number counts in the unit of the setting's name: bytes or seconds.
- Decimal and binary multiples are told apart, as disks and memory are sold: `MB` is 10^6, `MiB` is 2^20.
- Options of Spark are read as Spark reads its own: there `m` and `mb` are 2^20 too, and `m` alone is a minute.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

Units = Mapping[str, int | Fraction]
"""What each unit counts, by its name; names of sizes in capitals."""

BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
SECONDS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
SPARK_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "B": 1,
    **{
        f"{letter}{rest}": 1 << 10 * power
        for power, letter in enumerate("KMGT", 1)
        for rest in ("", "B", "IB")
    },
}
SPARK_SECONDS: Final[Mapping[str, Fraction]] = {**SECONDS, "m": SECONDS["min"]}

_QUANTITY = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_SHOWN_BYTES = ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB")
_SHOWN_SECONDS = ("h", "min", "s", "ms", "us")


def parse_bytes(text: str, units: Units = BYTES) -> int:
    """A number of bytes; the case of its unit says nothing.

    Raises ValueError for another unit or a fraction of a byte.
    """
    number, unit = _split(text)
    factor = units.get(unit.upper())
    if factor is None:
        raise ValueError(
            f"unknown unit of size {unit!r}; use B, KB, KiB, MB, MiB, GB, GiB, TB, TiB"
        )
    size = number * factor
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_seconds(text: str, units: Units = SECONDS) -> float:
    """A number of seconds. Raises ValueError for another unit, and for more than a float holds."""
    number, unit = _split(text)
    factor = units.get(unit)
    if factor is None:
        raise ValueError(f"unknown unit of time {unit!r}; use us, ms, s, min, h, d")
    try:
        return float(number * factor)
    except OverflowError as error:
        raise ValueError(f"{text[:32]!r}... is too long a time") from error


def format_bytes(size: int) -> str:
    """The shortest exact way to write a size."""
    for unit in _SHOWN_BYTES:
        factor = BYTES[unit.upper()]
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def format_seconds(duration: float) -> str:
    """The shortest exact way to write a duration."""
    exact = Fraction(str(duration))
    for unit in _SHOWN_SECONDS:
        count = exact / SECONDS[unit]
        if count >= 1 and count.denominator == 1:
            return f"{int(count)}{unit}"
    return f"{Decimal(repr(duration)):f}s"


def _split(text: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit")
    return Fraction(match[1].replace("_", "")), match[2]
