"""The verbs of tables for a store that has none: its worlds have no keepers of tables."""

from contextlib import AbstractAsyncContextManager

from segmentstore.contracts.tables import Table


class NoTables:
    """Fills the door of a container where nobody goes through it."""

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        raise NotImplementedError(f"no tables here name={name!r}")

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        raise NotImplementedError(f"no tables here name={name!r} key_length={key_length}")

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        raise NotImplementedError(f"no tables here name={name!r} must_be_empty={must_be_empty}")
