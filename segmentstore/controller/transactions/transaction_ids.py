"""Ids that no two transactions share.

    bits 96 .. 127   the stream's epoch
    bits 64 ..  95   drawn once per controller start
    bit       63     0: one of the clients reads the lower half as a signed number and would lose the epoch
    bits  0 ..  62   counter, from a drawn number on

Invariants:

- Two ids of one controller differ by the counter, those of two controllers by 32 + 62 drawn bits.
"""

from random import Random

from segmentstore.contracts.errors import InvalidRequestError

_LOW_BITS = 63
_EPOCH_MAX = (1 << 31) - 1


class TransactionIds:
    """Hands out ids."""

    def __init__(self, *, random: Random) -> None:
        self._incarnation = random.getrandbits(32)
        self._next = random.getrandbits(_LOW_BITS - 1)

    def take(self, *, epoch: int) -> int:
        """A new id for a transaction of the epoch. Raises InvalidRequestError if the epoch does not fit."""
        if not 0 <= epoch <= _EPOCH_MAX:
            raise InvalidRequestError(f"epoch is out of range epoch={epoch}")
        low = self._next & ((1 << _LOW_BITS) - 1)
        self._next += 1
        return epoch << 96 | self._incarnation << 64 | low
