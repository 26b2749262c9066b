"""For operators: what lies in Tier 2, and bringing it up to date."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import (
    INT64,
    TEXT,
    Field,
    FieldCursor,
    Int32,
    Int64,
    Text,
    list_of,
)


@dataclass(frozen=True, slots=True)
class StorageChunk:
    """One chunk of a segment.

    Bytes: length in the metadata (8), length in storage (8), start offset (8), name (text), exists (1).
    """

    metadata_length: int
    storage_length: int
    start_offset: int
    name: str
    exists: bool


def _write_chunk(chunk: StorageChunk) -> bytes:
    return b"".join(
        (
            INT64.write(chunk.metadata_length),
            INT64.write(chunk.storage_length),
            INT64.write(chunk.start_offset),
            TEXT.write(chunk.name),
            bytes((chunk.exists,)),
        )
    )


def _read_chunk(cursor: FieldCursor) -> StorageChunk:
    return StorageChunk(
        cursor.int64(), cursor.int64(), cursor.int64(), cursor.text(), cursor.int8() != 0
    )


StorageChunks: TypeAlias = Annotated[
    Sequence[StorageChunk], list_of(Field(_write_chunk, _read_chunk), item_bytes_min=27)
]


@dataclass(frozen=True, slots=True)
class FlushToStorage(Command):
    """Bring Tier 2 up to date with everything acknowledged. Answer: StorageFlushed."""

    type: ClassVar[int] = -3
    container_id: Int32
    delegation_token: Text
    request_id: Int64


@dataclass(frozen=True, slots=True)
class StorageFlushed(Command):
    """Everything acknowledged before the request is in Tier 2."""

    type: ClassVar[int] = -4
    request_id: Int64


@dataclass(frozen=True, slots=True)
class ListStorageChunks(Command):
    """Answer: StorageChunksListed."""

    type: ClassVar[int] = -5
    segment: Text
    delegation_token: Text
    request_id: Int64


@dataclass(frozen=True, slots=True)
class StorageChunksListed(Command):
    """The chunks of a segment in offset order."""

    type: ClassVar[int] = -6
    request_id: Int64
    chunks: StorageChunks
