"""Conformance suites that are written for a real loop run in virtual time here."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.sim.loop import SimLoop

_IN_VIRTUAL_TIME = ("test_object_store_suite.py",)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in _IN_VIRTUAL_TIME:
        return {"virtual": lambda: SimLoop(1)}
    return {"real": asyncio.new_event_loop}
