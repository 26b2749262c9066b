"""Rows of `readerGroups`: the controller's records, from the tables of the scopes.

table of the group's scope      record `group/<group>`
table of the stream's scope     record `consumed/<stream>/<scope of the group>/<group>`, if the group said something
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from segmentstore.codec.stream_records.reader_group_record import (
    ConsumedCutRecord,
    GroupCut,
    ReaderGroupRecord,
)
from segmentstore.codec.stream_records.record_places import REMOVED
from segmentstore.spark.errors import StreamMissingError
from segmentstore.spark.metadata_tables.table_rows import Row, position_of
from segmentstore.spark.published_streams import PublishedStreams

_KIND: Final = "group/"


async def reader_group_rows(
    published: PublishedStreams, *, scope: str, stream: str
) -> AsyncGenerator[Row, None]:
    """Of all groups in a scope; with `stream` the rows of that stream only. Hold it in `aclosing`.

    Raises StreamMissingError if there is no such scope, StorageError.
    """
    table = await published.scope_table(scope)
    async with aclosing(table.scan(_KIND)) as entries:
        async for key, value in entries:
            if value == REMOVED:
                continue
            group, record = key.removeprefix(_KIND), ReaderGroupRecord.decode(value)
            # A group without streams has a row as well.
            for cut in record.starting_cuts or (GroupCut("", "", {}),):
                if stream and (cut.scope, cut.stream) != (scope, stream):
                    continue
                consumed = await _consumed(published, cut, scope=scope, group=group)
                yield reader_group_row(scope, group, record, cut, consumed)


def reader_group_row(
    scope: str,
    group: str,
    record: ReaderGroupRecord,
    cut: GroupCut,
    consumed: ConsumedCutRecord | None,
) -> Row:
    """A group and one of its streams."""
    ending = {(each.scope, each.stream): each.offsets for each in record.ending_cuts}
    ends = ending.get((cut.scope, cut.stream))
    # What an earlier group of that name consumed does not count.
    counts = consumed is not None and consumed.group_id == record.group_id
    return {
        "scope": scope,
        "reader_group": group,
        "state": record.state.name,
        "group_id": record.group_id,
        "generation": record.generation,
        "retention": record.retention_type.name,
        "stream_scope": cut.scope or None,
        "stream": cut.stream or None,
        "starting_offsets": position_of(cut.offsets) if cut.offsets else None,
        "ending_offsets": position_of(ends) if ends else None,
        "consumed_offsets": position_of(consumed.offsets) if consumed and counts else None,
    }


async def _consumed(
    published: PublishedStreams, cut: GroupCut, *, scope: str, group: str
) -> ConsumedCutRecord | None:
    try:
        table = await published.scope_table(cut.scope)
    except StreamMissingError:
        return None
    value = (await table.get([f"consumed/{cut.stream}/{scope}/{group}"]))[0]
    return ConsumedCutRecord.decode(value) if value else None
