"""Which test files of a folder run in virtual time: for its conftest.py.

pytest_asyncio_loop_factories = virtual_time_in("test_one.py", "test_other.py")
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.sim.loop import SimLoop

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def virtual_time_in(*names: str) -> Callable[[pytest.Config, pytest.Item], LoopFactories]:
    """The hook of pytest-asyncio; the other files run on a real loop."""

    def loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
        if item.path.name in names:
            return {"virtual": lambda: SimLoop(1)}
        return {"real": asyncio.new_event_loop}

    return loop_factories
