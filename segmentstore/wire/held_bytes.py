"""What a request counts for while it is under way: what one connection has of it has a bound.

- held_bytes() of a command is the same whenever it is asked: what was added is taken off again.
- No request counts for nothing: OVERHEAD_BYTES stand for the objects that are kept for it, and for each item of a list.
- All that can make a request long counts, but for names, which have 64 KiB at most.
"""

from collections.abc import Sequence

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.segments import MergeSegments, MergeSegmentsBatch
from segmentstore.codec.wire_protocol.tables import (
    ReadTable,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import TableEntry
from segmentstore.wire.settings import OVERHEAD_BYTES


def held_bytes(command: Command) -> int:
    """O(items of its lists)."""
    token = len(getattr(command, "delegation_token", ""))
    match command:
        case UpdateTableEntries():
            return token + held_bytes_of_entries(command.entries)
        case RemoveTableKeys() | ReadTable():
            return token + _held(len(command.keys), sum(len(each.key) for each in command.keys))
        case ReadTableKeys() | ReadTableEntries():
            bounds = command.iterator
            keys = (bounds.token, bounds.prefix, bounds.first_key, bounds.last_key)
            return token + _held(1, sum(map(len, keys)))
        case MergeSegments():
            return token + _held(len(command.attribute_changes), 0)
        case MergeSegmentsBatch():
            return token + _held(len(command.sources), sum(map(len, command.sources)))
    return token + OVERHEAD_BYTES


def held_bytes_of_entries(entries: Sequence[TableEntry]) -> int:
    """Of one update of them; for entries that are not none, also of one update for each."""
    return _held(len(entries), sum(len(entry.key) + len(entry.value) for entry in entries))


def _held(item_count: int, byte_count: int) -> int:
    return OVERHEAD_BYTES * max(item_count, 1) + byte_count
