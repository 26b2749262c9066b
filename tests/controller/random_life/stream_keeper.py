"""Keepers of streams, each alone with the life and death of one name."""

import asyncio
from dataclasses import dataclass

from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_life.keeping import KnownPolicy, Measure
from tests.controller.random_life.life_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_life.settings import Theme
from tests.controller.random_life.stream_life import Stage, StreamLife
from tests.controller.random_life.theatre import SCOPE, Actor, Theatre

TAGS = ("t1", "t2")


@dataclass(frozen=True, slots=True)
class Verb:
    """A call of the keeper, and what its answers mean."""

    name: str
    answer: type[Message]
    done: tuple[str, ...]
    done_before: tuple[str, ...]
    """Fine only if an earlier attempt was not answered."""


CREATE = Verb("createStream", api.CreateStreamStatus, ("SUCCESS",), ("STREAM_EXISTS",))
SEAL = Verb("sealStream", api.UpdateStreamStatus, ("SUCCESS",), ())
DELETE = Verb("deleteStream", api.DeleteStreamStatus, ("SUCCESS",), ("STREAM_NOT_FOUND",))
UPDATE = Verb("updateStream", api.StreamConfig, ("SUCCESS",), ())


class StreamKeeper(Actor):
    """Creates its stream, lets it live for a while, seals it, deletes it, and begins anew."""

    def __init__(self, theatre: Theatre, stream: str) -> None:
        super().__init__(theatre, f"keeper of {stream}")
        self._stream = stream
        self._ends_at = 0.0
        self.tags: dict[str, bool] = {}
        self.theatre.lives[stream] = StreamLife(self.ledger, SCOPE, stream, 0)

    @property
    def life(self) -> StreamLife:
        return self.theatre.lives[self._stream]

    async def step(self) -> None:
        life = self.life
        now = self.world.loop.time()
        match life.stage:
            case Stage.ABSENT | Stage.CREATING:
                await self._create(life)
            case Stage.ACTIVE if now < self._ends_at or self.theatre.calm:
                await self._look(life)
            case Stage.ACTIVE | Stage.SEALING:
                await self.seal(life)
            case Stage.SEALED if self.random.random() < 0.3 and not self.theatre.calm:
                await self._look(life)
            case Stage.SEALED | Stage.DELETING:
                await self.delete(life)
            case Stage.DELETED:
                await self._check_absent(life)
                self.theatre.past.append(life)
                self.theatre.lives[self._stream] = StreamLife(
                    self.ledger, SCOPE, self._stream, life.incarnation + 1
                )

    def owes(self) -> bool:
        return self.life.stage in (Stage.CREATING, Stage.SEALING, Stage.DELETING, Stage.DELETED)

    async def _create(self, life: StreamLife) -> None:
        life.stage = Stage.CREATING
        scaling = api.ScalingPolicy(minNumSegments=self.random.choice((1, 1, 2, 4)))
        if self.random.random() < 0.3:
            scaling.scaleType = api.ScalingPolicy.ScalingPolicyType.BY_RATE_IN_EVENTS_PER_SEC
            scaling.targetRate, scaling.scaleFactor = 5, 2
        config = api.StreamConfig(streamInfo=life.info, scalingPolicy=scaling)
        config.tags.tag.extend(self.random.sample(TAGS, self.random.randint(0, 2)))
        if self.theatre.settings.retains and self.random.random() < 0.9:
            self._draw_policy(life, config)
        await self._insist(CREATE, config)
        life.stage = Stage.ACTIVE
        mean = self.theatre.settings.life_seconds_mean
        self._ends_at = self.world.loop.time() + self.random.expovariate(1 / mean)

    async def seal(self, life: StreamLife) -> None:
        life.stage = Stage.SEALING
        await self._insist(SEAL, life.info)
        life.sealed_tick = self.ledger.tick()
        life.stage = Stage.SEALED

    async def delete(self, life: StreamLife) -> None:
        life.stage = Stage.DELETING
        await self._insist(DELETE, life.info)
        life.stage = Stage.DELETED

    async def come_to_an_end(self) -> None:
        """Nothing is left of it afterwards."""
        life = self.life
        if life.stage is Stage.ACTIVE:
            await self.seal(life)
        if life.stage is Stage.SEALED:
            await self.delete(life)

    async def _insist(self, verb: Verb, request: Message) -> None:
        """Until it is answered, now and then by two at once."""
        unsure = False
        while True:
            calls = [self.world.call(verb.name, request, verb.answer)]
            if self.random.random() < 0.1:
                calls.append(self.world.call(verb.name, request, verb.answer))
                unsure = True
            done = False
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, REQUEST_ERRORS) and says_nothing(outcome):
                    unsure = True
                    self.trace(verb.name, "no answer", type(outcome).__name__, outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    status = _status_name(outcome)
                    self.trace(verb.name, status)
                    if status not in verb.done and not (unsure and status in verb.done_before):
                        raise self.breach(f"{self.life} {verb.name}: {status}")
                    done = True
            if done:
                return
            await self.be_patient()

    async def _look(self, life: StreamLife) -> None:
        """What it knows must be what is told."""
        exists = await self.world.call("checkStreamExists", life.info, api.ExistsResponse)
        if not exists.exists:
            raise self.breach(f"{life} is lost")
        if life.is_open and self.random.random() < 0.2:
            config = await self.world.call("getStreamConfiguration", life.info, api.StreamConfig)
            del config.tags.tag[:]
            config.tags.tag.extend(self.random.sample(TAGS, self.random.randint(0, 2)))
            if self.theatre.settings.retains and self.random.random() < 0.1:
                self._draw_policy(life, config)
            answer = await self.world.call("updateStream", config, api.UpdateStreamStatus)
            if answer.status != api.UpdateStreamStatus.Status.SUCCESS:
                raise self.breach(f"{life} cannot be updated {answer}")
            told = await self.world.call("getStreamConfiguration", life.info, api.StreamConfig)
            if sorted(told.tags.tag) != sorted(config.tags.tag):
                raise self.breach(f"{life} has other tags than were set {told} {config}")

    def _draw_policy(self, life: StreamLife, config: api.StreamConfig) -> None:
        measure = self.random.choice((Measure.TIME, Measure.SIZE))
        keep = self.random.choice((100, 1000) if measure is Measure.TIME else (0, 50, 400))
        policy = KnownPolicy(measure, keep, self.random.choice((0, 0, 3 * keep)))
        if self.theatre.settings.theme is Theme.RESETS:
            # So that a group is often reset while what it has consumed is still kept.
            keep = self.random.choice((300, 600) if measure is Measure.TIME else (50, 200))
            policy = KnownPolicy(measure, keep, 0)
        life.keeping.policies.append(policy)
        config.retentionPolicy.CopyFrom(policy.message)

    async def _check_absent(self, life: StreamLife) -> None:
        """Nothing of it is left: not its name, and not its segments."""
        exists = await self.world.call("checkStreamExists", life.info, api.ExistsResponse)
        if exists.exists:
            raise self.breach(f"{life} is still there")
        prefix = f"{life.scope}/{life.stream}/"
        left = await self.world.ask(lambda host: host.segments.list_segments(prefix))
        if left:
            raise self.breach(f"{life} left segments {[each.name for each in left]}")


def _status_name(answer: Message) -> str:
    field = type(answer).DESCRIPTOR.fields_by_name["status"]
    assert field.enum_type is not None, f"no status in {answer}"
    number = next((value for each, value in answer.ListFields() if each.name == "status"), 0)
    return str(field.enum_type.values_by_number[number].name)
