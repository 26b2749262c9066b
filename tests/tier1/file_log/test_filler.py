"""How a journal is made of zeros beside logs that are synced meanwhile."""

from collections.abc import Sequence
from pathlib import Path

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import SystemFile, SystemFileSystem
from tier1.file_log.journals import JournalFiller

KIB = 1 << 10
STEP_BYTES, SIZE_BYTES = 768 * KIB, 2048 * KIB


class NotedFile(SystemFile):
    """Says what became of it."""

    def __init__(self, descriptor: int, notes: list[tuple[str, int]]) -> None:
        super().__init__(descriptor)
        self._notes = notes

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        length = sum(map(len, buffers))
        if length:
            self._notes.append(("through the cache", length))
        super().write_at(offset, buffers)

    def write_direct(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._notes.append(("past the cache", sum(map(len, buffers))))
        super().write_direct(offset, buffers)

    def sync_data(self) -> None:
        self._notes.append(("sync", self.size()))
        super().sync_data()


class NotedFiles(SystemFileSystem):
    """Makes such files."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, int]] = []

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        file = super().open(path, create=create, exclusive=exclusive)
        return NotedFile(file.release(), self.notes)

    def sync_directory(self, path: str) -> None:
        self.notes.append(("sync of the name", 0))
        super().sync_directory(path)


def test_h49_a_journal_is_zeros_that_are_synced_a_step_at_a_time(tmp_path: Path) -> None:
    files = NotedFiles()
    path = tmp_path / "journal"
    filler = JournalFiller(str(path), SIZE_BYTES, step_bytes=STEP_BYTES, files=files)
    steps = [filler.step() for _ in range(3)]
    assert steps[:2] == [None, None]
    journal = steps[2]
    assert journal is not None
    assert path.read_bytes() == bytes(SIZE_BYTES)
    synced = [size for what, size in files.notes if what == "sync"]
    assert synced == [STEP_BYTES, 2 * STEP_BYTES, SIZE_BYTES]
    assert files.notes[-2:] == [("sync", SIZE_BYTES), ("sync of the name", 0)]
    journal.close()


def test_a_journal_is_filled_past_the_cache_in_short_writes(tmp_path: Path) -> None:
    """A log that is synced meanwhile waits for one of them at most."""
    files = NotedFiles()
    filler = JournalFiller(
        str(tmp_path / "journal"), SIZE_BYTES, step_bytes=STEP_BYTES, files=files
    )
    while (journal := filler.step()) is None:
        pass
    written = [length for what, length in files.notes if what == "past the cache"]
    assert sum(written) == SIZE_BYTES
    assert max(written) <= 256 * KIB
    assert isinstance(journal.file, SystemFile)
    assert journal.file.direct is None, "two megabytes of memory stay with every journal"
    journal.close()
