"""Random publications against a model made of dictionaries.

Goal: whatever mixture of appends, truncations, seals, merges, deletes, re-creations and attribute changes goes into
rounds, with lost and late answers, merges of runs, collections and new owners between them, Tier 2 shows exactly the
published state, and frees every object that nothing needs.
Method: small steps are drawn, few by hypothesis (which shrinks what fails), many from seeds (so that runs pile up and
merge); the model keeps the state that is pending and the one that is published.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segmentstore.contracts.errors import SegmentTruncatedError, StorageError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, ContainerId, SegmentId
from segmentstore.contracts.storage import DataPiece, Piece, Publication, SegmentPublication
from tests.contracts.storage_publications import change, data, listed, merge, read_all, round_of
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.faulty_store import Fault, FaultyStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.offline.verify import verify_container
from tier2.store_reader import ContainerReader
from tier2.tiered_storage import TieredStorage

NAMES = ["a", "a/b", "b", "c", "d"]


@dataclass
class ModelSegment:
    segment_id: int
    name: str
    content: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    sealed: bool = False
    attributes: dict[AttributeKey, AttributeValue] = field(default_factory=dict)
    sequence_number: int = 0
    pieces: list[Piece] = field(default_factory=list)
    changed: dict[AttributeKey, AttributeValue | None] = field(default_factory=dict)


class Model:
    """Pending state, published state, and the round between them."""

    def __init__(self) -> None:
        self.pending: dict[int, ModelSegment] = {}
        self.published: dict[int, ModelSegment] = {}
        self.gone: list[ModelSegment] = []
        self.sequence_number = 0
        self.next_id = 1
        self.touched: set[int] = set()

    def named(self, name: str) -> ModelSegment | None:
        return next((s for s in self.pending.values() if s.name == name), None)

    def touch(self, segment: ModelSegment) -> None:
        self.sequence_number += 1
        segment.sequence_number = self.sequence_number
        self.touched.add(segment.segment_id)

    def round(self) -> Publication:
        changes = [
            self._change(self.pending[segment_id], deleted=False)
            for segment_id in sorted(self.touched)
            if segment_id in self.pending
        ]
        changes += [self._change(segment, deleted=True) for segment in self.gone]
        return round_of(
            *changes, highest_id=self.next_id - 1, highest_sequence=self.sequence_number
        )

    def _change(self, segment: ModelSegment, *, deleted: bool) -> SegmentPublication:
        return change(
            segment.segment_id,
            segment.name,
            length=len(segment.content),
            start_offset=segment.start_offset,
            sealed=segment.sealed,
            sequence_number=segment.sequence_number,
            pieces=list(segment.pieces),
            attributes=dict(segment.changed),
            deleted=deleted,
        )

    def commit(self) -> None:
        for segment in self.pending.values():
            segment.pieces, segment.changed = [], {}
        self.published = copy.deepcopy(self.pending)
        self.gone, self.touched = [], set()

    def lose_pending(self) -> None:
        self.pending = copy.deepcopy(self.published)
        self.gone, self.touched = [], set()


def do_append(model: Model, segment: ModelSegment, a: int, b: int) -> None:
    if segment.sealed:
        return
    text = bytes([a % 251]) * (b * b % 3000 + 1)
    runs = [text[at : at + 701] for at in range(0, len(text), 701)]
    segment.pieces.append(DataPiece(len(segment.content), runs))
    segment.content += text
    model.touch(segment)


def do_truncate(model: Model, segment: ModelSegment, a: int, b: int) -> None:
    start = segment.start_offset
    start += (a * 31 + b) % (len(segment.content) - start + 1)
    segment.start_offset = start
    if b % 2 and all(isinstance(piece, DataPiece) for piece in segment.pieces):
        published = model.published.get(segment.segment_id)
        first = max(start, len(published.content) if published else 0)
        rest = bytes(segment.content[first:])
        segment.pieces = [data(first, rest)] if rest else []
    model.touch(segment)


def do_seal(model: Model, segment: ModelSegment, a: int, b: int) -> None:
    segment.sealed = True
    model.touch(segment)


def do_merge(model: Model, target: ModelSegment, a: int, b: int) -> None:
    source = model.named(NAMES[a % len(NAMES)])
    if source is None or source is target or source.start_offset or target.sealed:
        return
    source.sealed = True
    model.touch(source)
    target.pieces.append(merge(len(target.content), source.segment_id, len(source.content)))
    target.content += source.content
    model.touch(target)
    del model.pending[source.segment_id]
    model.gone.append(source)


def do_delete(model: Model, segment: ModelSegment, a: int, b: int) -> None:
    model.touch(segment)
    del model.pending[segment.segment_id]
    model.gone.append(segment)


def do_attribute(model: Model, segment: ModelSegment, a: int, b: int) -> None:
    key = AttributeKey(b"k%d" % (a % 5))
    value: AttributeValue | None = None if b % 3 == 0 else b if b % 3 == 1 else b"v" * b
    segment.changed[key] = value
    segment.attributes.pop(key, None)
    if value is not None:
        segment.attributes[key] = value
    model.touch(segment)


CHANGES: dict[str, Callable[[Model, ModelSegment, int, int], None]] = {
    "append": do_append,
    "truncate": do_truncate,
    "seal": do_seal,
    "merge": do_merge,
    "delete": do_delete,
    "attribute": do_attribute,
}
FAULTS = [Fault.NONE, Fault.AFTER, Fault.DENIED, Fault.BEFORE, Fault.LATE]


class World:
    def __init__(self) -> None:
        self.store = FaultyStore(MemoryObjectStore())
        self.backing = ObjectStoreBacking(self.store, SMALL)
        self.model = Model()
        self.epoch = 0
        self.merges = 0
        self.storage: TieredStorage = self.backing.make()

    async def reopen(self) -> None:
        self.epoch += 1
        self.storage = await self.backing.claimed(self.epoch)
        self.model.lose_pending()

    async def step(self, kind: str, name: int, a: int, b: int) -> None:
        model = self.model
        if kind in CHANGES:
            segment = model.named(NAMES[name % len(NAMES)])
            if segment is None:
                segment = ModelSegment(model.next_id, NAMES[name % len(NAMES)])
                model.pending[model.next_id] = segment
                model.next_id += 1
            CHANGES[kind](model, segment, a, b)
            model.touch(segment)
        elif kind == "publish":
            await self.publish(FAULTS[a % len(FAULTS)], late_upload=b % 4 == 0)
            await self.compare()
        elif kind == "maintain":
            self.merges += await self.storage.maintain()
            await self.compare()
        elif kind == "collect":
            await self.storage.collect_garbage()
            await self.compare()
        else:
            await self.reopen()
            await self.compare()
            await self.verify()
        self.storage.check()

    async def publish(self, fault: Fault, *, late_upload: bool) -> None:
        publication = self.model.round()
        if late_upload:
            self.store.plain.append(Fault.AFTER)
        self.store.conditional.append(fault)
        for attempt in range(3):
            try:
                await self.storage.publish(publication)
                break
            except StorageError:
                assert attempt < 2
                if fault is Fault.LATE:
                    await self.store.land()
        self.store.conditional.clear()
        self.store.plain.clear()
        self.model.commit()

    async def compare(self) -> None:
        published = self.model.published
        records = await self.storage.load([SegmentId(n) for n in range(1, self.model.next_id)])
        assert {int(segment_id) for segment_id in records} == set(published)
        by_name = sorted(published.values(), key=lambda segment: segment.name)
        assert [record.name for record in await listed(self.storage)] == [s.name for s in by_name]
        for name in NAMES:
            found = await self.storage.find(name)
            expected = next((s.segment_id for s in by_name if s.name == name), None)
            assert (None if found is None else found.segment_id) == expected
        for segment in by_name:
            await self.compare_segment(segment)

    async def compare_segment(self, segment: ModelSegment) -> None:
        segment_id = SegmentId(segment.segment_id)
        record = (await self.storage.load([segment_id]))[segment_id]
        length = len(segment.content)
        assert (record.length, record.start_offset) == (length, segment.start_offset)
        assert (record.sealed, record.sequence_number) == (segment.sealed, segment.sequence_number)
        assert await self.storage.load_attributes(segment_id, None) == segment.attributes
        content = await read_all(
            self.storage, segment_id, segment.start_offset, length, step=length // 3 + 1
        )
        assert content == segment.content[segment.start_offset :]
        if segment.start_offset:
            try:
                await self.storage.read(segment_id, segment.start_offset - 1, 1)
                raise AssertionError("a truncated byte was served")
            except SegmentTruncatedError:
                pass

    async def verify(self) -> None:
        reader = ContainerReader(
            object_store=self.store, container_id=ContainerId(3), settings=SMALL, executor=None
        )
        await reader.refresh()
        report = await verify_container(reader)
        assert report.damages == []
        assert report.segments == len(self.model.published)

    async def empty_and_count_what_is_left(self) -> list[str]:
        for segment in list(self.model.pending.values()):
            do_delete(self.model, segment, 0, 0)
        await self.publish(Fault.NONE, late_upload=False)
        for _ in range(200):
            await self.storage.collect_garbage()
            if not self.storage.statistics().garbage_objects:
                break
        return [info.key async for info in self.store.store.list("containers/0003/chunks/")]


WEIGHTED = [*CHANGES, *["append"] * 3, *["publish"] * 8, *["maintain"] * 3, "collect", "reopen"]
STEP = st.tuples(
    st.sampled_from(WEIGHTED), st.integers(0, 20), st.integers(0, 300), st.integers(0, 300)
)


async def play(steps: Iterable[tuple[str, int, int, int]]) -> World:
    world = World()
    await world.reopen()
    for kind, name, a, b in steps:
        await world.step(kind, name, a, b)
    await world.publish(Fault.NONE, late_upload=False)
    await world.compare()
    await world.reopen()
    await world.compare()
    await world.verify()
    assert await world.empty_and_count_what_is_left() == []
    await world.verify()
    return world


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(st.lists(STEP, min_size=5, max_size=60))
def test_tier2_shows_exactly_what_was_published_and_frees_the_rest(
    drawn: list[tuple[str, int, int, int]],
) -> None:
    asyncio.run(play(drawn))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_long_histories_keep_the_model_through_merges_of_runs(seed: int) -> None:
    random = Random(seed)
    steps = [
        (
            random.choice(WEIGHTED),
            random.randrange(21),
            random.randrange(301),
            random.randrange(301),
        )
        for _ in range(400)
    ]
    world = asyncio.run(play(steps))
    assert world.merges > 10
