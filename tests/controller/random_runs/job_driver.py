"""Drivers of jobs that write exactly once: tasks stage, the driver commits all stages as one version, and replays."""

from enum import Enum

from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.routing_hash import event_position
from segmentstore.codec.stream_names import transaction_segment
from segmentstore.contracts.errors import SegmentStoreError
from tests.controller.random_runs.event_sender import EventSender
from tests.controller.random_runs.ledger import KnownEvent, KnownTransaction
from tests.controller.random_runs.random_world import REQUEST_ERRORS, says_nothing
from tests.controller.random_runs.staged_versions import KnownAttempt, KnownVersion
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import Actor, Theatre

_STAGES_MAX = 3
_VERSIONS_MAX = 4
_ID_BYTES = 16


class JobDriver(Actor):
    """One application after the other, each for one incarnation of a stream."""

    def __init__(self, theatre: Theatre, stream: str, number: int) -> None:
        super().__init__(theatre, f"job {number} of {stream}")
        self._stream = stream
        self._count = 0
        self._job: _Job | None = None

    async def step(self) -> None:
        if self._job is None:
            model = self.theatre.models[self._stream]
            if model.is_open and not self.theatre.calm:
                self._count += 1
                self._job = _Job(self, model, f"{self.name} {self._count}")
            return
        if not await self._job.step():
            self._job = None

    def owes(self) -> bool:
        return self._job is not None


class _After(Enum):
    """What a driver does that was not answered."""

    ASK_AGAIN = 0
    STAGE_AGAIN = 1
    GIVE_UP = 2


class _Job:
    """One application."""

    def __init__(self, actor: JobDriver, model: StreamModel, application: str) -> None:
        self._actor = actor
        self._world = actor.world
        self._random = actor.random
        self._model = model
        self._application = application
        self._is_forgettable = actor.random.random() < 0.2
        self._number = -1
        self._version: KnownVersion | None = None
        self._attempt: KnownAttempt | None = None
        self._stages_wanted = 0
        self._stage: _StageWriter | None = None
        self._held_until = 0.0
        """Before it no lease of the attempt can have ended."""
        self._highest = -1
        """The last version that is known to be committed."""

    async def step(self) -> bool:
        """Whether there is more to do."""
        if self._model.stage.value >= Stage.DELETING.value:
            return False
        if self._attempt is None:
            return await self._begin()
        if self._stage is not None:
            if not await self._stage.write():
                self._stage = None
            return True
        if len(self._attempt.stages) < self._stages_wanted:
            return await self._begin_stage(self._attempt)
        return await self._commit(self._attempt)

    async def _begin(self) -> bool:
        """The next version, or stages for one that may be there."""
        replays = self._version is not None and self._random.random() < 0.4
        if not self._model.is_open or (self._actor.theatre.calm and not replays):
            return False
        if not replays or self._is_forgettable:
            if self._number + 1 == _VERSIONS_MAX or (self._is_forgettable and self._version):
                return False
            self._number += 1
            self._version = KnownVersion(self._application, self._number)
            self._model.versions.append(self._version)
        if self._random.random() < 0.3:
            await self._check_last_version()
        self._new_attempt()
        return True

    def _new_attempt(self) -> None:
        assert self._version is not None, "an attempt of no version"
        self._attempt = self._version.new_attempt()
        self._stages_wanted = self._random.randint(0, _STAGES_MAX)
        self._held_until = float("inf")

    async def _begin_stage(self, attempt: KnownAttempt) -> bool:
        model, version = self._model, attempt.version
        lease_ms = self._random.choice((1_000, 20_000, 60_000))
        request = own_api.BeginStageRequest(
            scope=model.scope, stream=model.stream, lease_ms=lease_ms
        )
        began = self._world.loop.time()
        try:
            begun = await self._world.call("beginStage", request, own_api.BeginStageResponse)
        except SegmentStoreError as error:
            if says_nothing(error) or model.is_open:
                raise
            return False
        if model.stage.value >= Stage.DELETING.value:
            return False
        transaction_id = int.from_bytes(begun.transaction_id, "big")
        stage = KnownTransaction(transaction_id, f"{model.scope}/{model.stream}")
        self._actor.trace("stage", stage, "of", version, "attempt", attempt.number)
        for each in begun.ranges:
            model.ranges.setdefault(each.segment_id, (each.low, each.high))
        model.transactions.append(stage)
        self._actor.ledger.transactions.append(stage)
        if self._random.random() < 0.9:
            # Else a task that failed behind its last write: nobody hands its stage to the driver.
            version.add_stage(attempt, stage)
            self._held_until = min(self._held_until, began + lease_ms / 1000)
        pieces = [(each.low, each.high, each.segment_id) for each in begun.ranges]
        name = f"{self._application} {len(self._actor.ledger.transactions)}"
        self._stage = _StageWriter(self._actor, model, stage, pieces, name)
        return True

    async def _commit(self, attempt: KnownAttempt) -> bool:
        model, version = self._model, attempt.version
        asked_before = attempt.asked
        version.ask(attempt)
        request = own_api.CommitStagesRequest(
            scope=model.scope,
            stream=model.stream,
            application_id=self._application,
            version=version.version,
            transaction_ids=[
                each.transaction_id.to_bytes(_ID_BYTES, "big") for each in attempt.stages
            ],
            forgettable=self._is_forgettable,
        )
        try:
            answer = await self._world.call("commitStages", request, own_api.CommitStagesResponse)
        except REQUEST_ERRORS as error:
            return await self._judge_refusal(attempt, error, asked_before=asked_before)
        self._actor.trace(version, attempt.number, answer.duplicate, answer.completed)
        if model.stage.value >= Stage.DELETING.value:
            return False
        if not (self._is_forgettable and asked_before):
            version.answer(attempt, duplicate=answer.duplicate, asked_before=asked_before)
        self._highest = max(self._highest, version.version)
        if not answer.completed:
            await self._actor.be_patient()
            return True
        self._attempt = None
        if version.committed is not None:
            for stage in version.committed.stages:
                await self._actor.theatre.reading.look_for(model, stage)
        return True

    async def _judge_refusal(
        self, attempt: KnownAttempt, error: Exception, *, asked_before: bool
    ) -> bool:
        model, version = self._model, attempt.version
        if not says_nothing(error):
            held = self._held_until > self._world.loop.time()
            if model.is_open and held and not (self._is_forgettable and asked_before):
                raise self._actor.breach(f"{version} {attempt.number} is refused") from error
            if model.is_open and not self._is_forgettable:
                version.refuse(attempt)
            # A task whose stage is gone fails its job; a sealed stream ends it.
            self._attempt = None
            return model.is_open and not self._is_forgettable
        self._actor.trace(version, attempt.number, "no answer", type(error).__name__)
        match self._random.choices(list(_After), (6, 3, 1))[0]:
            case _After.STAGE_AGAIN if model.is_open and not self._is_forgettable:
                self._new_attempt()
            case _After.GIVE_UP:
                return False
        await self._actor.be_patient()
        return True

    async def _check_last_version(self) -> None:
        """Not older than what was answered, not newer than what was asked for."""
        model, lowest = self._model, self._highest
        request = own_api.LastVersionRequest(
            scope=model.scope, stream=model.stream, application_id=self._application
        )
        answer = await self._world.call("lastVersion", request, own_api.LastVersionResponse)
        last = answer.version if answer.known else -1
        if self._is_forgettable or model.stage.value >= Stage.DELETING.value:
            return
        if not lowest <= last <= self._number:
            raise self._actor.breach(
                f"{model} {self._application} is at {last}, not in {lowest}..{self._number}"
            )


