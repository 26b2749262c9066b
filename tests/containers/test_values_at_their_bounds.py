"""No value that a caller may hand in ends a container, now or in a later life.

Goal: whatever is accepted can be written to the log, into a checkpoint and to Tier 2, for ever.

Method: random verbs over names, keys and numbers at the bounds of what a record can hold. Each is accepted or refused
with an error of the store, in time; the container then flushes, takes a checkpoint and closes, and its next life knows
the same attributes.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from containers.attributes import attribute_updates
from containers.attributes.attribute_updates import merged_source_key
from containers.container_settings import AttributeMemorySettings, ContainerSettings
from containers.log import operation_metadata_updater
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    InvalidRequestError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import (
    ATTRIBUTE_KEY_BYTES_MAX,
    ATTRIBUTE_VALUE_BYTES_MAX,
    CORE_ATTRIBUTE_BYTES_MAX,
    CORE_ATTRIBUTE_PREFIX,
    CORE_ATTRIBUTES_MAX,
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    TABLE_ENTRY_COUNT,
    TABLE_KEY_LENGTH,
    AttributeKey,
    AttributeValue,
)
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running

PATIENCE_SECONDS = 60.0
"""Only ever waited for by a test that is about to fail."""

STEPS = 80
NAMES = ["a", "b", "a#transaction." + "0" * 32, "c"]
BAD_NAMES = ["", "\ud800", "n" * 70_000, "x\0"]
NUMBERS = [0, 1, -1, -100, (1 << 63) - 1, -(1 << 63), 7]
BAD_NUMBERS = [1 << 63, -(1 << 63) - 1, 1 << 64]
BAD_KEYS = [
    TABLE_KEY_LENGTH,
    TABLE_ENTRY_COUNT,
    merged_source_key("b"),
    AttributeKey(b"k" * ATTRIBUTE_KEY_BYTES_MAX),
    AttributeKey(b""),
    AttributeKey(b"k" * 70_000),
]


def core_key(number: int) -> AttributeKey:
    return AttributeKey(CORE_ATTRIBUTE_PREFIX + number.to_bytes(8, "big"))


class RandomValues:
    """Values of one life: mostly such as may be accepted, some that never may."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._bulk_share = self.random.choice([0.0, 0.02, 0.9])
        self._next_core_number = 1000

    def name(self) -> str:
        return self.random.choice(BAD_NAMES if self.random.random() < 0.05 else NAMES)

    def number(self) -> int:
        return self.random.choice(BAD_NUMBERS if self.random.random() < 0.05 else NUMBERS)

    def updates(self) -> list[AttributeUpdate]:
        if self.random.random() < self._bulk_share:
            first, self._next_core_number = self._next_core_number, self._next_core_number + 1000
            return [AttributeUpdate(core_key(first + number), 1) for number in range(1000)]
        return [self._update() for _ in range(self.random.choice([0, 1, 1, 1, 2, 3]))]

    def _update(self) -> AttributeUpdate:
        kinds = list(AttributeUpdateType)
        return AttributeUpdate(self._key(), self._value(), self.random.choice(kinds), self._value())

    def _key(self) -> AttributeKey:
        keys = [EVENT_COUNT, EVENT_COUNT, SCALE_POLICY_RATE, AttributeKey(b"w" * 16)]
        keys.append(core_key(self.random.randrange(1 << 20)))
        return self.random.choice(BAD_KEYS if self.random.random() < 0.1 else keys)

    def _value(self) -> AttributeValue | None:
        if self.random.random() < 0.7:
            return self.number()
        if self.random.random() < 0.1:
            return b"v" * self.random.choice([ATTRIBUTE_VALUE_BYTES_MAX + 1, 70_000])
        return self.random.choice([None, b"", b"v", b"v" * ATTRIBUTE_VALUE_BYTES_MAX])


