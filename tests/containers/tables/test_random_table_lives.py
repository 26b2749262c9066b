"""Whole lives of tables, chosen at random, against dictionaries (H24, H26, H64, H65, H66, H67).

Each run is a few lives of a container over the same two tiers; most end without a word. Settings turn every corner
quickly: attributes leave memory at once, tables are compacted all the time, frames hold one operation, publications
are small. Batches are submitted without waiting for the ones before, each judged by the model as it must be.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest

from containers.container_settings import ContainerSettings, TableSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    TableKeyNotFoundError,
    TableNotEmptyError,
    TableVersionError,
)
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, Table, TableEntry, TableKey
from tests.containers.random_lives import ContainerLives
from tests.contracts.table_suite import all_changes, all_entries

NAMES = {"hash": 0, "fixed": 3}


@dataclass(slots=True)
class ModelTable:
    """What a table must be."""

    entries: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Value and version by key."""


Outcome: TypeAlias = Callable[[ModelTable], Awaitable[None]]
"""Waits for a batch and tells the model."""


class TableLives(ContainerLives):
    """The model, and one container after another that has to agree with it."""

    steps_max = 40

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.model: dict[str, ModelTable] = {}

    def settings(self) -> ContainerSettings:
        choose = self.random.choice
        return replace(
            self.corner_settings(active_segments=[2, 100]),
            attribute_memory=self.small_attribute_memory([1, 2000, 1 << 20]),
            tables=TableSettings(
                compact_bytes_min=choose([50, 1000, 1 << 20]),
                compact_seconds=choose([0.001, 0.01]),
                utilisation_min=choose([0.75, 0.99]),
                round_bytes_max=choose([100, 5000]),
                slice_bytes=choose([20, 500]),
                known_count_max=choose([0, 3, 1000]),
                scan_count=choose([1, 2, 1000]),
                scan_bytes=choose([20, 100, 5000]),
            ),
        )

    async def compare(self, container: StreamSegmentContainer) -> None:
        for name in NAMES:
            expected = self.model.get(name)
            if expected is None:
                with pytest.raises(SegmentNotFoundError):
                    async with container.open_table(name):
                        pass
                continue
            async with container.open_table(name) as table:
                await self.compare_table(table, expected)
        container.check()

    async def compare_table(self, table: Table, expected: ModelTable) -> None:
        keys = [*self.keys(table.name), b"never"]
        found = dict(zip(keys, await table.get(keys), strict=True))
        for key, each in found.items():
            assert (None if each is None else (each.value, each.version)) == expected.entries.get(
                key
            )
        listed = await all_entries(table, count=self.random.choice([1, 3, 100]))
        assert [(each.key, each.value, each.version) for each in listed] == [
            (key, *expected.entries[key]) for key in sorted(expected.entries)
        ]
        assert table.info().entry_count == len(expected.entries)
        if not table.key_length:
            believed = await all_changes(table, 0, count=self.random.choice([1, 3, 100]))
            assert believed == {key: value for key, (value, _) in expected.entries.items()}

    def keys(self, name: str) -> list[bytes]:
        if NAMES[name]:
            return [b"k%02d" % number for number in range(20)]
        return [b"k%d" % number for number in range(20)] + [b"l" * 300]

    async def step(self, container: StreamSegmentContainer) -> None:
        random, name = self.random, self.random.choice(list(NAMES))
        model = self.model.get(name)
        match random.choice(["batch"] * 8 + ["create"] * 2 + REST):
            case "create":
                try:
                    await container.create_table(name, key_length=NAMES[name])
                except SegmentExistsError:
                    assert model is not None
                else:
                    assert model is None
                    self.model[name] = ModelTable()
            case "batch" if model is not None:
                await self.batches(container, name, model)
            case "delete" if model is not None:
                must_be_empty = random.random() < 0.8
                try:
                    await container.delete_table(name, must_be_empty=must_be_empty)
                except TableNotEmptyError:
                    assert model.entries
                    assert must_be_empty
                else:
                    assert not (model.entries and must_be_empty)
                    del self.model[name]
            case "compare" if model is not None:
                async with container.open_table(name) as table:
                    await self.compare_table(table, model)
            case "compact":
                await container._components.tables.compact_due()
            case other:
                await self.look_after(container, other)

    async def batches(
        self, container: StreamSegmentContainer, name: str, model: ModelTable
    ) -> None:
        async with container.open_table(name) as table:
            submitted = []
            for _ in range(self.random.choice([1, 1, 5])):
                size = self.random.choice([1, 1, 2, 10])
                keys = self.random.choices(self.keys(name), k=size)
                if self.random.random() < 0.3:
                    submitted.append(self.remove(table, keys))
                elif self.random.random() < 0.3:
                    submitted.append(self.update_each(table, keys))
                else:
                    submitted.append(self.update(table, keys))
            for outcome in submitted:
                await outcome(model)

    def expected_version(self, key: bytes, model: ModelTable) -> int:
        present = model.entries.get(key, (b"", NOT_EXISTS))[1]
        return self.random.choice([NO_VERSION, NO_VERSION, present, present, NOT_EXISTS, 7])

    def update(self, table: Table, keys: list[bytes]) -> Outcome:
        entries = self.entries(table.name, keys)
        future = table.update(entries)

        async def outcome(model: ModelTable) -> None:
            expected = refusal(model, [(each.key, each.version) for each in entries])
            if expected is not None:
                with pytest.raises(expected):
                    await future
                return
            for each, version in zip(entries, await future, strict=True):
                model.entries[each.key] = (each.value, version)

        return outcome

    def update_each(self, table: Table, keys: list[bytes]) -> Outcome:
        entries = self.entries(table.name, keys)
        future = table.update_each(entries)

        async def outcome(model: ModelTable) -> None:
            for each, found in zip(entries, await future, strict=True):
                expected = refusal(model, [(each.key, each.version)])
                if expected is not None:
                    assert type(found) is expected
                    continue
                assert isinstance(found, int)
                model.entries[each.key] = (each.value, found)

        return outcome

    def entries(self, name: str, keys: list[bytes]) -> list[TableEntry]:
        random, model = self.random, self.model[name]
        return [
            TableEntry(
                key,
                random.randbytes(random.choice([0, 5, 100])),
                self.expected_version(key, model) if random.random() < 0.5 else NO_VERSION,
            )
            for key in keys
        ]

    def remove(self, table: Table, keys: list[bytes]) -> Outcome:
        model = self.model[table.name]
        wanted = [TableKey(key, self.expected_version(key, model)) for key in keys]
        future = table.remove(wanted)

        async def outcome(model: ModelTable) -> None:
            expected = refusal(model, [(each.key, each.version) for each in wanted])
            if expected is not None:
                with pytest.raises(expected):
                    await future
                return
            await future
            for each in wanted:
                model.entries.pop(each.key, None)

        return outcome


def refusal(
    model: ModelTable, conditions: list[tuple[bytes, int]]
) -> type[TableKeyNotFoundError] | type[TableVersionError] | None:
    for key, version in conditions:
        present = model.entries.get(key, (b"", NOT_EXISTS))[1]
        if version in (NO_VERSION, present):
            continue
        return TableKeyNotFoundError if present == NOT_EXISTS else TableVersionError
    return None


REST = ["delete", "compare", "flush", "evict", "compact", "compact", "checkpoint", "pause"]


@pytest.mark.parametrize("seed", range(30))
def test_h66_tables_are_what_was_acknowledged_after_any_number_of_crashes(seed: int) -> None:
    TableLives(seed).live_all()
