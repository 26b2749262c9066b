"""Actors that append."""

import asyncio

from segmentstore.contracts.errors import BadAttributeUpdateError
from segmentstore.contracts.identifiers import CORE_ATTRIBUTE_PREFIX, AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import Append, ModelBreachError, Outcome
from tests.sim.client import REQUEST_ERRORS, OpenSegment


class Appender(Actor):
    """Opens, sends a few appends at once, waits for all of them; some conditional, some that seal."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self._open: OpenSegment | None = None

    async def step(self) -> None:
        if self._open is None or not self._open.alive or self.random.random() < 0.2:
            await self.close()
            self._open = await self.open(self.name)
        segment = self._open
        sent = [self._send(segment) for _ in range(self._burst())]
        try:
            await _all_outcomes(segment, sent)
        except REQUEST_ERRORS:
            await self.close()
            raise

    async def close(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            await segment.close()

    def _burst(self) -> int:
        return self.random.randint(1, self.stage.settings.pipeline_max)

    def _send(self, segment: OpenSegment) -> "tuple[Append, asyncio.Future[int]]":
        conditional = self.random.random() < 0.2
        append = self.stage.model.append_begins(
            segment.life,
            connection=segment.connection,
            length=self.append_length(),
            offset=segment.life.length if conditional else None,
            seals=self.name in self.stage.volatile and self.random.random() < 0.02,
        )
        return append, segment.append(append)


class EventWriter(Actor):
    """Numbers its events, keeps the last number in an attribute of the same operation, and resends after a break."""

    def __init__(self, stage: Stage, name: str, number: int) -> None:
        super().__init__(stage, name)
        prefix = CORE_ATTRIBUTE_PREFIX if number % 2 else b"writerid"
        self._key = AttributeKey(prefix + number.to_bytes(8, "big"))
        self._open: OpenSegment | None = None
        self._submitted = 0
        self._acked = 0

    @property
    def key(self) -> AttributeKey:
        return self._key

    async def step(self) -> None:
        if self._open is None or not self._open.alive:
            await self.close()
            self._open = await self.open(self.name)
            try:
                await self._resume(self._open)
            except REQUEST_ERRORS:
                await self.close()
                raise
        segment = self._open
        wanted = self.random.randint(1, self.stage.settings.pipeline_max)
        sent = [self._send(segment) for _ in range(wanted)]
        try:
            await _all_outcomes(segment, sent)
        except REQUEST_ERRORS as error:
            self._judge([append for append, _ in sent], error)
            await self.close()
            raise
        finally:
            acked = [a.event for a, _ in sent if a.outcome is Outcome.ACKED]
            self._acked = max([self._acked, *acked])
        if self._acked and self.random.random() < 0.2:
            await self._repeat_an_old_event(segment)
        if self.random.random() < 0.1:
            await self.close()

    def owes(self) -> bool:
        return self._acked < self._submitted

    async def close(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            await segment.close()

    async def _resume(self, segment: OpenSegment) -> None:
        """Ask how far it came (H25) and go on from there."""
        values = await segment.load_attributes([self._key])
        last = values.get(self._key, 0)
        if not isinstance(last, int) or not self._acked <= last <= self._submitted:
            raise ModelBreachError(
                f"{segment.life}: writer {self._key.hex()} is at {last!r}, "
                f"acked={self._acked} submitted={self._submitted}"
            )
        self._acked = self._submitted = last

    def _send(self, segment: OpenSegment) -> "tuple[Append, asyncio.Future[int]]":
        self._submitted += 1
        return self._send_event(segment, self._submitted)

    async def _repeat_an_old_event(self, segment: OpenSegment) -> None:
        """A network that delivers twice: the second one must be refused."""
        append, answer = self._send_event(segment, self.random.randint(1, self._acked))
        try:
            await segment.outcome(append, answer)
        except BadAttributeUpdateError:
            return
        except REQUEST_ERRORS:
            await self.close()
            raise
        raise ModelBreachError(f"an event was taken twice: {append}")

    def _send_event(self, segment: OpenSegment, event: int) -> "tuple[Append, asyncio.Future[int]]":
        append = self.stage.model.append_begins(
            segment.life,
            connection=segment.connection,
            length=self.append_length(),
            writer=self._key,
            event=event,
        )
        update = AttributeUpdate(
            self._key,
            event,
            AttributeUpdateType.REPLACE_IF_EQUALS,
            comparison=event - 1 or None,
        )
        return append, segment.append(append, [update])

    def _judge(self, sent: list[Append], error: BaseException) -> None:
        """A condition can fail only behind an append that failed for another reason."""
        for append in sent:
            if append.outcome is not Outcome.ACKED:
                if append.outcome is Outcome.REFUSED and isinstance(error, BadAttributeUpdateError):
                    raise ModelBreachError(f"a writer's condition failed: {append}") from error
                return


async def _all_outcomes(
    segment: OpenSegment, sent: "list[tuple[Append, asyncio.Future[int]]]"
) -> None:
    """Wait for all; raise the first error once every outcome is known."""
    first: BaseException | None = None
    for append, answer in sent:
        try:
            await segment.outcome(append, answer)
        except REQUEST_ERRORS as error:
            first = first or error
    if first is not None:
        raise first
