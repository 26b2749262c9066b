"""The order of files where several processes share them: so that the cores are busy from the beginning to the end.

What shares a server of the session comes first and is long (tests/shared_servers.py). Then the files of this folder,
which wait more than they compute; the short ones elsewhere come last, so that no process ends long before the others.
"""

from pathlib import Path

import pytest

from tests.preloaded_command import servers_are_forks
from tests.shared_servers import GROUP_OF_FIXTURE, group_of

__all__ = ["servers_are_forks"]

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        path = item.path.relative_to(_ROOT).as_posix()
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in GROUP_OF_FIXTURE:
                assert group_of(path) == GROUP_OF_FIXTURE[fixture], f"{path} asks for {fixture}"
        groups.setdefault(group_of(path), []).append(item)
    shared = [name for name in GROUP_OF_FIXTURE.values() if name in groups]
    here = [name for name in groups if name.startswith("tests/integration/")]
    elsewhere = [name for name in groups if name not in {*shared, *here}]
    items[:] = [item for name in (*shared, *here, *elsewhere) for item in groups[name]]
