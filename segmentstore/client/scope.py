"""A scope: the name space of streams, tables and reader groups."""

from collections.abc import Sequence

from segmentstore.client.controller import Controller
from segmentstore.client.controller_tables import TableCalls
from segmentstore.codec.stream_names import READER_GROUP_PREFIX, is_user_name


class Scope:
    """Cheap to make; nothing to close."""

    def __init__(self, name: str, *, controller: Controller) -> None:
        self.name = name
        self._controller = controller
        self._tables = TableCalls(controller, name)

    async def create(self) -> None:
        """Raises AlreadyExistsError, InvalidRequestError for the name."""
        await self._controller.create_scope(self.name)

    async def delete(self) -> None:
        """Raises NotFoundError, NotEmptyError."""
        await self._controller.delete_scope(self.name)

    async def streams(self, *, tag: str | None = None) -> Sequence[str]:
        """Names of the streams that users made, in order. Raises NotFoundError."""
        found = await self._controller.list_streams(self.name, tag=tag)
        return sorted(name for name in found if is_user_name(name))

    async def tables(self) -> Sequence[str]:
        """Names of the key-value tables, in order. Raises NotFoundError."""
        return sorted(await self._tables.list())

    async def reader_groups(self) -> Sequence[str]:
        """Names of the reader groups, in order. Raises NotFoundError."""
        found = await self._controller.list_streams(self.name)
        return sorted(
            name.removeprefix(READER_GROUP_PREFIX)
            for name in found
            if name.startswith(READER_GROUP_PREFIX)
        )
