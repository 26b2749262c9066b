"""Tells the store how far a query came, so that retention by consumption keeps what it has not read.

The query is a reader group to the store: a subscriber of its streams, without readers. Its cut is what Spark has
committed: batches behind it will not be asked for again.

Invariants:

- Advisory: whatever goes wrong is logged, and the query goes on. Nothing waits longer than `_ANSWER_SECONDS` a call.
- The group is made with the first position and from then on found by its name; streams that the query joins later are
  added to it. One that others made is used as it is, and never changed.
- A cut that the store does not take is no error: after a restart from an older checkpoint it lies behind the known one.
"""

import logging
from collections.abc import Mapping
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from segmentstore.client.controller_channel import ControllerChannel, status_of
from segmentstore.client.settings import ClientSettings
from segmentstore.client.store import connect_controller
from segmentstore.codec.controller_api import controller_pb2 as messages
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.spark.service_connection import ServiceAddress, tls_of
from segmentstore.spark.streams.segment_graph import Cut

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS: Final = 5.0


class ProgressPublisher:
    """One query's group."""

    def __init__(self, *, channel: ControllerChannel, scope: str, group: str) -> None:
        self._channel = channel
        self._scope = scope
        self._group = group
        # Derived from the name, so that a query that starts again knows its own group from that of another client.
        self._group_id = str(uuid5(NAMESPACE_URL, f"segmentstore-spark-query:{scope}/{group}"))
        self._config: messages.ReaderGroupConfiguration | None = None

    @classmethod
    def at(cls, where: ServiceAddress, *, scope: str, group: str) -> "ProgressPublisher":
        """Over a connection of its own."""
        settings = ClientSettings(request_seconds=_ANSWER_SECONDS)
        channel = connect_controller(where.controller, settings=settings, tls=tls_of(where))
        return cls(channel=channel, scope=scope, group=group)

    @property
    def name(self) -> str:
        """`scope/group`."""
        return f"{self._scope}/{self._group}"

    async def close(self) -> None:
        await self._channel.close()

    async def publish(self, position: Mapping[str, Cut]) -> bool:
        """The query has consumed its streams up to there; whether the store knows it now. Never raises its errors."""
        try:
            config = await self._known(position)
            if config is None:
                return False
            taken = [await self._update(config, name, cut) for name, cut in position.items() if cut]
        except SegmentStoreError as error:
            _LOG.warning("progress is not published group=%s why=%s", self.name, error)
            return False
        return all(taken)

    async def _known(self, position: Mapping[str, Cut]) -> messages.ReaderGroupConfiguration | None:
        """The group's configuration; of our own group with all streams of the position in it."""
        if self._config is None:
            self._config = await self._created(position)
        config = self._config
        if config is None or config.readerGroupId != self._group_id:
            return config
        named = {
            f"{cut.streamInfo.scope}/{cut.streamInfo.stream}" for cut in config.startingStreamCuts
        }
        joined = {name: cut for name, cut in position.items() if cut and name not in named}
        if joined:
            self._config = await self._joined(config, joined)
        return self._config

    async def _created(
        self, position: Mapping[str, Cut]
    ) -> messages.ReaderGroupConfiguration | None:
        answer = await self._channel.ask(
            "createReaderGroup",
            messages.ReaderGroupConfiguration(
                scope=self._scope,
                readerGroupName=self._group,
                readerGroupId=self._group_id,
                retentionType=messages.ReaderGroupConfiguration.RetentionType.MANUAL,
                startingStreamCuts=[_message(name, cut) for name, cut in position.items()],
            ),
            messages.CreateReaderGroupResponse,
            what="reader group",
            name=self.name,
            checked=False,
        )
        if answer.status == messages.CreateReaderGroupResponse.SUCCESS:
            return answer.config
        _LOG.warning("no group for progress group=%s why=%s", self.name, status_of(answer))
        return None

    async def _joined(
        self, config: messages.ReaderGroupConfiguration, streams: Mapping[str, Cut]
    ) -> messages.ReaderGroupConfiguration | None:
        """The group with streams that appeared since it was made."""
        wanted = messages.ReaderGroupConfiguration()
        wanted.CopyFrom(config)
        wanted.startingStreamCuts.extend(_message(name, cut) for name, cut in streams.items())
        answer = await self._channel.ask(
            "updateReaderGroup",
            wanted,
            messages.UpdateReaderGroupResponse,
            what="reader group",
            name=self.name,
            checked=False,
        )
        if answer.status == messages.UpdateReaderGroupResponse.SUCCESS:
            wanted.generation = answer.generation
            return wanted
        _LOG.warning("streams do not join group=%s why=%s", self.name, status_of(answer))
        return None

    async def _update(
        self, config: messages.ReaderGroupConfiguration, stream: str, cut: Cut
    ) -> bool:
        answer = await self._channel.ask(
            "updateSubscriberStreamCut",
            messages.SubscriberStreamCut(
                subscriber=self.name,
                generation=config.generation,
                readerGroupId=config.readerGroupId,
                streamCut=_message(stream, cut),
            ),
            messages.UpdateSubscriberStatus,
            what="stream",
            name=stream,
            checked=False,
        )
        status = messages.UpdateSubscriberStatus
        if answer.status == status.SUCCESS:
            return True
        if answer.status in (status.GENERATION_MISMATCH, status.SUBSCRIBER_NOT_FOUND):
            # Another client changed the group, or made it without retention by consumption: look at it again next time.
            self._config = None
        _LOG.warning(
            "progress is not taken group=%s stream=%s why=%s", self.name, stream, status_of(answer)
        )
        return False


def _message(stream: str, cut: Cut) -> messages.StreamCut:
    scope, _, name = stream.partition("/")
    return messages.StreamCut(
        streamInfo=messages.StreamInfo(scope=scope, stream=name), cut=dict(cut)
    )
