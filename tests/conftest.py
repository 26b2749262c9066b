"""What all tests share: processes that start quickly, seeds, and sessions that import no more than they run.

A test that draws its world from a seed is parametrized over "seed" alone, with as many as `make test` has time for.
With SOAK_SEEDS=N in the environment such tests get N other seeds, from SOAK_FROM on, and no other test runs
(tests/soak.py).

A session of one kind (`-m simulation`, `-m integration`, or neither) passes over files and folders without any of it:
what they import is half of what a worker does before its first test. Which files these are is read from their text, and
each test that is collected is compared with it.
"""

import functools
import gc
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import Scheduling

from tests.preloaded_command import preloaded_command
from tests.shared_servers import LoadBySharedServer

__all__ = ["preloaded_command"]

KINDS = ("simulation", "integration")
_UNIT = "not simulation and not integration"
_WHOLE_FILE = re.compile(r"^pytestmark = .*\bmark\.(?:simulation|integration)\b", re.MULTILINE)

if sys.dont_write_bytecode:
    # The tests start some hundred processes of ours. Where nothing compiled may be left beside the sources, each would
    # compile half a thousand modules again: as much as the rest of its start. So it is left among what tests leave.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compiled = Path(__file__).parents[1] / ".pytest_cache" / "bytecode"
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(compiled))

# Until all is collected there is next to nothing to find.
gc.disable()

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


def keep_those_with_a_seed(config: pytest.Config, items: list[pytest.Item]) -> None:
    callspecs = {item: getattr(item, "callspec", None) for item in items}
    drawn = [item for item, spec in callspecs.items() if spec is not None and "seed" in spec.params]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(drawn)])
    items[:] = drawn


@functools.cache
def kinds_of(path: Path) -> frozenset[str]:
    """What a test file may hold; "unit" unless all of it is marked."""
    text = path.read_text()
    marked = frozenset(kind for kind in KINDS if f"mark.{kind}" in text)
    return marked if _WHOLE_FILE.search(text) else marked | {"unit"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = config.option.markexpr
    kind = "unit" if wanted == _UNIT else wanted
    if kind not in ("unit", *KINDS):
        return None
    if collection_path.is_dir():
        # So that its conftest.py is not imported, and what that needs: Spark alone is half a second.
        files = collection_path.rglob("test_*.py")
        return None if any(kind in kinds_of(path) for path in files) else True
    if not collection_path.name.startswith("test_"):
        return None
    return None if kind in kinds_of(collection_path) else True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """By file (`--dist loadfile`), and files that share a server of the session together."""
    return LoadBySharedServer(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    collected = list(items)
    yield
    # When every other hook had its turn, and over what was deselected too: a mark that a hook gives is in no text, and
    # the session of its kind would pass over the file, while the others deselect its tests.
    for item in collected:
        held = {kind for kind in KINDS if item.get_closest_marker(kind)} or {"unit"}
        assert held <= kinds_of(item.path), f"its file does not say what it is: {item.nodeid}"
    if _SOAK_SEEDS:
        keep_those_with_a_seed(config, items)
    # What was imported and collected stays: the garbage collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.enable()
