"""Keepers of streams, each alone decides when one name comes and goes."""

import asyncio
from dataclasses import dataclass

from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_runs.keeping import KnownPolicy, Measure
from tests.controller.random_runs.random_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_runs.settings import Theme
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import SCOPE, Actor, Theatre

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
        self.theatre.models[stream] = StreamModel(self.ledger, SCOPE, stream, 0)

    @property
    def model(self) -> StreamModel:
        return self.theatre.models[self._stream]

    async def step(self) -> None:
        model = self.model
        now = self.world.loop.time()
        match model.stage:
            case Stage.ABSENT | Stage.CREATING:
                await self._create(model)
            case Stage.ACTIVE if now < self._ends_at or self.theatre.calm:
                await self._look(model)
            case Stage.ACTIVE | Stage.SEALING:
                await self.seal(model)
            case Stage.SEALED if self.random.random() < 0.3 and not self.theatre.calm:
                await self._look(model)
            case Stage.SEALED | Stage.DELETING:
                await self.delete(model)
            case Stage.DELETED:
                await self._check_absent(model)
                self.theatre.past.append(model)
                self.theatre.models[self._stream] = StreamModel(
                    self.ledger, SCOPE, self._stream, model.incarnation + 1
                )

    def owes(self) -> bool:
        return self.model.stage in (Stage.CREATING, Stage.SEALING, Stage.DELETING, Stage.DELETED)

    async def _create(self, model: StreamModel) -> None:
        model.stage = Stage.CREATING
        scaling = api.ScalingPolicy(minNumSegments=self.random.choice((1, 1, 2, 4)))
        if self.random.random() < 0.3:
            scaling.scaleType = api.ScalingPolicy.ScalingPolicyType.BY_RATE_IN_EVENTS_PER_SEC
            scaling.targetRate, scaling.scaleFactor = 5, 2
        config = api.StreamConfig(streamInfo=model.info, scalingPolicy=scaling)
        config.tags.tag.extend(self.random.sample(TAGS, self.random.randint(0, 2)))
        if self.theatre.settings.retains and self.random.random() < 0.9:
            self._draw_policy(model, config)
        await self._insist(CREATE, config)
        model.stage = Stage.ACTIVE
        mean = self.theatre.settings.life_seconds_mean
        self._ends_at = self.world.loop.time() + self.random.expovariate(1 / mean)

    async def seal(self, model: StreamModel) -> None:
        model.stage = Stage.SEALING
        await self._insist(SEAL, model.info)
        model.sealed_tick = self.ledger.tick()
        model.stage = Stage.SEALED

    async def delete(self, model: StreamModel) -> None:
        model.stage = Stage.DELETING
        await self._insist(DELETE, model.info)
        model.stage = Stage.DELETED

    async def come_to_an_end(self) -> None:
        """Nothing is left of it afterwards."""
        model = self.model
        if model.stage is Stage.ACTIVE:
            await self.seal(model)
        if model.stage is Stage.SEALED:
            await self.delete(model)

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
                        raise self.breach(f"{self.model} {verb.name}: {status}")
                    done = True
            if done:
                return
            await self.be_patient()

    async def _look(self, model: StreamModel) -> None:
        """What it knows must be what is told."""
        exists = await self.world.call("checkStreamExists", model.info, api.ExistsResponse)
        if not exists.exists:
            raise self.breach(f"{model} is lost")
        if model.is_open and self.random.random() < 0.2:
            config = await self.world.call("getStreamConfiguration", model.info, api.StreamConfig)
            del config.tags.tag[:]
            config.tags.tag.extend(self.random.sample(TAGS, self.random.randint(0, 2)))
            if self.theatre.settings.retains and self.random.random() < 0.1:
                self._draw_policy(model, config)
            answer = await self.world.call("updateStream", config, api.UpdateStreamStatus)
            if answer.status != api.UpdateStreamStatus.Status.SUCCESS:
                raise self.breach(f"{model} cannot be updated {answer}")
            told = await self.world.call("getStreamConfiguration", model.info, api.StreamConfig)
            if sorted(told.tags.tag) != sorted(config.tags.tag):
                raise self.breach(f"{model} has other tags than were set {told} {config}")

    def _draw_policy(self, model: StreamModel, config: api.StreamConfig) -> None:
        measure = self.random.choice((Measure.TIME, Measure.SIZE))
        keep = self.random.choice((100, 1000) if measure is Measure.TIME else (0, 50, 400))
        policy = KnownPolicy(measure, keep, self.random.choice((0, 0, 3 * keep)))
        if self.theatre.settings.theme is Theme.RESETS:
            # So that a group is often reset while what it has consumed is still kept.
            keep = self.random.choice((300, 600) if measure is Measure.TIME else (50, 200))
            policy = KnownPolicy(measure, keep, 0)
        model.keeping.policies.append(policy)
        config.retentionPolicy.CopyFrom(policy.message)

    async def _check_absent(self, model: StreamModel) -> None:
        """Nothing of it is left: not its name, and not its segments."""
        exists = await self.world.call("checkStreamExists", model.info, api.ExistsResponse)
        if exists.exists:
            raise self.breach(f"{model} is still there")
        prefix = f"{model.scope}/{model.stream}/"
        left = await self.world.ask(lambda host: host.segments.list_segments(prefix))
        if left:
            raise self.breach(f"{model} left segments {[each.name for each in left]}")


def _status_name(answer: Message) -> str:
    field = type(answer).DESCRIPTOR.fields_by_name["status"]
    assert field.enum_type is not None, f"no status in {answer}"
    number = next((value for each, value in answer.ListFields() if each.name == "status"), 0)
    return str(field.enum_type.values_by_number[number].name)
