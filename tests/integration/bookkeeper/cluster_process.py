"""A process with a session of its own, for a test to kill and to stop; it writes what happens, one JSON object a line.

    python -m tests.integration.bookkeeper.cluster_process node|controller SERVERS ROOT SESSION_SECONDS NAME

A node registers, and registers anew when its session is lost. A controller takes part in the election, and commits a
value twenty times a second while it leads; it ends if a value was written by another meanwhile.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from random import SystemRandom

from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.node_session import NodeSession
from segmentstore.cluster.records import LeaderRecord
from segmentstore.coordination.coordination_store import (
    CoordinationSession,
    SessionLostError,
    SetValue,
)
from segmentstore.coordination.zookeeper import ZooKeeperStore

VALUE_PATH = "value"
Connect = Callable[[], Awaitable[CoordinationSession]]


def tell(what: str, **facts: object) -> None:
    loop = asyncio.get_running_loop()
    sys.stdout.write(json.dumps({"what": what, "at": loop.time(), **facts}) + "\n")
    sys.stdout.flush()


async def run_node(connect: Connect, name: str) -> None:
    while True:
        session = await NodeSession.register(
            connect,
            name=name,
            http="127.0.0.1:1",
            wire="127.0.0.1:2",
            capacity=0,
            version="1",
            random=SystemRandom(),
            on_lost=partial(tell, "lost"),
        )
        tell("registered", node=session.node.node_id)
        heartbeats = asyncio.ensure_future(tell_heartbeats(session))
        try:
            await session.run()
        except SessionLostError as error:
            tell("ended", why=str(error))
        heartbeats.cancel()
        await session.close()


async def tell_heartbeats(session: NodeSession) -> None:
    while True:
        await asyncio.sleep(0.5)
        tell("heartbeat", seconds=session.lease.heartbeat_seconds)


async def lead(leadership: Leadership) -> None:
    tell("leads", epoch=leadership.epoch)
    found = await leadership.session.get(VALUE_PATH)
    version = -1 if found is None else found.version
    if found is None:
        version = await leadership.session.create(VALUE_PATH, b"")
    while True:
        value = json.dumps({"epoch": leadership.epoch}).encode()
        # Another's write in between would raise ValueChangedError, and end the process.
        await leadership.commit([SetValue(VALUE_PATH, value, version)])
        version += 1
        await asyncio.sleep(0.05)


async def main() -> None:
    role, servers, root, seconds, name = sys.argv[1:]
    connect = partial(
        ZooKeeperStore.connect_session, servers, root=root, session_seconds=float(seconds)
    )
    if role == "node":
        await run_node(connect, name)
    await Election(
        connect=connect, leader=LeaderRecord(name, f"{name}:1"), work=lead, random=SystemRandom()
    ).run()


if __name__ == "__main__":
    asyncio.run(main())
