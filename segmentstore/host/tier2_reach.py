"""Whether Tier 2 answers this node: what the leader needs to know to give a node's containers to nodes that reach it.

A container whose node does not reach Tier 2 acknowledges appends, and its log grows; new segments, and what only Tier 2
knows, are refused. Where other nodes reach it, the container is better off there. Where none does, moving it helps
nothing, and each move costs its writers a wait.

Invariants:

- REACHED is said for REACHED_SECONDS behind an answer, SILENT from `silent_seconds` behind the last one, which is more
  than twice as long. So when Tier 2 goes away for all nodes, each of them has ceased to say REACHED, and reported it,
  before any says SILENT: no clock is compared with another machine's.
- Whatever a request of this process was answered counts; only a node that had no answer for LOOK_SECONDS asks for its
  own sake, with one request that reads nothing. An idle node sends one in so many seconds, which costs cents a month.
- Time in which this process itself stood still is no silence of Tier 2.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from segmentstore.contracts.cluster import Tier2State
from segmentstore.runtime.waiting import sleep_and_tell_lateness

LOOK_SECONDS: Final = 5.0
ASK_SECONDS_MAX: Final = 5.0
"""A request that is answered later is no answer here; if it is answered at all, the next look finds that."""
REACHED_SECONDS: Final = 15.0
"""More than a look and a question take, so that one answer in time is followed by the next."""
SILENT_SECONDS_MIN: Final = 2 * REACHED_SECONDS


class Tier2Reach:
    """run() until cancelled. `silent_seconds`: see the invariants."""

    def __init__(
        self,
        *,
        answers: Callable[[], int],
        ask: Callable[[], Awaitable[None]],
        silent_seconds: float,
    ) -> None:
        """`answers`: how many requests of this process Tier 2 has answered; `ask`: sends one, raises StorageError."""
        assert silent_seconds >= SILENT_SECONDS_MIN, f"silent too early {silent_seconds=}"
        self._answers = answers
        self._ask = ask
        self._silent_seconds = silent_seconds
        self._answered = 0
        self._answered_at = asyncio.get_running_loop().time()
        """Or when this began to look: what is never answered is silent some time behind that."""
        self._has_answered = False
        self._why = ""

    @property
    def state(self) -> Tier2State:
        """At this moment."""
        seconds = self.unanswered_seconds
        if seconds >= self._silent_seconds:
            return Tier2State.SILENT
        if seconds <= REACHED_SECONDS and self._has_answered:
            return Tier2State.REACHED
        return Tier2State.UNKNOWN

    @property
    def unanswered_seconds(self) -> float:
        """Since the last answer that was noticed, or since this began to look."""
        return asyncio.get_running_loop().time() - self._answered_at

    async def run(self) -> None:
        """Look, and ask where nothing else was answered."""
        while True:
            if not self._has_new_answer():
                await self._ask_once()
            self._answered_at += await sleep_and_tell_lateness(LOOK_SECONDS)

    def _has_new_answer(self) -> bool:
        answered = self._answers()
        if answered == self._answered:
            return False
        self._answered = answered
        self._answered_at = asyncio.get_running_loop().time()
        self._has_answered = True
        return True

    async def _ask_once(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                await self._ask()
        except TimeoutError:
            self._why = f"no answer within {ASK_SECONDS_MAX:g} s"
        except Exception as error:  # noqa: BLE001 - a question that breaks is one without an answer, and ends no node
            self._why = str(error) or type(error).__name__
        self._answered_at += max(0.0, loop.time() - began - ASK_SECONDS_MAX)
        self._has_new_answer()

    def complaints(self) -> list[str]:
        """For `/health`."""
        if self.state is not Tier2State.SILENT:
            return []
        told = (
            f"Tier 2 has not answered this node for {self.unanswered_seconds:.0f} s: {self._why}. Its containers are"
            " given to nodes that Tier 2 answers, if there are any; appends are acknowledged in any case. Look at this"
            " node's way to Tier 2, at its credentials and at its clock"
        )
        return [told]

    def metrics(self) -> Mapping[str, float]:
        """For `/metrics`."""
        return {"cluster_tier2_unanswered_seconds": self.unanswered_seconds}
