"""Actors that change segments as a whole: seal, truncate, merge, delete, create again, flush, count, crowd."""

from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from segmentstore.contracts.identifiers import CORE_ATTRIBUTE_PREFIX, AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import Counter, ModelBreachError, Outcome, Register
from tests.sim.client import REQUEST_ERRORS
from tests.sim.incarnation import Incarnation
from tests.sim.model import is_unknown

COUNTER_KEY = AttributeKey(b"shared counter")


class Sealer(Actor):
    """Seals a volatile segment now and then; twice is fine."""

    async def step(self) -> None:
        if self.random.random() < 0.3:
            await self.client.seal(self.name)
        await self.client.info(self.name)


class Truncator(Actor):
    """Cuts off some of what it knows is there."""

    async def step(self) -> None:
        lives = self.stage.model.alive(self.name)
        if not lives:
            return
        life = lives[-1]
        if self.random.random() < 0.5 and life.length > life.start:
            far = self.random.random() ** 2
            offset = life.start + int((life.length - life.start) * far)
            if self.random.random() < 0.2:
                offset = self.random.randint(0, life.start)  # going back changes nothing
            await self.client.truncate(self.name, offset)
        await self.client.info(self.name)


class Deleter(Actor):
    """Deletes and creates the same volatile name in a loop (H20, H81)."""

    async def step(self) -> None:
        if self.stage.model.alive(self.name) and self.random.random() < 0.4:
            await self.client.delete(self.name)
            if self.random.random() < 0.5:
                return
        try:
            await self.client.create(self.name)
        except SegmentExistsError:
            return


class Merger(Actor):
    """Makes transactions, fills and seals them, merges them, one or several at once; asks again after a break (H74)."""

    def __init__(self, stage: Stage, name: str, number: int) -> None:
        super().__init__(stage, name)
        self._number = number
        self._round = 0
        self._sources: list[Incarnation] = []

    async def step(self) -> None:
        target = await self.open(self.name)
        await target.close()
        if not self._sources:
            for part in range(self.random.choice((1, 1, 3))):
                self._sources.append(await self._make_source(part))
        for source in self._sources:
            if not source.sealed:
                await self._fill(source)
                return
        try:
            seals = self.random.random() < 0.5
            await self.client.merge(target.life, self._sources, seal_sources=seals)
        except SegmentNotFoundError as error:
            # Whatever became of earlier attempts: one that merged it is remembered (H74).
            raise ModelBreachError(f"{self._sources} lost before their merge: {error}") from error
        names = [source.name for source in self._sources]
        self._sources.clear()
        if self.random.random() < 0.3:
            await self.client.forget_merged(self.name, names)
        if self.random.random() < 0.5:
            self._round += 1

    def owes(self) -> bool:
        return bool(self._sources)

    async def _make_source(self, part: int) -> Incarnation:
        name = f"{self.name}#transaction.{self._number:016x}{self._round:08x}{part:08x}"
        try:
            life, _ = await self.client.create(name)
        except SegmentExistsError:
            segment = await self.client.open(name)
            await segment.close()
            life = segment.life
        return life

    async def _fill(self, source: Incarnation) -> None:
        segment = await self.client.open(source.name)
        try:
            if segment.life is not source:
                raise ModelBreachError(f"{source} became {segment.life} by itself")
            for _ in range(self.random.randint(0, 3)):
                append = self.stage.model.append_begins(
                    source, connection=segment.connection, length=self.append_length()
                )
                await segment.outcome(append, segment.append(append))
        except SegmentSealedError:
            pass
        finally:
            await segment.close()
        await self.client.seal(source.name)


class AttributeKeeper(Actor):
    """Sets an attribute of its own, adds one to a shared counter, and looks at both."""

    def __init__(self, stage: Stage, name: str, number: int) -> None:
        super().__init__(stage, name)
        prefix = CORE_ATTRIBUTE_PREFIX if number % 2 else b"register"
        self._key = AttributeKey(prefix + (1000 + number).to_bytes(8, "big"))
        self._value = 0

    async def step(self) -> None:
        segment = await self.open(self.name)
        await segment.close()
        life = segment.life
        register = life.registers.setdefault(self._key, Register())
        counter = life.counters.setdefault(COUNTER_KEY, Counter())
        what = self.random.random()
        if what < 0.3:
            await self._set(register)
        elif what < 0.6:
            await self._count(counter)
        else:
            await self.client.attributes(life, [self._key, COUNTER_KEY])

    async def _set(self, register: Register) -> None:
        self._value += 1
        write = register.write(self._value)
        try:
            await self.client.update_attributes(
                self.name, [AttributeUpdate(self._key, self._value)]
            )
        except REQUEST_ERRORS as error:
            write.outcome = Outcome.UNKNOWN if is_unknown(error) else Outcome.REFUSED
            raise
        register.acked(write)

    async def _count(self, counter: Counter) -> None:
        counter.maybe += 1
        update = AttributeUpdate(COUNTER_KEY, 1, AttributeUpdateType.ACCUMULATE)
        try:
            await self.client.update_attributes(self.name, [update])
        except REQUEST_ERRORS as error:
            if not is_unknown(error):
                counter.maybe -= 1
            raise
        counter.maybe -= 1
        counter.acked += 1


class Flusher(Actor):
    """Asks for a flush and believes nothing: what was acked before must be in Tier 2 afterwards."""

    async def step(self) -> None:
        segment = await self.open(self.name)
        try:
            due = segment.life.length
            info = await self.client.flush_and_look(self.name)
            if info is not None and info.storage_length < min(due, info.length):
                raise ModelBreachError(f"{segment.life}: flushed, yet {info} is below {due}")
        finally:
            await segment.close()


class SmallCrowd(Actor):
    """Many segments of a few bytes, so that something must always be evicted; looks old ones up again (H27, H55)."""

    def __init__(self, stage: Stage, name: str, number: int) -> None:
        super().__init__(stage, name)
        self._number = number
        self._made: list[str] = []

    async def step(self) -> None:
        if not self._made or self.random.random() < 0.5:
            name = f"small/{self._number}/{len(self._made)}"
            self._made.append(name)
            try:
                await self.client.create(name)
            except SegmentExistsError as error:
                raise ModelBreachError(f"{name} exists before its first create") from error
            return
        name = self.random.choice(self._made)
        segment = await self.client.open(name)
        try:
            append = self.stage.model.append_begins(
                segment.life, connection=segment.connection, length=5
            )
            await segment.outcome(append, segment.append(append))
            await segment.read(segment.life.start, 100)
        finally:
            await segment.close()
