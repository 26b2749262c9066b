"""Keepers of reader groups."""

import asyncio
from collections.abc import Sequence

from segmentstore.codec.controller_api import controller_pb2 as api
from tests.controller.random_runs.cuts import draw_cut
from tests.controller.random_runs.keeper import Keeper
from tests.controller.random_runs.keeping import Subscription
from tests.controller.random_runs.settings import Theme
from tests.controller.random_runs.stream_model import Stage, StreamModel
from tests.controller.random_runs.theatre import SCOPE, Theatre

_RETAINED_SECONDS_MAX = 0.6
"""How long a group that was reset waits for what retention does."""


class GroupKeeper(Keeper):
    """One reader group that subscribes to streams: created, changed, deleted."""

    def __init__(self, theatre: Theatre, group: str, streams: Sequence[str]) -> None:
        super().__init__(theatre, f"keeper of group {group}")
        self.group = group
        self._streams = streams
        self._resets = theatre.settings.theme is Theme.RESETS
        self._count = 0
        self._config = api.ReaderGroupConfiguration()
        self._asked = api.ReaderGroupConfiguration()
        self._unsure = False
        """An update was not answered: it may be done, now or later, unless another one is."""
        self._known: list[StreamModel] = []
        """Streams that were open when creation or update was asked for the first time. What is asked for again may have
        been done then: a stream that was created in between has heard nothing of it."""

    async def step(self) -> None:
        if self._stage in (Stage.ABSENT, Stage.CREATING):
            await self._create()
        elif self._stage is Stage.DELETING:
            await self.delete()
        elif self._resets:
            await self._read_and_reset()
        elif self.random.random() < 0.3:
            await self._consume()
        elif self.random.random() < 0.5:
            await self._look()
        elif self.random.random() < 0.7:
            await self._update()
        elif not self.theatre.calm:
            await self.delete()

    async def _read_and_reset(self) -> None:
        """Consume, begin anew before that is retained, and look what retention makes of it."""
        if not self._unsure and self.random.random() < 0.9:
            await self._consume(newest=self.random.random() < 0.7)
        await self._update()
        await self._note_heads()
        await asyncio.sleep(self.random.random() * _RETAINED_SECONDS_MAX)
        for model in self._open_streams():
            await self.theatre.reading.learn_head(model)

    async def _create(self) -> None:
        if self._stage is Stage.ABSENT:
            self._count += 1
            self._asked = self._draw(f"{self.group}-{self._count}", 0)
            self._known = self._open_streams()
        self._stage = Stage.CREATING
        self.theatre.groups.of(self.group).say(None, self.ledger.tick())
        answer = await self.world.call(
            "createReaderGroup", self._asked, api.CreateReaderGroupResponse
        )
        if answer.status != api.CreateReaderGroupResponse.Status.SUCCESS:
            raise self.breach(f"create: {answer}")
        self._check_config(answer.config, self._asked)
        self._config = self._asked
        self._stage = Stage.ACTIVE
        self._subscribed()
        self.theatre.groups.of(self.group).say(True, self.ledger.tick())

    async def _update(self) -> None:
        unsure = self._unsure
        if not unsure:
            self._asked = self._draw(self._config.readerGroupId, self._config.generation)
            self._unsure = True
            self._known = self._open_streams()
        asked = self._asked
        self._unsubscribed(asked)
        answer = await self.world.call("updateReaderGroup", asked, api.UpdateReaderGroupResponse)
        status = api.UpdateReaderGroupResponse.Status
        if unsure and answer.status == status.INVALID_CONFIG:
            # The one that was not answered is done.
            if answer.generation != self._config.generation + 1:
                raise self.breach(f"update: {answer} {self._config}")
            self._adopt(self._asked)
            self._began_anew()
            return
        if answer.status != status.SUCCESS or answer.generation != self._config.generation + 1:
            raise self.breach(f"update: {answer} {self._config}")
        self._adopt(asked)
        self._began_anew()

    def _adopt(self, config: api.ReaderGroupConfiguration) -> None:
        generation = self._config.generation + 1
        self._config = config
        self._config.generation = generation
        self._unsure = False

    async def _look(self) -> None:
        info = self._info()
        answer = await self.world.call("getReaderGroupConfig", info, api.ReaderGroupConfigResponse)
        if answer.status != api.ReaderGroupConfigResponse.Status.SUCCESS:
            raise self.breach(f"the group is lost: {answer}")
        if self._unsure and answer.config.generation == self._config.generation + 1:
            self._adopt(self._asked)
            self._began_anew()
        self._check_config(answer.config, self._config)
        if not self._unsure:
            await self._check_subscriptions()

    async def _check_subscriptions(self) -> None:
        for stream in self._streams:
            model = self.theatre.models[stream]
            if not model.is_open:
                continue
            answer = await self.world.call("listSubscribers", model.info, api.SubscribersResponse)
            subscribes = _subscribes(self._config, model)
            listed = f"{SCOPE}/{self.group}" in answer.subscribers
            if model.keeping.subscription is not None and not listed and model.is_open:
                raise self.breach(f"{model} has lost its subscriber {self._config}")
            # A stream that is created again has forgotten who subscribed to the one before.
            if listed and not subscribes and model is self.theatre.models[stream]:
                raise self.breach(
                    f"{model} has a subscriber that does not subscribe {self._config}"
                )

    # --- what it has read -------------------------------------------------------------------------

    def _open_streams(self) -> list[StreamModel]:
        return [model for model in self.theatre.models.values() if model.is_open]

    def _subscribed(self) -> None:
        """The configuration holds."""
        for model in self._known:
            if (
                model.is_open
                and model.keeping.subscription is None
                and _subscribes(self._config, model)
            ):
                model.keeping.subscription = Subscription(self.ledger.tick())

    def _began_anew(self) -> None:
        """A generation holds: of what those before it have consumed, it has consumed nothing."""
        for model in self._open_streams():
            if model.keeping.subscription is not None:
                model.keeping.subscription.begin_generation(_start_of(self._config, model))
        self._subscribed()

    async def _note_heads(self) -> None:
        """Where streams begin once no look of retention goes on that may not know of the generation."""
        generation = self._config.generation
        before = self.world.looks_of_retention()
        while before & self.world.looks_of_retention():
            await asyncio.sleep(0.002)
        for model in self._open_streams():
            held = model.keeping.subscription
            head = await self.theatre.reading.learn_head(model)
            if (
                head
                and held is not None
                and model.keeping.subscription is held
                and self._config.generation == generation
            ):
                held.reset_from = head

    def _unsubscribed(self, asked: api.ReaderGroupConfiguration | None) -> None:
        """A configuration, or None for the end, may hold from now on."""
        for model in self.theatre.models.values():
            if asked is None or not _subscribes(asked, model):
                model.keeping.subscription = None

    async def _consume(self, *, newest: bool = False) -> None:
        """Say how far it has read a stream."""
        models = [model for model in self._open_streams() if model.keeping.subscription is not None]
        if not models or self._unsure:
            return
        model = self.random.choice(models)
        held = model.keeping.subscription
        assert held is not None, f"not subscribed {model}"
        floor = held.consumed[-1] if held.consumed else model.told_head
        if newest:
            epoch = model.epochs[max(model.epochs)] if model.epochs else ()
            cut = {each: model.segment(each).parsed for each in epoch}
        else:
            cut = draw_cut(self.random, model, floor)
        if not cut:
            return
        held.consumed.append(cut)
        request = api.SubscriberStreamCut(
            subscriber=f"{SCOPE}/{self.group}",
            generation=self._config.generation,
            readerGroupId=self._config.readerGroupId,
            streamCut=api.StreamCut(streamInfo=model.info, cut=cut),
        )
        answer = await self.world.call(
            "updateSubscriberStreamCut", request, api.UpdateSubscriberStatus
        )
        status = api.UpdateSubscriberStatus.Status
        self.trace("consumed", model, cut, status.Name(answer.status))
        if answer.status == status.STREAM_CUT_NOT_VALID:
            held.consumed.remove(cut)
        elif answer.status != status.SUCCESS and model.is_open:
            raise self.breach(f"{model} has lost its subscriber: {answer}")

    async def delete(self) -> None:
        self._unsubscribed(None)
        self._stage = Stage.DELETING
        again = self.theatre.groups.of(self.group).there is None
        self.theatre.groups.of(self.group).say(None, self.ledger.tick())
        answer = await self.world.call(
            "deleteReaderGroup", self._info(), api.DeleteReaderGroupStatus
        )
        status = api.DeleteReaderGroupStatus.Status
        if answer.status != status.SUCCESS and not again:
            raise self.breach(f"delete: {answer}")
        told = await self.world.call(
            "getReaderGroupConfig", self._info(), api.ReaderGroupConfigResponse
        )
        if told.status != api.ReaderGroupConfigResponse.Status.RG_NOT_FOUND:
            raise self.breach(f"the group is still there {told}")
        self._stage = Stage.ABSENT
        self.theatre.groups.of(self.group).say(False, self.ledger.tick())

    def _info(self) -> api.ReaderGroupInfo:
        return api.ReaderGroupInfo(
            scope=SCOPE, readerGroup=self.group, readerGroupId=self._asked.readerGroupId
        )

    def _draw(self, group_id: str, generation: int) -> api.ReaderGroupConfiguration:
        config = api.ReaderGroupConfiguration(
            scope=SCOPE,
            readerGroupName=self.group,
            readerGroupId=group_id,
            generation=generation,
            groupRefreshTimeMillis=self.random.randrange(1000),
            retentionType=self.random.choice((1, 2) if self._resets else (0, 1, 2, 2)),
        )
        for stream in self._streams:
            if self._resets or self.random.random() < 0.7:
                cut = api.StreamCut(streamInfo=api.StreamInfo(scope=SCOPE, stream=stream))
                self._draw_start(self.theatre.models[stream], cut)
                config.startingStreamCuts.append(cut)
        return config

    def _draw_start(self, model: StreamModel, cut: api.StreamCut) -> None:
        """Where a group that is reset begins to read; at the head if it says nothing."""
        held = model.keeping.subscription
        if not self._resets or held is None or not model.is_open:
            return
        start = draw_cut(self.random, model, model.told_head)
        if start:
            held.consumed.append(start)
            cut.cut.update(start)

    def _check_config(
        self, told: api.ReaderGroupConfiguration, known: api.ReaderGroupConfiguration
    ) -> None:
        fields = ("readerGroupId", "generation", "groupRefreshTimeMillis", "retentionType")
        for each in fields:
            if getattr(told, each) != getattr(known, each):
                raise self.breach(f"the configuration differs in {each}: {told} {known}")


def _start_of(config: api.ReaderGroupConfiguration, model: StreamModel) -> dict[int, int]:
    for cut in config.startingStreamCuts:
        if cut.streamInfo.stream == model.stream:
            return dict(cut.cut)
    return {}


def _subscribes(config: api.ReaderGroupConfiguration, model: StreamModel) -> bool:
    return bool(config.retentionType) and any(
        cut.streamInfo.stream == model.stream for cut in config.startingStreamCuts
    )
