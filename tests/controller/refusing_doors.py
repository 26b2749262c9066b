"""Doors behind which some names refuse everything: their container is down, or what is there cannot be used."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.segments import AttributeUpdate, SegmentProperties
from segmentstore.contracts.tables import Table
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables

MakeError = Callable[[], SegmentStoreError]


class Refusals:
    """Which names refuse, and every name that was asked for."""

    def __init__(self) -> None:
        self.error: MakeError | None = None
        self.refuses: Callable[[str], bool] = lambda name: False
        self.seen: dict[str, None] = {}

    def of(self, name: str, error: MakeError) -> None:
        """From now on this name refuses."""
        self.error, self.refuses = error, lambda each: each == name

    def end(self) -> None:
        self.error = None

    def look(self, name: str) -> None:
        self.seen[name] = None
        if self.error is not None and self.refuses(name):
            raise self.error()


class RefusingTables(MemoryTables):
    """Tables of one store, also across restarts."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self.refusals = refusals

    def restarted(self) -> "RefusingTables":
        other = RefusingTables(self.refusals)
        other._tables = super().restarted()._tables
        return other

    @asynccontextmanager
    async def _open(self, name: str) -> AsyncIterator[Table]:
        self.refusals.look(name)
        async with super()._open(name) as table:
            yield table

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        self.refusals.look(name)
        await super().create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        self.refusals.look(name)
        await super().delete_table(name, must_be_empty=must_be_empty)


class RefusingSegments(MemorySegments):
    """Segments of one store, also across restarts; those verbs refuse that change a segment, and `info`."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self.refusals = refusals

    def restarted(self) -> "RefusingSegments":
        other = RefusingSegments(self.refusals)
        before = super().restarted()
        other._segments, other._next_id = before._segments, before._next_id
        return other

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        self.refusals.look(name)
        return await super().create(name, attributes)

    async def seal(self, name: str) -> int:
        self.refusals.look(name)
        return await super().seal(name)

    async def truncate(self, name: str, offset: int) -> None:
        self.refusals.look(name)
        await super().truncate(name, offset)

    async def delete(self, name: str) -> None:
        self.refusals.look(name)
        await super().delete(name)

    async def info(self, name: str) -> SegmentProperties:
        self.refusals.look(name)
        return await super().info(name)

    async def merge_all(
        self, target: str, sources: Sequence[str], *, seal_sources: bool = False
    ) -> Sequence[int]:
        self.refusals.look(target)
        return await super().merge_all(target, sources, seal_sources=seal_sources)
