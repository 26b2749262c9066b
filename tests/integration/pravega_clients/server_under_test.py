"""The server that the scenarios are run against: a process of ours, or another that a developer names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.pravega_clients.store_process import StoreProcess


@contextmanager
def server_under_test(directory: Path) -> Iterator[str]:
    """Its controller's URI.

    PRAVEGA_CONTROLLER=tcp://HOST:PORT names a server that is there already. A scenario that fails against Pravega
    itself is a wrong scenario.
    """
    given = os.environ.get("PRAVEGA_CONTROLLER")
    if given is not None:
        yield given
        return
    with StoreProcess(directory / "data") as server:
        yield server.uri
