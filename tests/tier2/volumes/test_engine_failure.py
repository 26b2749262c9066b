"""Goal: an engine of which a callback fails tells its callers, is refused from then on, and can be closed.

Method: each callback that the loop makes for an engine is made to fail in its turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import StorageError, StorageUnavailableError
from tests.tier2.volumes.engines import open_small
from tier2.volumes.deduplication import DuplicateCheckQueue
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.reader import ReadQueue
from tier2.volumes.write_queue import HashingQueue, WriteQueue

BUG = ZeroDivisionError("as the test says")
KEPT = Random(1).randbytes(5000)
PATIENCE_SECONDS = 60


def broken(*_: object) -> None:
    raise BUG


async def put_small(engine: VolumeEngine) -> Sequence[Awaitable[object]]:
    return [engine.put(b"%d" % number, [b"small"]) for number in range(5)]


async def put_large(engine: VolumeEngine) -> Sequence[Awaitable[object]]:
    return [engine.put(b"%d" % number, [Random(number).randbytes(9000)]) for number in range(5)]


async def put_again(engine: VolumeEngine) -> Sequence[Awaitable[object]]:
    return [engine.put(b"%d" % number, [KEPT]) for number in range(5)]


async def get(engine: VolumeEngine) -> Sequence[Awaitable[object]]:
    # Until the index has given its rows to the database: nothing is answered from memory then.
    while engine._index.has_recent:
        await asyncio.sleep(0.01)
    return [engine.get(b"kept") for _ in range(5)]


async def put_until_it_fails(engine: VolumeEngine) -> Sequence[Awaitable[object]]:
    """The timer that runs now is an earlier one."""
    while engine.failure is None:
        await asyncio.sleep(0.05)
        with suppress(StorageError):
            await engine.put(b"key", [b"small"])
    return []


@pytest.mark.parametrize(
    ("owner", "callback", "requests"),
    [
        (WriteQueue, "_answer", put_small),
        (WriteQueue, "_answer", put_large),
        (WriteQueue, "_flush_soon", put_until_it_fails),
        (WriteQueue, "_commit_batches", put_small),
        (WriteQueue, "_commit_batches", put_large),
        (HashingQueue, "_begin_hashing", put_large),
        (HashingQueue, "_end_hashing", put_large),
        (HashingQueue, "_note_outcomes", put_large),
        (DuplicateCheckQueue, "_begin", put_again),
        (DuplicateCheckQueue, "_see_end", put_again),
        (ReadQueue, "_begin", get),
        (ReadQueue, "_end", get),
    ],
)
async def test_a_callback_that_fails_ends_the_engine_with_its_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    callback: str,
    requests: Callable[[VolumeEngine], Awaitable[Sequence[Awaitable[object]]]],
) -> None:
    caplog.set_level(logging.CRITICAL)
    with ThreadPoolExecutor(4) as executor:
        opened = await open_small(str(tmp_path), executor=executor)
        engine = opened.engine
        await engine.put(b"kept", [KEPT])
        with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL):
            patch.setattr(owner, callback, broken)
            async with asyncio.timeout(PATIENCE_SECONDS):
                outcomes = await asyncio.gather(*await requests(engine), return_exceptions=True)
        assert engine.failure is BUG
        for outcome in outcomes:
            assert isinstance(outcome, StorageError)
            assert BUG in (outcome.__cause__, outcome)
        await require_refusals(engine)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await opened.close()
    again = await open_small(str(tmp_path))
    assert (await again.engine.get(b"kept")).content == KEPT
    await again.engine.check()
    await again.close()


async def require_refusals(engine: VolumeEngine) -> None:
    verbs: Sequence[Callable[[], Awaitable[object]]] = (
        lambda: engine.put(b"key", [b"small"]),
        lambda: engine.put(b"key", [Random(9).randbytes(9000)]),
        lambda: engine.delete(b"kept"),
        lambda: engine.get(b"kept"),
        lambda: engine.get_range(b"kept", 0, 10, checked=False),
        lambda: engine.head(b"kept"),
        lambda: engine.list(b"", limit=1),
    )
    for verb in verbs:
        with pytest.raises(StorageUnavailableError, match="as the test says") as refusal:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await verb()
        assert refusal.value.state == "stopped"
