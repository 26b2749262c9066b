"""Whole lives of attributes, chosen at random, against all values that they ever had (H26, H32).

Goal: whatever sets an attribute (a creation, an update by itself, a merge, an append with or without bytes), the value
that counts is the last one, in every life, whatever is published, leaves memory or is fetched at that moment. An older
value is the worst there is: with it a retry that must be refused is stored a second time.

Method: a few lives of a container over the same two tiers; most end without a word. Every value is given once, so that
an older one is told from the right one. Updates name the value before them, and retries that name an older one must be
refused. Tier 2 is read with delay, so that listings and fetches overlap with flushes and with values that leave memory.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import BadAttributeUpdateError, SegmentExistsError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.object_store import VersionedObject
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.random_lives import ContainerLives
from tests.containers.test_segment_container import read_all
from tier2.object_stores.memory import MemoryObjectStore

NAMES = ["a", "b"]
SOURCE = "source"
KEYS = [AttributeKey(b"writer"), AttributeKey(b"w" * 16), AttributeKey(b"seldom")]


class SlowlyReadObjectStore(MemoryObjectStore):
    """Answers are from the moment of the question, and come later."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)

    async def get(self, key: str) -> VersionedObject:
        found = await super().get(key)
        await asyncio.sleep(self._random.choice([0, 0.0005, 0.003]))
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found = await super().get_range(key, start, length)
        await asyncio.sleep(self._random.choice([0, 0.0005, 0.003]))
        return found


@dataclass(slots=True)
class ModelSegment:
    """What a segment must be."""

    content: bytearray = field(default_factory=bytearray)
    values: dict[AttributeKey, list[int]] = field(default_factory=dict)
    """All that each attribute ever was; the last one counts."""

    @property
    def attributes(self) -> dict[AttributeKey, int]:
        return {key: values[-1] for key, values in self.values.items()}


class AttributeLives(ContainerLives):
    """The model, and one container after another that has to agree with it."""

    steps_max = 40

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tiers.object_store = SlowlyReadObjectStore(seed)
        self.model: dict[str, ModelSegment] = {}
        self.given = 0
        self.retries_refused = 0

    def settings(self) -> ContainerSettings:
        settings = self.corner_settings(
            active_segments=[4, 100],
            checkpoint_bytes=[300, 1 << 20],
            checkpoint_operations=[5, 1000],
        )
        return replace(settings, attribute_memory=self.small_attribute_memory([1, 700, 1 << 20]))

    async def compare(self, container: StreamSegmentContainer) -> None:
        for name, expected in self.model.items():
            asked = self.random.sample(KEYS, self.random.randrange(1, len(KEYS) + 1))
            found = await container.attributes(name, asked)
            assert {key: found.get(key) for key in asked} == {
                key: expected.attributes.get(key) for key in asked
            }
            assert await container.attributes(name) == expected.attributes
            assert await read_all(container, name, 0) == expected.content
        container.check()

    async def step(self, container: StreamSegmentContainer) -> None:
        random, name = self.random, self.random.choice(NAMES)
        model = self.model.get(name)
        match random.choice(["append"] * 6 + ["update"] * 3 + REST):
            case _ if model is None:
                model = ModelSegment()
                await container.create(name, self.updates(model))
                self.model[name] = model
            case "create":
                with pytest.raises(SegmentExistsError):
                    await container.create(name)
            case "append":
                async with container.open_segment(name) as segment:
                    futures = []
                    for _ in range(random.randrange(1, 4)):
                        data = random.randbytes(random.choice([0, 1, 10, 100]))
                        updates = self.updates(model)
                        futures.append(segment.append(data, attribute_updates=updates))
                        model.content += data
                    assert [await future for future in futures][-1] == len(model.content)
            case "update":
                await container.update_attributes(name, self.updates(model))
            case "merge":
                await self.merge(container, name, model)
            case "retry":
                await self.retry(container, name, model)
            case "list":
                await self.list_beside_others(container, name, model)
            case "delete" if random.random() < 0.3:
                await container.delete(name)
                del self.model[name]
            case other:
                await self.look_after(container, other)

    def updates(self, model: ModelSegment) -> list[AttributeUpdate]:
        """Some changes, told to the model. Each names the value before it, so the container judges against its own."""
        updates = []
        for key in self.random.sample(KEYS, self.random.randrange(len(KEYS) + 1)):
            self.given += 1
            before = model.attributes.get(key)
            kind = AttributeUpdateType.REPLACE
            if self.random.random() < 0.5:
                kind = AttributeUpdateType.REPLACE_IF_EQUALS
            updates.append(AttributeUpdate(key, self.given, kind, before))
            model.values.setdefault(key, []).append(self.given)
        return updates

    async def merge(
        self, container: StreamSegmentContainer, name: str, model: ModelSegment
    ) -> None:
        await container.create(SOURCE)
        data = self.random.randbytes(self.random.choice([0, 50]))
        async with container.open_segment(SOURCE) as source:
            await source.append(data)
        model.content += data
        length = await container.merge(
            name, SOURCE, attribute_updates=self.updates(model), seal_source=True
        )
        assert length == len(model.content)

    async def retry(
        self, container: StreamSegmentContainer, name: str, model: ModelSegment
    ) -> None:
        """An event that is stored already, or was overtaken, is refused and leaves no byte."""
        key = self.random.choice(KEYS)
        values: Sequence[int | None] = [None, *model.values.get(key, ())]
        if len(values) < 2:
            return
        older = self.random.choice(values[:-1])
        again = AttributeUpdate(key, -1, AttributeUpdateType.REPLACE_IF_EQUALS, older)
        async with container.open_segment(name) as segment:
            with pytest.raises(BadAttributeUpdateError):
                await segment.append(b"twice", attribute_updates=[again])
        self.retries_refused += 1

    async def list_beside_others(
        self, container: StreamSegmentContainer, name: str, model: ModelSegment
    ) -> None:
        """What was acknowledged before the question is in the answer, whatever goes on beside it."""
        listing = asyncio.ensure_future(container.attributes(name))
        await asyncio.sleep(self.random.choice([0, 0.0005]))
        await container.flush()
        assert await listing == model.attributes


REST = [
    "create",
    "merge",
    "retry",
    "retry",
    "list",
    "list",
    "delete",
    "flush",
    "evict",
    "checkpoint",
    "pause",
]


@pytest.mark.parametrize("seed", range(30))
def test_h26_an_older_value_of_an_attribute_never_comes_back(seed: int) -> None:
    AttributeLives(seed).live_all()


def test_the_lives_refuse_retries() -> None:
    refused = 0
    for seed in range(100, 105):
        lives = AttributeLives(seed)
        lives.live_all()
        refused += lives.retries_refused
    assert refused > 20, refused
