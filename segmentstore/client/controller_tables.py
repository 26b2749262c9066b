"""What the client asks of the controller about key-value tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.client.controller import Controller, ranges_of
from segmentstore.client.controller_channel import check_status
from segmentstore.client.key_space import SegmentRange
from segmentstore.codec.controller_api import controller_pb2 as messages


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The shape of a table's keys, fixed for its life; lengths in bytes."""

    primary_key_length: int
    """Keys with the same primary part are in one partition."""
    secondary_key_length: int = 0
    partitions: int = 1

    @property
    def key_length(self) -> int:
        """Both parts together: the length of every key."""
        return self.primary_key_length + self.secondary_key_length


class TableCalls:
    """Key-value tables of one scope."""

    def __init__(self, controller: Controller, scope: str) -> None:
        self._controller = controller
        self._scope = scope

    async def create(self, table: str, config: TableConfig) -> None:
        """Raises AlreadyExistsError, NotFoundError for the scope."""
        name = f"{self._scope}/{table}"
        answer = await self._controller.channel.ask(
            "createKeyValueTable",
            messages.KeyValueTableConfig(
                scope=self._scope,
                kvtName=table,
                partitionCount=config.partitions,
                primaryKeyLength=config.primary_key_length,
                secondaryKeyLength=config.secondary_key_length,
            ),
            messages.CreateKeyValueTableStatus,
            what="table",
            name=name,
            repeatable=False,
        )
        check_status(answer, what="table", name=name)

    async def delete(self, table: str) -> None:
        """Raises NotFoundError."""
        name = f"{self._scope}/{table}"
        answer = await self._controller.channel.ask(
            "deleteKeyValueTable",
            self._info(table),
            messages.DeleteKVTableStatus,
            what="table",
            name=name,
            repeatable=False,
        )
        check_status(answer, what="table", name=name)

    async def config(self, table: str) -> TableConfig:
        """Raises NotFoundError."""
        name = f"{self._scope}/{table}"
        answer = await self._controller.channel.ask(
            "getKeyValueTableConfiguration",
            self._info(table),
            messages.KeyValueTableConfigResponse,
            what="table",
            name=name,
        )
        check_status(answer, what="table", name=name)
        return TableConfig(
            primary_key_length=answer.config.primaryKeyLength,
            secondary_key_length=answer.config.secondaryKeyLength,
            partitions=answer.config.partitionCount,
        )

    async def segments(self, table: str) -> Sequence[SegmentRange]:
        """The partitions."""
        answer = await self._controller.channel.ask(
            "getCurrentSegmentsKeyValueTable",
            self._info(table),
            messages.SegmentRanges,
            what="table",
            name=f"{self._scope}/{table}",
        )
        return ranges_of(answer.segmentRanges)

    async def list(self) -> Sequence[str]:
        """The tables of the scope."""
        found: list[str] = []
        token = ""
        while True:
            answer = await self._controller.channel.ask(
                "listKeyValueTablesInScope",
                messages.KVTablesInScopeRequest(
                    scope=messages.ScopeInfo(scope=self._scope),
                    continuationToken=messages.ContinuationToken(token=token),
                ),
                messages.KVTablesInScopeResponse,
                what="scope",
                name=self._scope,
            )
            check_status(answer, what="scope", name=self._scope)
            found.extend(each.kvtName for each in answer.kvtables)
            if not answer.kvtables or answer.continuationToken.token == token:
                return found
            token = answer.continuationToken.token

    def _info(self, table: str) -> messages.KeyValueTableInfo:
        return messages.KeyValueTableInfo(scope=self._scope, kvtName=table)