async def random_verb(container: StreamSegmentContainer, values: RandomValues) -> None:
    """One verb with values that may or may not be good."""
    random, name = values.random, values.name()
    match random.randrange(10):
        case 0 | 1:
            await container.create(name, values.updates())
        case 2 | 3 | 4:
            await container.update_attributes(name, values.updates())
        case 5 | 6 | 7:
            async with container.open_segment(name) as segment:
                await segment.append(
                    b"e" * random.choice([0, 8, 16, 800]),
                    offset=values.number() if random.random() < 0.1 else None,
                    attribute_updates=values.updates(),
                    events=random.choice([None, 1, 1, 2, values.number()]),
                )
        case 8:
            await container.truncate(name, values.number())
        case _:
            await container.merge(
                name,
                values.name(),
                attribute_updates=values.updates(),
                seal_source=random.random() < 0.8,
            )


async def life(tiers: MemoryTiers, values: RandomValues, *, life_seed: int) -> dict[str, object]:
    """One life: verbs, a flush, a checkpoint and an orderly end. What it knows of its segments then."""
    container = make_container(tiers, seed=life_seed)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await container.start()
    run = asyncio.get_running_loop().create_task(container.run())
    try:
        for _ in range(STEPS):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await random_verb(container, values)
            except SegmentStoreError:
                pass
            assert not run.done(), f"the container ended: {run.exception()!r}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            known = await what_it_knows(container)
            await container.flush()
            await container._components.processor.checkpoint()
            assert await what_it_knows(container) == known
        container.check()
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await container.close()
            await asyncio.gather(run, return_exceptions=True)
    return known


async def what_it_knows(container: StreamSegmentContainer) -> dict[str, object]:
    known: dict[str, object] = {}
    for properties in await container.list_segments():
        attributes = await container.attributes(properties.name)
        known[properties.name] = (properties.length, properties.start_offset, attributes)
    return known


@pytest.mark.parametrize("seed", range(25))
async def test_h22_whatever_is_accepted_can_be_kept(seed: int) -> None:
    values = RandomValues(seed)
    tiers = MemoryTiers()
    await life(tiers, values, life_seed=2)
    before = await life(tiers, values, life_seed=12)
    container = make_container(tiers, seed=22)
    await container.start()
    run = asyncio.get_running_loop().create_task(container.run())
    assert await what_it_knows(container) == before
    await container.close()
    await run


@pytest.mark.parametrize("merged", [False, True])
async def test_counts_below_zero_of_an_earlier_version_do_not_keep_a_segment_from_tier_2(
    monkeypatch: pytest.MonkeyPatch, *, merged: bool
) -> None:
    tiers = MemoryTiers()
    slow = replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            operation_metadata_updater,
            "add_events",
            lambda _name, current, events: (current or 0) + events,
        )
        async with running(tiers, settings=ContainerSettings(writer=slow)) as container:
            await container.create("a")
            await container.create("b")
            for name in ("a", "b"):
                async with container.open_segment(name) as segment:
                    update = AttributeUpdate(EVENT_COUNT, -100)
                    await container._components.processor.update_attributes(
                        segment.metadata, [update]
                    )
                    await segment.append(b"e" * 16, events=2)
            if merged:
                await container.merge("a", "b", seal_source=True)
    async with running(tiers) as container:
        await container.flush()
        async with container.open_segment("a") as segment:
            await segment.append(b"f" * 8, events=1)
        await container.flush()
        assert (await container.info("a")).storage_length == (40 if merged else 24)
        assert (await container.info("a")).core_attributes[EVENT_COUNT] == 1


async def test_events_beyond_64_bits_are_refused_and_lose_nothing() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a", [AttributeUpdate(EVENT_COUNT, (1 << 63) - 1)])
        await container.create("b")
        async with container.open_segment("a") as target, container.open_segment("b") as source:
            assert await source.append(b"e" * 8, events=1) == 8
            with pytest.raises(BadAttributeUpdateError, match="64 bits"):
                await target.append(b"e" * 8, events=1)
        with pytest.raises(BadAttributeUpdateError, match="64 bits"):
            await container.merge("a", "b", seal_source=True)
        assert (await container.info("a")).length == 0
        assert not (await container.info("b")).sealed
        await container.flush()


