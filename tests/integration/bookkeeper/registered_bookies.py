"""Which bookies are registered in a ZooKeeper by a session that they still have.

A bookie that lost its session behind a restart of ZooKeeper listens on, and ends itself if its old registration stays
for too long: that it listens, or that something is registered in its name, does not say that it will be there.
"""

import asyncio
import re
from collections.abc import Sequence

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

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
    """How many of the bookies with these ports are."""
    client = KazooClient(servers)
    client.start(timeout=60)
    try:
        return sum(_is_registered(client, port) for port in ports)
    finally:
        client.stop()
        client.close()


def _is_registered(client: KazooClient, port: int) -> bool:
    try:
        _, status = client.get(f"{LEDGERS_PATH}/available/127.0.0.1:{port}")
    except NoNodeError:
        return False
    said = client.command(b"cons")
    sessions = _SESSION.findall(said if isinstance(said, bytes) else said.encode())
    return status.ephemeralOwner in {int(each, 16) for each in sessions}
