"""The suite of every log runs on the real loop; what needs time and trouble runs in virtual time."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.sim.loop import SimLoop

_IN_VIRTUAL_TIME = (
    "test_conformance_in_virtual_time.py",
    "test_steps.py",
    "test_faults.py",
    "test_read_ahead.py",
    "test_rehearsal.py",
    "test_unrecorded_ledgers.py",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in _IN_VIRTUAL_TIME:
        return {"virtual": lambda: SimLoop(1)}
    return {"real": asyncio.new_event_loop}
