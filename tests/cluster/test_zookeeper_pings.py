"""kazoo keeps a session alive from a thread of its own: only for as long as the loop that uses the session turns."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from segmentstore.coordination.zookeeper import ZooKeeperStore, _AgreedSession

SESSION_SECONDS = 0.6


class Connection:
    """kazoo's, as far as it is used here."""

    def __init__(self) -> None:
        self.pings = 0

    def _send_ping(self, connect_timeout: float) -> None:
        assert connect_timeout == SESSION_SECONDS
        self.pings += 1

    def _invoke(self) -> None:
        """Not called."""


def store_over(connection: Connection, *, one_session: bool) -> ZooKeeperStore:
    client = SimpleNamespace(
        client_id=(1, b""),
        state="CONNECTED",
        add_listener=lambda _: None,
        remove_listener=lambda _: None,
        stop=lambda: None,
        close=lambda: None,
        _connection=connection,
    )
    agreed = _AgreedSession(client, SESSION_SECONDS)
    return ZooKeeperStore(client, None, root="/r", agreed=agreed, one_session=one_session)


async def ping(connection: Connection) -> bool:
    """Whether kazoo's thread sends one now; the loop stands still meanwhile."""
    before = connection.pings
    connection._send_ping(SESSION_SECONDS)
    return connection.pings > before


async def test_a_session_is_kept_alive_while_the_loop_turns() -> None:
    connection = Connection()
    store = store_over(connection, one_session=True)
    for _ in range(4):
        assert await ping(connection)
        await asyncio.sleep(SESSION_SECONDS / 4)
    await store.close()


@pytest.mark.parametrize("one_session", [True, False])
async def test_a_loop_that_stands_still_does_not_keep_its_session(*, one_session: bool) -> None:
    """What is registered in it would be there for as long as the process is: no node would be given its containers."""
    connection = Connection()
    store = store_over(connection, one_session=one_session)
    time.sleep(SESSION_SECONDS)
    # One whose sessions follow one another registers nothing.
    assert await ping(connection) is not one_session
    await asyncio.sleep(SESSION_SECONDS / 4)
    assert await ping(connection)
    await store.close()
