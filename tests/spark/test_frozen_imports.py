import gc
import sys
from types import ModuleType
from weakref import ref

import pytest

from segmentstore.spark.python_worker import freeze_imports


class Knot:
    """Garbage that only a collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_only_modules_that_came_since_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_imports()
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    left_by_a_task = [Knot() for _ in range(100)]
    freeze_imports()
    # An object that is gone by itself, such as a cached one, may leave the frozen ones; none is added.
    assert gc.get_freeze_count() <= frozen
    knot = ref(left_by_a_task[0])
    left_by_a_task.clear()
    gc.collect()
    assert knot() is None
    monkeypatch.setitem(sys.modules, "imported_by_a_task", ModuleType("imported_by_a_task"))
    kept = [[number] for number in range(1000)]
    freeze_imports()
    assert gc.get_freeze_count() > frozen + len(kept) // 2
