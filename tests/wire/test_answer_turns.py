"""Answers that may be large are made in turns, and none while the client does not listen."""

import asyncio

from segmentstore.wire.answer_turns import AnswerTurns


class Client:
    """Takes what it is sent, or not."""

    def __init__(self, bytes_max: int) -> None:
        self.is_deaf = False
        self.turns = AnswerTurns(bytes_max=bytes_max, is_full=lambda: self.is_deaf)
        self.begun: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}

    def ask(self, name: str, byte_count: int) -> "asyncio.Task[None]":
        self.may_end[name] = asyncio.Event()
        return asyncio.create_task(self._answer(name, byte_count))

    async def _answer(self, name: str, byte_count: int) -> None:
        async with self.turns.turn(byte_count):
            self.begun.append(name)
            await self.may_end[name].wait()

    async def end(self, task: "asyncio.Task[None]", name: str) -> None:
        self.may_end[name].set()
        await task
        await settle()


async def settle() -> None:
    """All that can go on has gone on: nothing here waits for more than the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_turns_are_given_in_order_as_far_as_there_is_room() -> None:
    client = Client(bytes_max=10)
    tasks = {
        name: client.ask(name, size) for name, size in (("a", 4), ("b", 4), ("c", 4), ("d", 1))
    }
    await settle()
    # There is room for d, but c came before it.
    assert client.begun == ["a", "b"]
    await client.end(tasks["a"], "a")
    assert client.begun == ["a", "b", "c", "d"]
    for name in "bcd":
        await client.end(tasks[name], name)
    assert client.turns.begun_bytes == client.turns.waiting_count == 0


async def test_an_answer_above_the_bound_is_made_alone() -> None:
    client = Client(bytes_max=10)
    small, large = client.ask("small", 1), client.ask("large", 100)
    after = client.ask("after", 1)
    await settle()
    assert client.begun == ["small"]
    await client.end(small, "small")
    assert client.begun == ["small", "large"]
    await client.end(large, "large")
    assert client.begun == ["small", "large", "after"]
    await client.end(after, "after")


async def test_none_is_begun_while_the_client_does_not_listen() -> None:
    client = Client(bytes_max=10)
    client.is_deaf = True
    task = client.ask("a", 1)
    await settle()
    assert client.begun == []
    assert not client.turns.is_free()
    client.is_deaf = False
    client.turns.go_on()
    await settle()
    assert client.begun == ["a"]
    await client.end(task, "a")
    assert client.turns.is_free()


async def test_a_turn_of_a_task_that_is_cancelled_goes_to_the_next() -> None:
    client = Client(bytes_max=10)
    first, waits, given, last = (client.ask(name, 10) for name in ("1", "2", "3", "4"))
    await settle()
    waits.cancel()
    await settle()
    assert client.turns.waiting_count == 2
    # Its turn is given and it is cancelled, before it has heard of either.
    client.may_end["1"].set()
    while client.turns.waiting_count == 2:
        await asyncio.sleep(0)
    given.cancel()
    await settle()
    assert client.begun == ["1", "4"]
    await client.end(last, "4")
    await first
    assert client.turns.begun_bytes == client.turns.waiting_count == 0
