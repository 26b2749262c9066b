"""What a writer says of an event is true, in random lives of a stream whose answers are lost.

Blocks and merges are carried out or not and their connections break; set-ups are refused for a while; segments are
scaled, and taken away behind the scale; in the end some streams are sealed. Of every event:

- at most one is stored;
- it is stored if the writer said so;
- it is not stored if the writer gave another reason than that the outcome is unknown.
"""

import asyncio
from collections import Counter
from random import Random

import pytest

from segmentstore.client.errors import DeadlineExceededError, OutcomeUnknownError
from segmentstore.client.event_writer import EventWriter
from segmentstore.client.settings import ClientSettings
from segmentstore.codec.wire_protocol.appends import AppendBlockEnd, SetupAppend
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import WrongHost
from segmentstore.codec.wire_protocol.segments import MergeSegments
from segmentstore.contracts.errors import SegmentStoreError
from tests.client.fake_store import FakeStore
from tests.client.test_event_writer import Stream

_SETTINGS = ClientSettings(
    retry_seconds_first=0.001,
    retry_seconds_max=0.004,
    append_seconds=0.25,
    acknowledge_seconds=0.1,
    event_bytes_max=100,
    block_bytes_max=60,
    blocks_in_flight_max=3,
)
_LARGE = b"x" * 300
_STEPS = 40


class Life:
    """Of one stream and one writer, by a seed."""

    def __init__(self, fake: FakeStore, seed: int) -> None:
        self.random = Random(seed)
        self.fake = fake
        self.stream = Stream(fake, self.random.choice([1, 2, 3]))
        self.told: dict[bytes, str] = {}
        self.buried: list[bytes] = []
        """Events of segments that were taken away."""
        self._losing = 0.0
        self._is_refusing = False
        fake.on_append = self._on_append
        fake.on_request = self._on_request

    async def run(self) -> None:
        writer = self.stream.writer(_SETTINGS)
        await writer.open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._small_events(writer, tasks))
            tasks.create_task(self._large_events(writer))
            tasks.create_task(self._trouble())
        # What is outstanding ends by itself: acknowledged, or given up with a reason.
        await writer.close()

    def check(self) -> None:
        """O(events)."""
        live = [
            event
            for name in self.fake.segments
            if "#transient" not in name
            for event in self.fake.events(name)
        ]
        stored = Counter(self.buried + live)
        assert not [event[:10] for event, times in stored.items() if times > 1], "stored twice"
        for event, told in self.told.items():
            if told == "stored":
                assert event in stored, f"said to be stored and is not {event[:10]!r}"
            elif told != "unknown":
                assert event not in stored, (
                    f"said to have failed and is stored {event[:10]!r} {told}"
                )

    async def _small_events(self, writer: EventWriter, tasks: asyncio.TaskGroup) -> None:
        for number in range(_STEPS):
            event = b"small %d" % number
            try:
                acknowledged = writer.write_nowait(event, key=f"{self.random.randrange(5)}")
            except SegmentStoreError as error:
                # The writer's failure, which is of events before this one.
                self.told[event] = f"not taken {error}"
                continue
            tasks.create_task(self._told(event, acknowledged))
            await self._pause()

    async def _told(self, event: bytes, acknowledged: "asyncio.Future[None]") -> None:
        try:
            await acknowledged
        except (OutcomeUnknownError, DeadlineExceededError):
            self.told[event] = "unknown"
        except SegmentStoreError as error:
            self.told[event] = repr(error)
        else:
            self.told[event] = "stored"

    async def _large_events(self, writer: EventWriter) -> None:
        for number in range(4):
            event = b"large %d" % number + _LARGE
            try:
                await writer.write(event, key=f"{self.random.randrange(5)}")
            except (OutcomeUnknownError, DeadlineExceededError):
                self.told[event] = "unknown"
            except SegmentStoreError as error:
                self.told[event] = repr(error)
            else:
                self.told[event] = "stored"
            await self._pause()

    async def _trouble(self) -> None:
        for _ in range(_STEPS):
            self._losing = self.random.choice([0, 0, 0.2, 0.5])
            self._is_refusing = self.random.random() < 0.3
            action = self.random.choice([self._scale, self._take_away, None, None, None])
            if action is not None:
                action()
            if self.random.random() < 0.2:
                self.fake.drop_connections()
            await self._pause()
        if self.random.random() < 0.3:
            for each in self.stream.ranges:
                self.fake.seal(self.stream.name(each.segment_id))
            await self._pause()
        self._losing, self._is_refusing = 0.0, False

    def _scale(self) -> None:
        sealed = [each.segment_id for each in self.stream.ranges]
        count = self.random.choice([1, 2, 3])
        self.stream.replace(sealed, [number / count for number in range(count + 1)])

    def _take_away(self) -> None:
        for segment_id in self.stream.following:
            name = self.stream.name(segment_id)
            if name in self.fake.segments and self.random.random() < 0.5:
                self.buried += self.fake.events(name)
                del self.fake.segments[name]

    def _on_append(self, _: AppendBlockEnd) -> str:
        if self.random.random() < self._losing:
            return self.random.choice(["drop before", "drop after"])
        return "store and answer"

    def _on_request(self, command: Command) -> Command | str | None:
        if isinstance(command, SetupAppend) and "#transient" not in command.segment:
            return WrongHost(command.request_id, command.segment, "") if self._is_refusing else None
        if isinstance(command, MergeSegments) and self.random.random() < self._losing:
            return self.random.choice(["drop before", "drop after"])
        return None

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.004]))


@pytest.mark.parametrize("seed", range(60))
async def test_what_is_said_of_an_event_is_true(seed: int) -> None:
    async with FakeStore().serving() as fake, asyncio.timeout(60):
        life = Life(fake, seed)
        await life.run()
        life.check()
        assert fake.complaints == []
