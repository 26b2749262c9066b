"""One atomic change of a metadata table, put together before it is written; and the keys of records with their type.

Invariants:

- A record is put or removed under the version at which it was read; a batch that meets another version changes nothing.
- Names of indexes are added and removed without a version: adding a name that is there, or removing one that is not,
  is no change. Whether a thing exists is said by its record, which stands in the same batch.
- A removal is written as an empty value, because a batch of a table sets values only; the empty values are taken out
  of the table afterwards, and read as absent until then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from segmentstore.codec.controller_records.record_fields import Record
from segmentstore.codec.controller_records.record_keys import REMOVED
from segmentstore.contracts.tables import NOT_EXISTS

RecordType = TypeVar("RecordType", bound=Record)


@dataclass(frozen=True, slots=True)
class RecordKey(Generic[RecordType]):
    """Where a record stands in its table, and how its bytes are read."""

    text: str
    decode: Callable[[bytes], RecordType]

    @property
    def content(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True, slots=True)
class Versioned(Generic[RecordType]):
    """What stands under a key; hand `version` back to say "unchanged since"."""

    record: RecordType | None = None
    """None: there is none."""
    version: int = NOT_EXISTS
    """Also of an absent record: a removed one may have left a marker with a version of its own."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A new value of a key, and the version that it replaces."""

    key: bytes
    value: bytes
    expected_version: int


@dataclass(slots=True)
class Batch:
    """Records and index names that change together, or not at all."""

    changes: list[RecordChange] = field(default_factory=list)
    added_names: dict[str, list[str]] = field(default_factory=dict)
    """Index -> names."""
    removed_names: dict[str, list[str]] = field(default_factory=dict)
    closed_indexes: list[str] = field(default_factory=list)
    empty_indexes: list[str] = field(default_factory=list)
    """Those that have to be empty, and stay open."""
    _changed_keys: set[bytes] = field(default_factory=set)

    def put(
        self, key: RecordKey[RecordType], record: RecordType, replacing: Versioned[RecordType]
    ) -> None:
        """Set a record; refused at the commit if it is no longer the one of `replacing`."""
        self._change(key, record, replacing.version)

    def remove(self, key: RecordKey[RecordType], replacing: Versioned[RecordType]) -> None:
        """Remove a record; refused at the commit if it is no longer the one of `replacing`."""
        if replacing.record is not None:
            self._change(key, None, replacing.version)

    def list_name(self, index: str, name: str) -> None:
        """Add a name to an index."""
        self.added_names.setdefault(index, []).append(name)

    def unlist_name(self, index: str, name: str) -> None:
        """Take a name out of an index."""
        self.removed_names.setdefault(index, []).append(name)

    def close_index(self, index: str) -> None:
        """Let an index take no names any more; refused at the commit if it has any."""
        self.closed_indexes.append(index)

    def require_empty(self, index: str) -> None:
        """Be refused at the commit if this index, of which the batch changes nothing, holds a name."""
        self.empty_indexes.append(index)

    def indexes(self) -> list[str]:
        """Every index that it is about, in order of name."""
        return sorted(
            {*self.added_names, *self.removed_names, *self.closed_indexes, *self.empty_indexes}
        )

    def _change(self, key: RecordKey[RecordType], record: Record | None, version: int) -> None:
        value = REMOVED if record is None else record.encode()
        content = key.content
        assert content not in self._changed_keys, (
            f"a batch changes one record twice key={key.text!r}"
        )
        self._changed_keys.add(content)
        self.changes.append(RecordChange(content, value, version))
