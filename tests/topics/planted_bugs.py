"""A bug that a test has planted is found by one of so many random schedules."""

from collections.abc import Callable

import pytest


def require_found(
    run: Callable[[int], object],
    seed_count: int,
    signs: tuple[type[Exception], ...] = (Exception,),
) -> None:
    """Seeds from 1 on, until one fails in one of these ways."""
    for seed in range(1, seed_count + 1):
        try:
            run(seed)
        except signs:
            return
    pytest.fail(f"{seed_count} seeds did not find it")
