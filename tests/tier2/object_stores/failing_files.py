"""The system's files, except that a chosen call fails: a wrapper round the door, for errors that disks rarely give."""

import errno
from collections.abc import Callable, Sequence

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.files import File, SystemFileSystem

Fault = Callable[[str, str], None]


class CallLog:
    """Counts calls as (verb, path) and raises an error at the chosen one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fail_at: int | None = None
        self.fail_verb: str | None = None
        self.error_number = errno.EIO
        self.open_files = 0

    def reset(self) -> None:
        self.calls.clear()
        self.fail_at = None
        self.fail_verb = None

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]

    def note(self, verb: str, path: str) -> None:
        place = len(self.calls)
        self.calls.append((verb, path))
        if place == self.fail_at or verb == self.fail_verb:
            raise OSError(self.error_number, f"injected into {verb}", path)


class FailingFile:
    def __init__(self, file: File, path: str, log: CallLog) -> None:
        self._file = file
        self._path = path
        self._log = log
        log.open_files += 1

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._log.note("write_at", self._path)
        self._file.write_at(offset, buffers)

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._log.note("write_at", self._path)
        self._log.note("sync_data", self._path)
        self._file.write_synced(offset, buffers)

    def write_direct(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self._log.note("write_direct", self._path)
        self._file.write_direct(offset, buffers)

    def read_at(self, offset: int, length: int) -> bytes:
        self._log.note("read_at", self._path)
        return self._file.read_at(offset, length)

    def read_into(self, offset: int, target: memoryview) -> int:
        self._log.note("read_at", self._path)
        return self._file.read_into(offset, target)

    def size(self) -> int:
        self._log.note("file_size", self._path)
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._log.note("truncate", self._path)
        self._file.truncate(size)

    def sync_data(self) -> None:
        self._log.note("sync_data", self._path)
        self._file.sync_data()

    def start_writeback(self, start: int, length: int) -> None:
        self._log.note("start_writeback", self._path)
        self._file.start_writeback(start, length)

    def drop_page_cache(self, start: int = 0, length: int = 0) -> None:
        self._log.note("drop_page_cache", self._path)
        self._file.drop_page_cache(start, length)

    def lock_exclusive(self) -> bool:
        self._log.note("lock_exclusive", self._path)
        return self._file.lock_exclusive()

    def close(self) -> None:
        self._log.open_files -= 1
        self._file.close()


class FailingFileSystem:
    """Fails before the call takes effect, except sync_directory's, which is the one that leaves doubt."""

    def __init__(self) -> None:
        self.log = CallLog()
        self._files = SystemFileSystem()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> FailingFile:
        self.log.note("open", path)
        return FailingFile(
            self._files.open(path, create=create, exclusive=exclusive), path, self.log
        )

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def size(self, path: str) -> int:
        self.log.note("size", path)
        return self._files.size(path)

    def list(self, path: str) -> list[str]:
        self.log.note("list", path)
        return self._files.list(path)

    def make_directories(self, path: str) -> None:
        self.log.note("make_directories", path)
        self._files.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        self.log.note("rename", target)
        self._files.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.log.note("link", target)
        self._files.link(source, target)

    def remove(self, path: str) -> None:
        self.log.note("remove", path)
        self._files.remove(path)

    def remove_directory(self, path: str) -> None:
        self._files.remove_directory(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path)

    def sync_directory(self, path: str) -> None:
        self._files.sync_directory(path)
        self.log.note("sync_directory", path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)
