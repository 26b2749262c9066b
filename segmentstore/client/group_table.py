"""Where the state of a reader group lives: one entry of a table segment, changed by compare and set.

Invariants:

- Two changes never overwrite each other: the update that finds another version starts over from the new state.
- A change whose answer was lost is made again on the state as it is then; changes are idempotent.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from segmentstore.client.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    ServiceUnavailableError,
    TableConditionError,
)
from segmentstore.client.group_state import GroupState, decode_group_state
from segmentstore.client.segment_calls import SegmentCalls
from segmentstore.codec.stream_names import table_segment
from segmentstore.codec.wire_protocol.segments import SegmentCreated, SegmentDeleted
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    ReadTable,
    TableEntriesUpdated,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import SegmentExistsError, SegmentNotFoundError
from segmentstore.contracts.tables import NOT_EXISTS, TableEntry, TableKey

STATE_KEY: Final = b"asyncio-reader-group-state"


class GroupTable:
    """The state of one group."""

    def __init__(self, scope: str, group: str, calls: SegmentCalls) -> None:
        self.name = f"{scope}/{group}"
        self._segment = table_segment(scope, group)
        self._calls = calls

    async def create(self, state: GroupState) -> None:
        """Raises AlreadyExistsError, also for a group that a client of another kind made under this name."""
        # It may exist: from a lost answer, or somebody else's. The entry decides.
        with suppress(SegmentExistsError):
            await self._calls.ask(
                self._segment,
                lambda request_id: CreateTableSegment(request_id, self._segment, ""),
                SegmentCreated,
            )
        try:
            await self._write(state, NOT_EXISTS)
        except TableConditionError as error:
            raise AlreadyExistsError("reader group", self.name) from error

    async def delete(self) -> None:
        """Raises NotFoundError."""
        try:
            await self._calls.ask(
                self._segment,
                lambda request_id: DeleteTableSegment(request_id, self._segment, False, ""),
                SegmentDeleted,
            )
        except SegmentNotFoundError as error:
            raise NotFoundError("reader group", self.name) from error

    async def load(self) -> tuple[GroupState, int]:
        """The state and its version. Raises NotFoundError."""
        try:
            answer = await self._calls.ask(
                self._segment,
                lambda request_id: ReadTable(request_id, self._segment, "", [TableKey(STATE_KEY)]),
                TableRead,
            )
        except SegmentNotFoundError as error:
            raise NotFoundError("reader group", self.name) from error
        (entry,) = answer.entries
        if entry.version == NOT_EXISTS:
            raise NotFoundError("reader group", self.name)
        return decode_group_state(entry.value), entry.version

    async def change(self, change: Callable[[GroupState], None]) -> GroupState:
        """Apply an idempotent change; the state afterwards. Raises what `change` raises, ServiceUnavailableError."""
        for _ in range(self._calls.settings.state_attempts_max):
            state, version = await self.load()
            before = state.encode()
            change(state)
            state.check()
            if state.encode() == before:
                return state
            try:
                await self._write(state, version)
            except (TableConditionError, OutcomeUnknownError):
                continue
            return state
        raise ServiceUnavailableError(f"state of the reader group is too busy group={self.name!r}")

    async def _write(self, state: GroupState, version: int) -> None:
        entry = TableEntry(STATE_KEY, state.encode(), version)
        await self._calls.ask(
            self._segment,
            lambda request_id: UpdateTableEntries(request_id, self._segment, "", [entry]),
            TableEntriesUpdated,
            repeatable=False,
        )
