"""Which test files share a server of the session: with `--dist loadfile` they run in one process, which starts it once.

    spark         the files that ask for the fixture: a JVM
    cluster       tests/integration/cluster: ZooKeeper, bookies, an S3 server, nodes and controllers
    bookkeeper    tests/integration/bookkeeper: ZooKeeper and four bookies
    of its own    every other file; it shares what its module starts

With a file as the unit each process of pytest-xdist would start one of each. Its own way, `--dist loadgroup`, writes
the group into the name of a test, which pytest 9.2 does not read any more. Where tests run is decided in a process that
collects none, so the group of a file is read from its place and its text; tests/integration/conftest.py compares it
with the fixtures that its tests ask for.
"""

import functools
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_ROOT = Path(__file__).parents[1]
_INTEGRATION = "tests/integration/"
_FOLDERS = {f"{_INTEGRATION}{name}/": name for name in ("cluster", "bookkeeper")}
GROUP_OF_FIXTURE = {"cluster_of_session": "cluster", "ensemble": "bookkeeper", "spark": "spark"}
"""Those that cost most, each with the group of the files that may ask for it."""


@functools.cache
def group_of(path: str) -> str:
    """What a file, by its path below the checkout, is run together with."""
    for folder, group in _FOLDERS.items():
        if path.startswith(folder):
            return group
    if path.startswith(_INTEGRATION) and "spark: SparkSession" in (_ROOT / path).read_text():
        return "spark"
    return path


class LoadBySharedServer(LoadFileScheduling):  # type: ignore[misc] # of a library without types
    """Gives a process the next group when it is nearly done with its own."""

    def _split_scope(self, nodeid: str) -> str:
        path: str = super()._split_scope(nodeid)
        return group_of(path)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test at which the process ended, if it ended at one.

        The library would give that test to the next process, which would end at it as well, and so on until no more may
        be started.
        """
        units = self.assigned_work[node].values()
        unit = next((each for each in units if not all(each.values())), None)
        if unit is None:
            super().remove_node(node)
            return None
        ended_at: str = next(name for name, done in unit.items() if not done)
        unit[ended_at] = True
        super().remove_node(node)
        return ended_at
