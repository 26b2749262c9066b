"""The tool that runs an ensemble here, with servers that only listen: how they start, end, and are started again."""

import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.local_processes import is_listening
from tests.integration.java_libraries import missing
from tier1.bookkeeper.jars import Part, build
from tier1.bookkeeper.local_ensemble import (
    BOOKIE_ROLE,
    BOOKIE_SHELL_ROLE,
    ZOOKEEPER_ROLE,
    EnsembleRoles,
    LocalEnsemble,
)

pytestmark = pytest.mark.integration

LISTENS = """
import signal, socket, sys, time

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))

def end(*_):
    listener.close()
    time.sleep(1)
    sys.exit()

signal.signal(signal.SIGTERM, end)
while True:
    time.sleep(1)
"""
REFUSES = "import sys; sys.exit('no room for a ledger')"


def _python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program, "{port}")


@pytest.fixture
async def ensemble(tmp_path: Path) -> AsyncIterator[LocalEnsemble]:
    try:
        build(Part.SERVERS)
    except InvalidRequestError as error:
        missing(f"no ensemble was started: {error}")
    found = LocalEnsemble.opened(tmp_path / "ensemble", bookie_count=2)
    found.roles = EnsembleRoles(
        zookeeper=replace(ZOOKEEPER_ROLE, command=_python(LISTENS)),
        bookie=replace(BOOKIE_ROLE, command=_python(LISTENS)),
        shell=replace(BOOKIE_SHELL_ROLE, command=(sys.executable, "-c", "")),
    )
    yield found
    await found.down(number=signal.SIGKILL)


async def test_a_bookie_that_is_ending_itself_is_started_again(ensemble: LocalEnsemble) -> None:
    """It runs when it is looked at, and listens no more: ZooKeeper was away, and still had its session when back."""
    await ensemble.up()
    bookie = ensemble.bookies[1]
    before = bookie.process
    bookie.process.send(signal.SIGTERM)
    while is_listening(bookie.port):
        time.sleep(0.001)
    await ensemble.up()
    assert not before.runs
    assert ensemble.runs(bookie)
    assert is_listening(bookie.port)


async def test_a_bookie_that_cannot_start_shows_the_end_of_its_log(ensemble: LocalEnsemble) -> None:
    bookie = replace(ensemble.roles.bookie, command=_python(REFUSES))
    ensemble.roles = replace(ensemble.roles, bookie=bookie)
    with pytest.raises(InvalidRequestError, match="bookie0 did not start: it has ended") as error:
        await ensemble.up()
    assert "no room for a ledger" in str(error.value)


async def test_a_cluster_that_was_not_made_is_told_and_made_the_next_time(
    ensemble: LocalEnsemble,
) -> None:
    roles = ensemble.roles
    ensemble.roles = replace(roles, shell=replace(roles.shell, command=_python(REFUSES)))
    with pytest.raises(InvalidRequestError, match="bookkeeper-init failed exit_code=1") as error:
        await ensemble.up()
    assert "no room for a ledger" in str(error.value)
    ensemble.roles = roles
    await ensemble.up()


async def test_a_cluster_that_an_interrupted_start_has_made_is_taken(
    ensemble: LocalEnsemble,
) -> None:
    refuses = "import sys; sys.exit('ERROR Ledger root path: /ledgers already exists')"
    roles = ensemble.roles
    ensemble.roles = replace(roles, shell=replace(roles.shell, command=_python(refuses)))
    await ensemble.up()


async def test_a_zookeeper_that_cannot_start_shows_the_end_of_its_log(
    ensemble: LocalEnsemble,
) -> None:
    zookeeper = replace(ensemble.roles.zookeeper, command=_python(REFUSES))
    ensemble.roles = replace(ensemble.roles, zookeeper=zookeeper)
    with pytest.raises(InvalidRequestError, match="zookeeper did not start: it has ended") as error:
        await ensemble.up()
    assert "no room for a ledger" in str(error.value)
