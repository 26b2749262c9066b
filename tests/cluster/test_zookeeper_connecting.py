"""What becomes of a connection to ZooKeeper whose maker gives up while kazoo makes it, in a thread."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from segmentstore.coordination.zookeeper import ZooKeeperStore


async def test_a_connection_that_is_given_up_while_it_is_made_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kazoo would keep its threads, and its session by pings, for as long as the process is there."""
    kazoo_client = pytest.importorskip("kazoo.client")
    begun, goes_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def start(timeout: float) -> None:
        assert timeout > 0
        begun.set()
        assert goes_on.wait(60)

    def client(**_: Any) -> Any:
        return SimpleNamespace(
            start=start,
            stop=lambda: ended.append("stop"),
            close=lambda: ended.append("close"),
            handler=SimpleNamespace(timeout_exception=TimeoutError),
            _connection=SimpleNamespace(_invoke=None),
        )

    monkeypatch.setattr(kazoo_client, "KazooClient", client)
    connecting = asyncio.create_task(ZooKeeperStore.connect("localhost:1", root="/r"))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    connecting.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert ended == ["stop", "close"]
