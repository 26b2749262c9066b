"""What tests fetch or build once for every later run, and keep outside the checkout: one process at a time makes it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made_by_one(place: Path) -> Iterator[None]:
    """No other test process is at this for the same place meanwhile; whoever comes second finds it made.

    A process that ends lets go of it. Not to be nested for one place.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
