"""What all tests share: processes that start quickly, and seeds.

A test that draws its world from a seed is parametrized over "seed" alone, with as many as `make test` has time for.
With SOAK_SEEDS=N in the environment such tests get N other seeds, from SOAK_FROM on, and no other test runs
(tests/soak.py).
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

if sys.dont_write_bytecode:
    # The tests start some hundred processes of ours. Where nothing compiled may be left beside the sources, each would
    # compile half a thousand modules again: as much as the rest of its start. So it is left among what tests leave.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compiled = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(compiled))

# Timings decide no test: an example that is slow on a busy machine is not wrong.
settings.register_profile("store", deadline=None)
settings.load_profile("store")

_SOAK_SEEDS = int(os.environ.get("SOAK_SEEDS", "0"))
_SOAK_FROM = int(os.environ.get("SOAK_FROM", "0"))


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not _SOAK_SEEDS:
        return
    marks = metafunc.definition.own_markers
    for place, mark in enumerate(marks):
        if mark.name == "parametrize" and mark.args[0] == "seed":
            seeds = range(_SOAK_FROM, _SOAK_FROM + _SOAK_SEEDS)
            marks[place] = pytest.mark.parametrize("seed", seeds).mark


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _SOAK_SEEDS:
        return
    callspecs = {item: getattr(item, "callspec", None) for item in items}
    drawn = [item for item, spec in callspecs.items() if spec is not None and "seed" in spec.params]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(drawn)])
    items[:] = drawn
