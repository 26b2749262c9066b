"""Actors that keep tables: each has one of its own, and knows what must be in it (H64 to H67)."""

import asyncio
from collections.abc import Sequence

from segmentstore.contracts.errors import (
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
    StorageError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.tables import (
    NO_VERSION,
    NOT_EXISTS,
    Table,
    TableApi,
    TableEntry,
    TableKey,
)
from tests.contracts.table_suite import all_changes, all_entries
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import ModelBreachError
from tests.sim.checkers import TABLE_PREFIX
from tests.sim.client import REQUEST_ERRORS
from tests.sim.model import is_unknown
from tests.sim.table_model import REFUSED, Answer, Batch, Stored, TableModel

_KEY_LENGTH = 3
_KEY_COUNT = 8
_CONDITION_REFUSALS = (TableKeyNotFoundError, TableVersionError)


class TableKeeper(Actor):
    """Puts with and without versions, removes, reads back, deletes and creates again."""

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage, f"{TABLE_PREFIX}{number}")
        self.model = TableModel(self.name)
        self._key_length = _KEY_LENGTH if number % 2 else 0
        self._keys = [b"k%02d" % number for number in range(_KEY_COUNT)]
        self._value = 0

    async def step(self) -> None:
        what = self.random.random()
        if not self.model.is_certain or what < 0.3:
            await self.look()
        elif self.model.state is None:
            await self._create()
        elif what < 0.35:
            await self._delete()
        else:
            await self._change()

    def owes(self) -> bool:
        return not self.model.is_certain

    async def look(self) -> None:
        """Everything in the table, by each way of reading it."""
        count = self.random.choice((1, 3, 100))
        try:
            entries = await self.client.ask_table(
                self.name, lambda api: _read_all(api, self.name, self._keys, count)
            )
        except SegmentNotFoundError:
            self.model.found(None)
            return
        self.model.found({entry.key: entry for entry in entries})

    async def _create(self) -> None:
        try:
            await self.client.ask_table(
                self.name, lambda api: api.create_table(self.name, key_length=self._key_length)
            )
        except SegmentExistsError as error:
            raise ModelBreachError(f"{self.name} exists before it is created: {error}") from error
        except REQUEST_ERRORS as error:
            if is_unknown(error):
                self.model.create_not_answered()
            raise
        self.model.created()

    async def _delete(self) -> None:
        try:
            await self.client.ask_table(
                self.name, lambda api: api.delete_table(self.name, must_be_empty=False)
            )
        except SegmentNotFoundError as error:
            raise ModelBreachError(f"{self.name} is lost: {error}") from error
        except REQUEST_ERRORS as error:
            if is_unknown(error):
                self.model.delete_not_answered()
            raise
        self.model.deleted()

    async def _change(self) -> None:
        batches = [self._draw_batch() for _ in range(self.random.choice((1, 1, 3)))]
        try:
            answers = await self.client.ask_table(
                self.name, lambda api: _submit(api, self.name, batches)
            )
        except SegmentNotFoundError as error:
            raise ModelBreachError(f"{self.name} is lost: {error}") from error
        except REQUEST_ERRORS as error:
            # Some may have been answered, others not. A batch whose keys Tier 2 does not tell fails by itself.
            self.model.not_answered(batches, skipping=isinstance(error, StorageError))
            raise
        self.model.answered(batches, answers)

    def _draw_batch(self) -> Batch:
        removes = self.random.random() < 0.25
        keys = self.random.sample(self._keys, self.random.choice((1, 1, 2, 5)))
        return Batch(
            [(key, None if removes else self._new_value(), self._expected(key)) for key in keys]
        )

    def _new_value(self) -> bytes:
        self._value += 1
        longest = self.stage.settings.append_bytes_max
        length = self.random.randint(0, longest if self.random.random() < 0.2 else 16)
        return b"%d:" % self._value + bytes(length)

    def _expected(self, key: bytes) -> int:
        """Right now and then, and sometimes wrong; a batch before this one may change it."""
        state = self.model.state
        assert state is not None, f"there is no table {self.name}"
        _, version = state.get(key, (b"", NOT_EXISTS))
        return self.random.choice((NO_VERSION, NO_VERSION, version, NOT_EXISTS))


async def _submit(api: TableApi, name: str, batches: Sequence[Batch]) -> list[Answer]:
    """All of them at once; the answers come in their order."""
    async with api.open_table(name) as table:
        if all(map(_updates_one_key, batches)):
            return await _submit_together(table, batches)
        futures: list[asyncio.Future[Sequence[int]] | asyncio.Future[None]] = [
            _begin(table, batch) for batch in batches
        ]
        answers: list[Answer] = []
        failure: SegmentStoreError | None = None
        for future in futures:
            try:
                versions = await asyncio.shield(future)
            except _CONDITION_REFUSALS:
                answers.append(REFUSED)
            except SegmentStoreError as error:
                failure = failure or error  # the others are waited for nevertheless
            else:
                answers.append(Stored(versions or ()))
        if failure is not None:
            raise failure
        return answers


def _updates_one_key(batch: Batch) -> bool:
    return len(batch.changes) == 1 and batch.changes[0][1] is not None


async def _submit_together(table: Table, batches: Sequence[Batch]) -> list[Answer]:
    outcomes = await asyncio.shield(
        table.update_each(
            [
                TableEntry(key, value, expected)
                for batch in batches
                for key, value, expected in batch.changes
                if value is not None
            ]
        )
    )
    return [Stored([each]) if isinstance(each, int) else REFUSED for each in outcomes]


def _begin(table: Table, batch: Batch) -> "asyncio.Future[Sequence[int]] | asyncio.Future[None]":
    entries = [
        TableEntry(key, value, expected)
        for key, value, expected in batch.changes
        if value is not None
    ]
    if entries:
        return table.update(entries)
    return table.remove([TableKey(key, expected) for key, _, expected in batch.changes])


async def _read_all(
    api: TableApi, name: str, keys: Sequence[bytes], count: int
) -> list[TableEntry]:
    """What is there; raises ModelBreachError if two ways of reading it differ."""
    async with api.open_table(name) as table:
        found = [entry for entry in await table.get(keys) if entry is not None]
        listed = await all_entries(table, count=count)
        if found != listed or table.info().entry_count != len(found):
            raise ModelBreachError(
                f"{name}: looked up {found}, listed {listed}, counted {table.info().entry_count}"
            )
        if not table.key_length:
            changes = await all_changes(table, 0, count=count)
            if changes != {entry.key: entry.value for entry in found}:
                raise ModelBreachError(f"{name}: looked up {found}, its changes say {changes}")
        return found
