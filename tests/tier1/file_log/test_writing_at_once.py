"""A lone append is on its way to the disk before append() returns."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import ParamSpec, TypeVar

from segmentstore.runtime.files import SystemFileSystem
from tier1.file_log.log import FileDurableDataLog

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class CountingThreads(ThreadPoolExecutor):
    """Counts what is submitted."""

    jobs = 0

    def submit(
        self,
        fn: Callable[Parameters, Result],
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Future[Result]:
        self.jobs += 1
        return super().submit(fn, *args, **kwargs)


async def test_an_append_to_an_idle_log_is_handed_to_a_thread_in_the_call_itself(
    tmp_path: Path,
) -> None:
    with CountingThreads(max_workers=2) as threads:
        log = FileDurableDataLog(
            str(tmp_path / "log"), files=SystemFileSystem(), executor=threads, random=Random(1)
        )
        await log.initialize()
        try:
            await log.append([b"first"])
            before = threads.jobs
            future = log.append([b"second"])
            assert threads.jobs == before + 1
            await future
        finally:
            await log.close()
