"""Requests between a process and services elsewhere: they take time, get lost, and take effect whoever dies meanwhile.

A request has three moments: it is sent, it takes effect, it is answered. The effect belongs to the world, not to the
sender. Works on any loop; on the simulation's loop a dead sender hears no answer, and a paused one hears it later.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from segmentstore.runtime.cancellation import complete_unless_done, fail_unless_done

Result = TypeVar("Result")


@dataclass(slots=True)
class Network:
    """How long messages take, and what becomes of requests to ZooKeeper. Seconds; all may change at any time."""

    random: Random
    message_seconds: float = 0.0
    """Mean of one way."""
    timeout_seconds: float = 5.0
    """After that a client gives a request up."""
    metadata_down: bool = False
    """ZooKeeper answers none."""
    lost_request: float = 0.0
    """Probability: no effect, and an error."""
    lost_answer: float = 0.0
    """The effect, and an error."""
    late: float = 0.0
    """An error, and the effect at any time up to `late_seconds_max` later."""
    late_seconds_max: float = 20.0

    def travel_seconds(self) -> float:
        if not self.message_seconds:
            return 0.0
        seconds = self.random.expovariate(1 / self.message_seconds)
        return seconds * 50 if self.random.random() < 0.01 else seconds

    async def request(
        self, effect: Callable[[], Result], unavailable: Callable[[str], Exception]
    ) -> Result:
        """What the effect returns or raises; `unavailable` makes the error of a request without an answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        context = copy_context()
        fate = self.random.random() if self.lost_request or self.lost_answer or self.late else 1.0

        def fail(why: str) -> None:
            fail_unless_done(answer, unavailable(why))

        def arrive(answered: bool) -> None:
            if self.metadata_down:
                after(self.travel_seconds(), lambda: fail("it is gone"), context)
                return
            try:
                result = effect()
            except Exception as error:  # noqa: BLE001 - the caller's answer
                failure = error
                if answered:
                    after(self.travel_seconds(), lambda: fail_unless_done(answer, failure), context)
            else:
                if answered:
                    after(
                        self.travel_seconds(), lambda: complete_unless_done(answer, result), context
                    )

        def give_up() -> None:
            after(self.timeout_seconds, lambda: fail("the connection was lost"), context)

        travel = self.travel_seconds()
        if self.metadata_down or fate < self.lost_request:
            give_up()
        elif fate < self.lost_request + self.lost_answer:
            after(travel, lambda: arrive(answered=False), Context())
            give_up()
        elif fate < self.lost_request + self.lost_answer + self.late:
            late = self.random.random() * self.late_seconds_max
            after(travel + late, lambda: arrive(answered=False), Context())
            give_up()
        else:
            after(travel, lambda: arrive(answered=True), Context())
        return await answer


def after(seconds: float, call: Callable[[], None], context: Context) -> None:
    """Call it then; in the world with an empty context, in a process with a copy of its own."""
    loop = asyncio.get_running_loop()
    if seconds > 0:
        loop.call_later(seconds, call, context=context)
    else:
        loop.call_soon(call, context=context)