async def test_a_merge_of_more_events_than_the_target_can_count_is_refused_and_ends_nothing() -> (
    None
):
    async with running(MemoryTiers()) as container:
        await container.create("a", [AttributeUpdate(EVENT_COUNT, 7)])
        await container.create("b", [AttributeUpdate(EVENT_COUNT, (1 << 63) - 1)])
        with pytest.raises(BadAttributeUpdateError, match="64 bits"):
            await container.merge("a", "b", seal_source=True)
        assert not (await container.info("b")).sealed
        await container.create("c")
        await container.merge("c", "b", seal_source=True)
        await container.flush()
        assert (await container.info("c")).core_attributes[EVENT_COUNT] == (1 << 63) - 1


@pytest.mark.parametrize(
    "update",
    [
        AttributeUpdate(EVENT_COUNT, -1),
        AttributeUpdate(EVENT_COUNT, -1, AttributeUpdateType.ACCUMULATE),
        AttributeUpdate(EVENT_COUNT, b"1"),
        AttributeUpdate(TABLE_ENTRY_COUNT, 1),
        AttributeUpdate(merged_source_key("b"), 1),
    ],
)
async def test_what_the_container_counts_for_itself_is_not_for_callers_to_set(
    update: AttributeUpdate,
) -> None:
    async with running(MemoryTiers()) as container:
        with pytest.raises(InvalidRequestError):
            await container.create("a", [update])
        await container.create("a")
        with pytest.raises(InvalidRequestError):
            await container.update_attributes("a", [update])


async def test_core_attributes_of_a_segment_are_bounded_in_number_and_bytes() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        for number in range(CORE_ATTRIBUTES_MAX):
            await container.update_attributes("a", [AttributeUpdate(core_key(1000 + number), 1)])
        with pytest.raises(BadAttributeUpdateError, match="at most 100 core attributes"):
            await container.update_attributes("a", [AttributeUpdate(core_key(7000), 1)])
        # Events are counted in any case, and a place that is given up is free again.
        async with container.open_segment("a") as segment:
            await segment.append(b"e" * 8, events=1)
        await container.update_attributes("a", [AttributeUpdate(core_key(1000), None)])
        await container.update_attributes("a", [AttributeUpdate(core_key(7000), 1)])
        long = b"v" * ATTRIBUTE_VALUE_BYTES_MAX
        fitting = CORE_ATTRIBUTE_BYTES_MAX // ATTRIBUTE_VALUE_BYTES_MAX
        for number in range(1, fitting + 1):
            await container.update_attributes("a", [AttributeUpdate(core_key(1000 + number), long)])
        with pytest.raises(BadAttributeUpdateError, match="have at most 16384 bytes"):
            await container.update_attributes("a", [AttributeUpdate(core_key(1050), long)])
        assert len(await container.attributes("a")) == CORE_ATTRIBUTES_MAX + 1


async def test_more_core_attributes_of_an_earlier_version_stay_and_can_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = MemoryTiers()
    with monkeypatch.context() as earlier:
        earlier.setattr(attribute_updates, "CORE_ATTRIBUTES_MAX", 1 << 16)
        async with running(tiers) as container:
            many = [AttributeUpdate(core_key(1000 + number), 1) for number in range(200)]
            await container.create("a", many)
    async with running(tiers) as container:
        assert len(await container.attributes("a")) == 200
        await container.update_attributes("a", [AttributeUpdate(core_key(1000), 2)])
        with pytest.raises(BadAttributeUpdateError):
            await container.update_attributes("a", [AttributeUpdate(core_key(7000), 2)])
        await container.update_attributes("a", [AttributeUpdate(core_key(1000), None)])
        assert len(await container.attributes("a")) == 199


async def test_core_attributes_beyond_their_memory_evict_idle_segments() -> None:
    memory = AttributeMemorySettings(core_bytes_max=100_000)
    settings = ContainerSettings(
        writer=FAST_FLUSH, attribute_memory=memory, housekeeping_seconds=0.01
    )
    async with running(MemoryTiers(), settings=settings) as container:
        long = b"v" * ATTRIBUTE_VALUE_BYTES_MAX
        ledger = container.container_metadata.attribute_ledger
        for number in range(40):
            updates = [AttributeUpdate(core_key(1000 + each), long) for each in range(10)]
            await container.create(f"s{number}", updates)
            assert ledger.core_bytes < 2 * memory.core_bytes_max
        container.check()
        assert len(container.container_metadata.by_id) < 10
        for number in range(40):
            assert len(await container.attributes(f"s{number}")) == 10
