"""The whole store as one TableApi: every verb goes to the container that owns the table's name.

A name is checked before it is hashed, and always goes to the same container (H60, H62).
"""

from contextlib import AbstractAsyncContextManager

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.tables import Table
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.segment_names import check_segment_name


class TableStore:
    """Routes by name. Owns nothing; the containers are the registry's."""

    def __init__(self, *, registry: ContainerRegistry) -> None:
        self._registry = registry

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        return self._container(name).open_table(name)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        await self._container(name).create_table(name, key_length=key_length)

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        await self._container(name).delete_table(name, must_be_empty=must_be_empty)

    def _container(self, name: str) -> SegmentContainer:
        check_segment_name(name)
        return self._registry.get(container_of(name, self._registry.container_count))
