"""Contents are hashed by the batch, and nobody's batch is anybody else's trouble."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from segmentstore.contracts.identifiers import BufferView
from tests.tier2.counting_threads import CountingThreads
from tier2.volumes.content import digest, digest_by_name
from tier2.volumes.digest_line import DigestLine

PIECE_BYTES = 1000


@pytest.fixture
async def threads() -> AsyncIterator[CountingThreads]:
    with CountingThreads() as executor:
        yield executor


def contents(count: int) -> list[list[BufferView]]:
    return [[b"%d" % number, memoryview(b"rest" * 100 * number)] for number in range(1, count + 1)]


async def test_contents_of_one_turn_are_hashed_by_two_calls(threads: CountingThreads) -> None:
    line = DigestLine(executor=threads, piece_bytes=PIECE_BYTES)
    wanted = contents(16)
    found = await asyncio.gather(*(line.digest(content) for content in wanted))
    assert found == [digest(content, PIECE_BYTES) for content in wanted]
    assert threads.jobs == 2
    assert await line.digest(wanted[0]) == found[0]
    assert threads.jobs == 3


async def test_a_content_with_a_name_of_its_own_is_summed_in_the_same_batch(
    threads: CountingThreads,
) -> None:
    line = DigestLine(executor=threads, piece_bytes=PIECE_BYTES)
    hashed, named = await asyncio.gather(
        line.digest([b"bytes"]), line.digest([b"bytes"], unique_key=b"key")
    )
    assert hashed.content_hash == hashlib.sha256(b"bytes").digest()
    assert named == digest_by_name(b"key", [b"bytes"], PIECE_BYTES)


async def test_what_comes_while_all_calls_are_under_way_is_hashed_behind_them(
    threads: CountingThreads,
) -> None:
    line = DigestLine(executor=threads, piece_bytes=PIECE_BYTES)
    first = [asyncio.create_task(line.digest(content)) for content in contents(4)]
    while threads.jobs < 2:
        await asyncio.sleep(0)
    late = [asyncio.create_task(line.digest(content)) for content in contents(8)]
    for task, content in zip([*first, *late], [*contents(4), *contents(8)], strict=True):
        assert await task == digest(content, PIECE_BYTES)


async def test_a_caller_that_goes_away_takes_nothing_from_its_batch(
    threads: CountingThreads,
) -> None:
    line = DigestLine(executor=threads, piece_bytes=PIECE_BYTES)
    tasks = [asyncio.create_task(line.digest(content)) for content in contents(6)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
    assert outcomes[1::2] == [digest(content, PIECE_BYTES) for content in contents(6)[1::2]]


async def test_callers_are_told_when_nobody_hashes_any_more() -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    line = DigestLine(executor=executor, piece_bytes=PIECE_BYTES)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            await line.digest([b"bytes"])
