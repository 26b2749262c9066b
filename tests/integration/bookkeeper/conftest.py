"""One BookKeeper for all files here: a ZooKeeper and four bookies on loopback, started when a test first asks for it.

Test processes that run side by side have one each: tests end bookies and start them again.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from tests.integration.bookkeeper.cluster import Cluster
from tests.integration.bookkeeper.registered_bookies import until_all_are_registered
from tests.integration.java_libraries import missing
from tier1.bookkeeper.jars import Part, build
from tier1.bookkeeper.local_ensemble import LocalEnsemble


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEnsemble]:
    """With its servers up; a test that ends one starts it again."""
    for part in Part:
        try:
            build(part)
        except InvalidRequestError as error:
            missing(f"nothing was run on a real BookKeeper: {error}")
    found = LocalEnsemble.opened(tmp_path_factory.mktemp("bookkeeper") / "ensemble")
    # Their sessions in ZooKeeper: of the usual four seconds a disk that stalls for five leaves no bookie registered.
    found.conf["zkTimeout"] = "10000"
    try:
        asyncio.run(found.up())
        yield found
    finally:
        asyncio.run(found.down(number=signal.SIGKILL))


@pytest.fixture
async def cluster(ensemble: LocalEnsemble) -> AsyncIterator[Cluster]:
    """Clients of that BookKeeper, closed after the test, and metadata below a root of its own."""
    await until_all_are_registered(ensemble)
    found = Cluster(ensemble)
    yield found
    found.resume_bookies()
    await found.close()
