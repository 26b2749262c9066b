"""Tests whose steps are told apart by time run in virtual time: no pause of the machine comes between them."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.sim.loop import SimLoop

_IN_VIRTUAL_TIME = ("test_containers_that_leave.py", "test_node_membership.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in _IN_VIRTUAL_TIME:
        return {"virtual": lambda: SimLoop(1)}
    return {"real": asyncio.new_event_loop}
