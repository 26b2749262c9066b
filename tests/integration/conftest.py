"""The order of files where several run side by side: so that the cores are busy from the beginning to the end."""

from itertools import chain, zip_longest
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with Spark compute, the others of this folder wait: they take turns. The short ones elsewhere come last."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    here = [path for path in files if _HERE in path.parents]
    computing = [path for path in here if _HERE / "spark" in path.parents]
    waiting = [path for path in here if path not in computing]
    turns = chain.from_iterable(zip_longest(computing, waiting))
    last = [path for path in files if path not in here]
    items[:] = [item for path in (*turns, *last) if path is not None for item in files[path]]