class _StageWriter:
    """A task that writes one stage."""

    def __init__(
        self,
        actor: Actor,
        model: StreamModel,
        stage: KnownTransaction,
        pieces: list[tuple[float, float, int]],
        name: str,
    ) -> None:
        self._actor = actor
        self._model = model
        self._stage = stage
        self._pieces = pieces
        self._sender = EventSender(actor.world, actor.random)
        self._pending: list[KnownEvent] = []
        settings = actor.theatre.settings
        for number in range(actor.random.randint(0, settings.burst_max + 1)):
            length = actor.random.randint(8, max(9, settings.event_bytes_max))
            key = f"{name} key {number % 3}"
            self._pending.append(actor.ledger.new_event(key, number, length, stage))

    async def write(self) -> bool:
        """Whether there is more to do."""
        groups: dict[int, list[KnownEvent]] = {}
        for event in self._pending:
            groups.setdefault(self._parent_of(event), []).append(event)
        for parent, group in groups.items():
            name = transaction_segment(self._model.name(parent), self._stage.transaction_id)
            sent = await self._sender.send(name, group)
            if sent.gone or sent.sealed:
                # Its lease has ended, or the stream: the commit will say so.
                return False
            if sent.rest:
                await self._actor.be_patient()
        self._pending = [event for event in self._pending if event.acked_in is None]
        return bool(self._pending)

    def _parent_of(self, event: KnownEvent) -> int:
        position = event_position(event.key)
        for low, high, segment_id in self._pieces:
            if low <= position < high:
                return segment_id
        raise self._actor.breach(f"{self._stage} has no segment for {event}")
