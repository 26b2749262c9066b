"""What a partition needs of Tier 2: images of files made, kept under keys, and read block by block.

The bytes of a file are Tier 2's affair (tier2/format/record_file.py), and so is where objects lie; a partition knows
batches, offsets, times and keys. A block is given as batches again, as consumers read them.

Guarantees:

- put() creates: of two that put the same key one is refused, and what is there is never replaced.
- A put that failed may have happened, or may happen later.
- What blocks() and batches() give was checked. Bytes that are damaged are read once more, and then refused, with one
  event in the log for each block; the blocks beside it are given.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from segmentstore.codec.topic_files import RegisteredFile
from segmentstore.contracts.identifiers import BufferView


class FileCompression(Enum):
    """What the blocks of a file are compressed by."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class FileForm:
    """How a file is to be made."""

    compression: FileCompression
    level: int
    """Of Zstandard; of no meaning else."""
    log_append_time: bool
    """Whether the times of all its records are those of the append."""
    created_ms: int


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file in memory."""

    image: BufferView
    first_offset: int
    end_offset: int
    """Exclusive."""
    record_count: int
    lowest_ms: int
    highest_ms: int
    release: Callable[[], None] = lambda: None
    """To be called once the image is stored, if it is: its memory is used for other files then."""


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block as the file's index has it."""

    first_offset: int
    end_offset: int
    """Where the next block, or the file, begins to answer or ends to."""
    highest_ms: int
    byte_count: int
    """Of its records, not compressed."""


class UnfitBatchError(Exception):
    """No file can hold the records of a batch: they cannot be decoded, or one is larger than a block may be."""

    def __init__(self, base_offset: int, why: str) -> None:
        super().__init__(f"the records of a batch fit no file offset={base_offset}: {why}")
        self.base_offset = base_offset


class NewestOffsets(Protocol):
    """The newest offset of each key that was noted, with bounded memory."""

    end_offset: int
    """All records below it were noted, by this pass or by older ones."""


class RecordFiles(Protocol):
    """Files of records in Tier 2. Calls that reach it raise StorageError, puts and deletions also StorageFullError."""

    async def make(self, batches: AsyncIterator[BufferView], form: FileForm) -> MadeFile:
        """Of whole batches, as a partition has them, at least one, which come in pieces: none is used any more when the
        next one is asked for. Not on the loop. Raises UnfitBatchError, and what the iterator raises."""

    async def put(self, key: str, image: BufferView) -> None:
        """Raises ObjectExistsError."""

    async def exists(self, key: str) -> bool: ...

    async def delete(self, key: str) -> bool:
        """False if a backup keeps it; a later sweep finds it again. One that is not there is none."""

    def keys(self, prefix: str) -> AsyncGenerator[str, None]:
        """In order; may be stale. Hold it in `aclosing`."""

    async def blocks(self, key: str, file: RegisteredFile) -> Sequence[FileBlock]:
        """One, of what is a batch and no file of records. Raises ObjectNotFoundError, CorruptedDataError."""

    def newest_offsets(self, *, start_offset: int, secret: bytes) -> NewestOffsets:
        """Nothing noted yet; older passes have noted what is below `start_offset`."""

    async def note_keys(self, key: str, file: RegisteredFile, newest: NewestOffsets) -> bool:
        """The keys of a file's records, or False: of some of them, as many as there was room for.

        Raises ObjectNotFoundError, CorruptedDataError.
        """

    async def surviving(
        self,
        key: str,
        file: RegisteredFile,
        newest: NewestOffsets,
        *,
        tombstones_end: int,
        keeps_last: bool,
        form: FileForm,
    ) -> MadeFile | None:
        """Another file of the same range, without records that newer ones supersede; None if there are none of these.

        `keeps_last`: its last record stays, whatever it is.
        `form.log_append_time` has no meaning: it stays as it is. Raises ObjectNotFoundError, CorruptedDataError.
        """

    async def batches(self, key: str, file: RegisteredFile, number: int) -> bytes:
        """Whole batches with the records of a block. Raises ObjectNotFoundError, CorruptedDataError."""

    def read_ahead(self, key: str, file: RegisteredFile, number: int, room: int) -> None:
        """Begin to read blocks that batches() will be asked for: from that number on, until they have `room` bytes.

        Nothing is promised: fewer are read where memory or other reads leave no room, and what fails is told to those
        who ask for the block.
        """
