"""Sizes and durations as people write them: `64MB`, `64MiB`, `10s`, `250ms`.

Invariants:

- `parse_bytes(format_bytes(n)) == n` and `parse_seconds(format_seconds(s)) == s`: what is shown can be written back.
- A bare number counts in the unit of the setting's name: bytes or seconds.
- Decimal and binary multiples are told apart, as disks and memory are sold: `MB` is 10^6, `MiB` is 2^20.
"""

import re
from decimal import Decimal
from fractions import Fraction

_BYTES = {
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
_SECONDS = {
    "": Fraction(1),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_QUANTITY = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_SHOWN_BYTES = ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB")
_SHOWN_SECONDS = ("h", "min", "s", "ms", "us")


def parse_bytes(text: str) -> int:
    """A number of bytes. Raises ValueError for another unit or a fraction of a byte."""
    number, unit = _split(text)
    factor = _BYTES.get(unit.upper())
    if factor is None:
        raise ValueError(
            f"unknown unit of size {unit!r}; use B, KB, KiB, MB, MiB, GB, GiB, TB, TiB"
        )
    size = number * factor
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_seconds(text: str) -> float:
    """A number of seconds. Raises ValueError for another unit."""
    number, unit = _split(text)
    factor = _SECONDS.get(unit)
    if factor is None:
        raise ValueError(f"unknown unit of time {unit!r}; use us, ms, s, min, h, d")
    return float(number * factor)


def format_bytes(size: int) -> str:
    """The shortest exact way to write a size."""
    for unit in _SHOWN_BYTES:
        factor = _BYTES[unit.upper()]
        if size >= factor and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def format_seconds(duration: float) -> str:
    """The shortest exact way to write a duration."""
    exact = Fraction(str(duration))
    for unit in _SHOWN_SECONDS:
        count = exact / _SECONDS[unit]
        if count >= 1 and count.denominator == 1:
            return f"{int(count)}{unit}"
    return f"{Decimal(repr(duration)):f}s"


def _split(text: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit")
    return Fraction(match[1].replace("_", "")), match[2]
