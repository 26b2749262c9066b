"""What a serving process asks of Python and of the system."""

import asyncio
import gc
import subprocess
import sys

import pytest
from aiohttp import ClientConnectionResetError, ClientRequest

from segmentstore.runtime.process import collections_put_off, pass_over_lost_writes


def test_nothing_is_collected_meanwhile_and_everything_afterwards() -> None:
    gc.collect()
    before = gc.get_stats()[0]["collections"]
    with collections_put_off():
        kept = [[each] for each in range(10 * gc.get_threshold()[0])]
        assert gc.get_stats()[0]["collections"] == before
    assert gc.isenabled()
    kept += [[each] for each in range(10 * gc.get_threshold()[0])]
    assert gc.get_stats()[0]["collections"] > before


def test_a_program_that_cannot_be_loaded_leaves_the_collector_at_work() -> None:
    with pytest.raises(ImportError), collections_put_off():
        raise ImportError
    assert gc.isenabled()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("given", "most", "expected"), [(256, 700, 700), (256, 256, 256), (700, 700, 700)]
)
def test_a_serving_process_takes_the_open_files_that_it_may_have(
    given: int, most: int, expected: int
) -> None:
    program = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({given}, {most}))\n"
        "from segmentstore.runtime.process import tune_for_serving\n"
        "tune_for_serving()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == expected


async def test_a_write_that_a_lost_connection_ended_is_not_told_twice_and_everything_else_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(error: Exception) -> None:
        raise error

    loop = asyncio.get_running_loop()
    lost, bug = ClientConnectionResetError("closing"), ValueError("a bug")
    writes = ClientRequest.write_bytes.__qualname__
    for name, error, is_told in ((writes, lost, False), (writes, bug, True), ("other", lost, True)):
        work = fail(error)
        setattr(work, "__qualname__", name)  # noqa: B010  # the type of a coroutine does not have it
        task = loop.create_task(work)
        await asyncio.wait([task])
        context = {"message": "never retrieved", "exception": task.exception(), "future": task}
        caplog.clear()
        pass_over_lost_writes(loop, context)
        assert ("never retrieved" in caplog.text) == is_told
