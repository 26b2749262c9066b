"""What follows from CRCs alone: that of joined bytes, and which single bit of some bytes is wrong.

A CRC is linear over GF(2). For pieces A and B, with all ones before and after as the usual CRCs have it,

    crc(A + B) = crc(A) * x^(8 * length of B)  +  crc(B)      modulo the polynomial

and a bit that is flipped changes the CRC by a power of x which says how far the bit stands from the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crc:
    """Its polynomial, with the highest power in the lowest bit, as the values have it."""

    polynomial: int
    bits: int


CRC32 = Crc(0xEDB88320, 32)


def joined_crc(crc: Crc, pieces: Iterable[tuple[int, int]]) -> int:
    """Of all bytes, from the CRC and the length of each piece in their order.

    Cost: about 10 us a piece and 0.5 ms for each length that is new (of 64 bits 20 us and 2 ms).
    """
    shifts: dict[int, int] = {}
    joined = 0
    for value, length in pieces:
        if not joined:
            joined = value  # nothing is shifted: mostly the first piece
            continue
        shift = shifts.get(length)
        if shift is None:
            shift = shifts[length] = _shift(crc, length)
        joined = _polynomial_product(joined, shift, crc) ^ value
    return joined


def flipped_bit(crc: Crc, difference: int, length: int, *, behind: int = 0) -> int | None:
    """Which bit of `length` bytes has to be flipped so that their CRC changes by `difference`; None if no single one.

    `behind`: so many good bytes follow under the same CRC. Bit 0 is the lowest bit of the first byte. O(length).
    """
    # The highest bit of the last byte is the last one that a CRC takes in.
    power = _polynomial_product(crc.polynomial, _shift(crc, behind), crc)
    for byte in reversed(range(length)):
        for bit in reversed(range(8)):
            if power == difference:
                return byte * 8 + bit
            power = power >> 1 ^ crc.polynomial if power & 1 else power >> 1
    return None


def with_bit_flipped(content: bytes, bit: int) -> bytes:
    """The same bytes with one bit changed, counted as in `flipped_bit`."""
    byte, mask = bit // 8, 1 << bit % 8
    return content[:byte] + bytes([content[byte] ^ mask]) + content[byte + 1 :]


def _shift(crc: Crc, length: int) -> int:
    """x^(8 * length)."""
    return _polynomial_power(1 << crc.bits - 9, length, crc)


def _polynomial_product(left: int, right: int, crc: Crc) -> int:
    one = 1 << crc.bits - 1
    result = 0
    while left:
        if left & one:
            result ^= right
        left = left << 1 & (one << 1) - 1
        right = right >> 1 ^ crc.polynomial if right & 1 else right >> 1
    return result


def _polynomial_power(base: int, exponent: int, crc: Crc) -> int:
    result = 1 << crc.bits - 1
    while exponent:
        if exponent & 1:
            result = _polynomial_product(result, base, crc)
        base = _polynomial_product(base, base, crc)
        exponent >>= 1
    return result
