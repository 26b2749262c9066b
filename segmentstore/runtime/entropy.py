"""Randomness. Components take a random.Random; only the service builder creates one from the machine."""

from random import Random, SystemRandom


def system_random() -> Random:
    """Cryptographically strong: for ids that must never collide (store id, log id, nonces)."""
    return SystemRandom()


def random_id(random: Random) -> bytes:
    """Sixteen random bytes."""
    return random.randbytes(16)
