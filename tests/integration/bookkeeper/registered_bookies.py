"""Which bookies are registered in a ZooKeeper by a session that they still have.

A bookie that lost its session behind a restart of ZooKeeper listens on, and ends itself if its old registration stays
for too long: that it listens, or that something is registered in its name, does not say that it will be there.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from tier1.bookkeeper.local_ensemble import LEDGERS_PATH, LocalEnsemble

_SESSION = re.compile(rb"sid=0x([0-9a-f]+)")
_LOOK_SECONDS = 0.2


async def until_all_are_registered(ensemble: LocalEnsemble) -> None:
    """Every server of it is started if it does not run. However long it takes: a test has its own end."""
    await ensemble.up()
    ports = [bookie.port for bookie in ensemble.bookies]
    while await asyncio.to_thread(registered, ensemble.servers, ports) < len(ports):
        await asyncio.sleep(_LOOK_SECONDS)
        await ensemble.up()


def registered(servers: str, ports: Sequence[int]) -> int:
    """How many of the bookies with these ports are; none while ZooKeeper does not answer."""
    client = KazooClient(servers)
    try:
        client.start(timeout=60)
        owners = [_owner(client, port) for port in ports]
        said = client.command(b"cons")
        content = said if isinstance(said, bytes) else said.encode()
        sessions = {int(each, 16) for each in _SESSION.findall(content)}
        return sum(owner in sessions for owner in owners)
    except (KazooException, KazooTimeoutError, OSError):
        return 0
    finally:
        client.stop()
        client.close()


def _owner(client: KazooClient, port: int) -> int:
    """The session that has registered the bookie; 0 if none has."""
    with suppress(NoNodeError):
        _, status = client.get(f"{LEDGERS_PATH}/available/127.0.0.1:{port}")
        return int(status.ephemeralOwner)
    return 0
