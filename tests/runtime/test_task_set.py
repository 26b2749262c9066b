import asyncio
from contextlib import suppress

import pytest

from segmentstore.runtime.task_set import TaskSet


class Owner:
    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.ended = 0
        self.tasks = TaskSet(on_failure=self.failures.append, on_end=self._count)

    def _count(self) -> None:
        self.ended += 1


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_an_owner_hears_of_the_failure_of_a_task() -> None:
    owner, bug = Owner(), ValueError("bug")

    async def fail() -> None:
        raise bug

    owner.tasks.start(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert owner.failures == [bug]
    assert owner.ended == 1
    assert len(owner.tasks) == 0


async def test_closing_ends_every_task_and_tells_of_no_failure() -> None:
    owner, cleaned = Owner(), []

    async def work(number: int) -> None:
        try:
            await _for_ever()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(3):
        owner.tasks.start(work(number), name=f"work {number}")
    await asyncio.sleep(0)
    assert len(owner.tasks) == 3
    await owner.tasks.close()
    await owner.tasks.close()
    assert cleaned == [0, 1, 2]
    assert owner.failures == []
    assert owner.ended == 3


async def test_a_failure_while_closing_is_told_too() -> None:
    owner, bug = Owner(), ValueError("bug")

    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await _for_ever()
        raise bug

    owner.tasks.start(work())
    await asyncio.sleep(0)
    await owner.tasks.close()
    assert owner.failures == [bug]


async def test_a_failure_is_told_once_though_telling_of_it_fails() -> None:
    told: list[BaseException] = []
    reported: list[object] = []
    ended: list[int] = []
    bug, second_bug = ValueError("bug"), ValueError("bug of the owner")

    def fail(error: BaseException) -> None:
        told.append(error)
        raise second_bug

    async def work() -> None:
        raise bug

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    tasks = TaskSet(on_failure=fail, on_end=lambda: ended.append(len(tasks)))
    tasks.start(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == [bug]
    assert reported == [second_bug]
    assert ended == [0]


async def test_an_owner_hears_of_the_failure_of_its_count_of_ends() -> None:
    failures: list[BaseException] = []
    bug = ValueError("bug")

    def fail() -> None:
        raise bug

    async def work() -> None:
        pass

    tasks = TaskSet(on_failure=failures.append, on_end=fail)
    tasks.start(work())
    await tasks.join()
    await asyncio.sleep(0)
    assert failures == [bug]
    assert len(tasks) == 0


async def test_no_task_is_started_after_the_end_of_its_owner() -> None:
    owner = Owner()
    await owner.tasks.close()
    work = _for_ever()
    with pytest.raises(AssertionError, match="after the end of its owner"):
        owner.tasks.start(work)
    work.close()


async def test_cancelled_tasks_may_be_followed_by_others() -> None:
    owner = Owner()
    owner.tasks.start(_for_ever())
    await asyncio.sleep(0)
    owner.tasks.cancel()
    await owner.tasks.join()
    owner.tasks.start(_for_ever())
    assert len(owner.tasks) == 1
    await owner.tasks.close()
