"""A key of a metadata table together with the type of the record behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from segmentstore.codec.stream_records.record_fields import Record
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
