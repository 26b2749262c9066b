"""Sends events into one segment as the wire server would: numbered, in one operation with the writer's last number.

What is known to be stored is never sent again; what is sent again meets the number that the segment has stored.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.controller.random_runs.ledger import KnownEvent
from tests.controller.random_runs.random_world import (
    REQUEST_ERRORS,
    RandomHost,
    RandomWorld,
    says_nothing,
)
from tests.sim.attempts import ModelBreachError


@dataclass(frozen=True, slots=True)
class _Append:
    data: bytes
    count: int
    number: int
    """Of the last event."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a group of events."""

    rest: list[KnownEvent]
    """Those that are not known to be stored."""
    sealed: bool = False
    """The segment takes no more; the rest is not in it."""
    gone: bool = False


class EventSender:
    """One writer id."""

    def __init__(self, world: RandomWorld, random: Random) -> None:
        self._world = world
        self._random = random
        self._key = AttributeKey(b"W" + random.randbytes(15))
        self._numbers: dict[str, dict[int, int]] = {}
        """Segment -> event -> its number there; the first is 1."""

    async def send(self, name: str, group: Sequence[KnownEvent]) -> Sent:
        """Once. Waits for every outcome; nothing is raised but breaches."""
        numbers = self._numbers.setdefault(name, {})
        for event in group:
            numbers.setdefault(event.number, len(numbers) + 1)
        rest = sorted(group, key=lambda event: numbers[event.number])
        try:
            stored = await self._world.ask(lambda host: _set_up(host, name, self._key))
            rest = self._resolved(name, rest, numbers, stored)
            if not rest:
                return Sent(rest)
            for event in rest:
                event.sent_to[name] = None
            appends, events = self._appends(rest, numbers)
            outcomes = await self._world.ask(
                lambda host: _push(host, name, self._key, stored, appends)
            )
        except SegmentNotFoundError:
            return Sent(rest, gone=True)
        except REQUEST_ERRORS as error:
            if not says_nothing(error):
                raise ModelBreachError(f"{name} refuses to take events: {error!r}") from error
            self._world.loop.trace("sent", name, "no answer", type(error).__name__)
            return Sent(rest)
        return self._judge(name, appends, events, outcomes)

    def _resolved(
        self, name: str, group: list[KnownEvent], numbers: dict[int, int], stored: int
    ) -> list[KnownEvent]:
        rest: list[KnownEvent] = []
        for event in group:
            if numbers[event.number] <= stored:
                if name not in event.sent_to:
                    raise ModelBreachError(
                        f"{name} says that it has {event}, which it was not sent"
                    )
                event.ack(name, None)
            else:
                rest.append(event)
        return rest

    def _appends(
        self, rest: list[KnownEvent], numbers: dict[int, int]
    ) -> tuple[list[_Append], list[list[KnownEvent]]]:
        appends: list[_Append] = []
        groups: list[list[KnownEvent]] = []
        while rest:
            count = self._random.randint(1, len(rest))
            some, rest = rest[:count], rest[count:]
            data = b"".join(event.frame for event in some)
            appends.append(_Append(data, count, numbers[some[-1].number]))
            groups.append(some)
        return appends, groups

    def _judge(
        self,
        name: str,
        appends: list[_Append],
        groups: list[list[KnownEvent]],
        outcomes: Sequence[int | BaseException],
    ) -> Sent:
        rest: list[KnownEvent] = []
        sealed = gone = False
        for append, events, outcome in zip(appends, groups, outcomes, strict=True):
            if isinstance(outcome, int):
                if rest:
                    raise ModelBreachError(f"{name} took {events[0]}, not what came before it")
                offset = outcome - len(append.data)
                for event in events:
                    event.ack(name, offset)
                    offset += len(event.frame)
                self._world.loop.trace("acked", name, append.count, "to", outcome)
                continue
            rest += events
            if isinstance(outcome, SegmentSealedError):
                sealed = True
            elif isinstance(outcome, SegmentNotFoundError):
                gone = True
            elif not isinstance(outcome, SegmentStoreError) or not (
                says_nothing(outcome) or isinstance(outcome, BadAttributeUpdateError)
            ):
                raise ModelBreachError(f"{name} refuses {events[0]}") from outcome
        return Sent(rest, sealed=sealed and not gone, gone=gone)


async def _set_up(host: RandomHost, name: str, key: AttributeKey) -> int:
    async with host.segments.open_segment(name) as segment:
        await asyncio.shield(segment.barrier())
        value = (await segment.load_attributes([key])).get(key, 0)
        assert isinstance(value, int), f"a writer's number is no number {value!r}"
        return value


async def _push(
    host: RandomHost, name: str, key: AttributeKey, stored: int, appends: Sequence[_Append]
) -> list[int | BaseException]:
    async with host.segments.open_segment(name) as segment:
        futures = []
        for append in appends:
            update = AttributeUpdate(
                key, append.number, AttributeUpdateType.REPLACE_IF_EQUALS, stored or None
            )
            future = segment.append(append.data, attribute_updates=[update], events=append.count)
            # The client may be gone by then.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            futures.append(asyncio.shield(future))
            stored = append.number
        return list(await asyncio.gather(*futures, return_exceptions=True))
