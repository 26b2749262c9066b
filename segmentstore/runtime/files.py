"""Files, directories, locks and syncs, with exactly the calls that durability needs; writes past the page cache.

File and FileSystem are the interface, SystemFile and SystemFileSystem the real implementation. All calls block and are
made from an executor (`loop.run_in_executor`), never on the loop; the simulation runs them inline after a seeded delay.
Errors are OSError as the system gives them; translating them is the caller's business.

Rules the simulated disk holds callers to: bytes written and not yet synced persist page by page in any subset; a
new file's name persists only after sync_directory(); a failed sync may have dropped the bytes although the next
one says OK.

Two kinds of writes go past the system's cache of files: long stretches (DirectWriter), and single pages that are synced
at once (SyncedPageWriter). A page of the cache costs its copy and, where the machine hands memory out only when it is
touched, several times that: 0.7 s of CPU per GB of a volume, against 0.15 s for a copy into memory that is used again
and again. And a page is synced sooner when it need not be put into the cache, marked, found and written back.

- Only whole pages go past the cache, and none with a byte from elsewhere: no page is written both ways at a time.
- A descriptor that others use writes through the cache again when a call ends.
- One call of `DirectWriter` at a time; several of `SyncedPageWriter` do not disturb each other.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Protocol

from segmentstore.contracts.identifiers import BufferView

_IOV_MAX = 1024

_WRITE_AND_SYNC: int = getattr(os, "RWF_DSYNC", 0)
"""Flag of a write that returns when its bytes are synced; 0 where the system has none."""

NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
"""A full disk, and a full quota: may pass when something is deleted."""

_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""What file systems and kernels answer to a kind of write that they do not have; nothing is written then."""

PAGE_BYTES = 4096
"""Place and length of direct writes are multiples of it, as file systems and disks want it."""

_DIRECT_STEP_BYTES = 2 << 20

_HOLDER_BYTES_MAX = 256
_UNFINISHED_SUFFIX = ".unfinished"


class File(Protocol):
    """An open file. Offsets are absolute; there is no file position."""

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        """Write all buffers one behind the other; short writes are continued."""

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        """As write_at and sync_data, for what this call writes and no byte written before; one system call if possible.

        After an error any part of it may have been written, and nothing counts as synced.
        """

    def write_direct(self, offset: int, buffers: Sequence[BufferView]) -> None:
        """As write_at, for long stretches that are not read soon: the system need not keep them in memory.

        One call at a time, and no write_at of this file meanwhile.
        """

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """As read_at, into memory of the caller: how many bytes of `target` are filled."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync_data(self) -> None:
        """fdatasync: contents and what is needed to read them back (the size)."""

    def start_writeback(self, start: int, length: int) -> None:
        """Ask the system to begin to bring these bytes to the disk, and go on: the sync has less to wait for then."""

    def drop_page_cache(self, start: int = 0, length: int = 0) -> None:
        """Ask the system to drop what it caches of the synced contents: the next read is the disk's own answer.

        Of `length` bytes from `start` on; a length of 0 means up to the end.
        """

    def lock_exclusive(self) -> bool:
        """Take the advisory lock of this open file without waiting; False if another process holds it.
        It is released when the file is closed or the process ends (and not while it is merely stopped)."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Files by absolute path."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> File:
        """Open for reading and writing. create: make it if missing; exclusive: FileExistsError if it exists."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def make_directories(self, path: str) -> None:
        """With parents; every directory created is durable (parents synced) on return."""

    def rename(self, source: str, target: str) -> None:
        """Atomically replace target. Durable after sync_directory() of the parent."""

    def link(self, source: str, target: str) -> None:
        """Second name for a file; FileExistsError if target exists. Durable after sync_directory()."""

    def remove(self, path: str) -> None:
        """FileNotFoundError if missing."""

    def remove_directory(self, path: str) -> None:
        """Must be empty."""

    def is_directory(self, path: str) -> bool: ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int:
        """Space left for us on the file system that holds `path`."""


class SystemFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.direct: DirectWriter | None = None
        """Made when it is first needed."""
        self._direct_is_refused = False
        self._pages: SyncedPageWriter | None = None
        """Made when it is first needed, too."""
        self._synced_page_is_refused = not _WRITE_AND_SYNC or not hasattr(os, "O_DIRECT")
        self._synced_write_is_refused = False

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        for first in range(0, len(buffers), _IOV_MAX):
            group = buffers[first : first + _IOV_MAX]
            wanted = sum(len(buffer) for buffer in group)
            written = os.pwritev(self._descriptor, group, offset)
            if written < wanted:
                self._write_rest(offset, group, written)
            offset += wanted

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        if (
            len(buffers) == 1
            and len(buffers[0]) == PAGE_BYTES
            and not offset % PAGE_BYTES
            and not self._synced_page_is_refused
            and self._write_synced_page(offset, buffers)
        ):
            return
        # Between two calls a thread gives the interpreter away and has to get it back: up to a switch interval.
        if _WRITE_AND_SYNC and not self._synced_write_is_refused and len(buffers) <= _IOV_MAX:
            wanted = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
            try:
                written = os.pwritev(self._descriptor, buffers, offset, _WRITE_AND_SYNC)
            except OSError as error:
                if error.errno not in _UNSUPPORTED_ERRNOS:
                    raise
                self._synced_write_is_refused = True  # by the file system or an old kernel
            else:
                if written < wanted:
                    self._write_rest(offset, buffers, written)
                    self.sync_data()
                return
        self.write_at(offset, buffers)
        self.sync_data()

    def _write_synced_page(self, offset: int, buffers: Sequence[BufferView]) -> bool:
        """False, and nothing is written, where whole pages cannot go past the cache."""
        if self._pages is None:
            try:
                self._pages = SyncedPageWriter(self._descriptor)
            except OSError:
                # No /proc, or no such file system: whatever it is, the other way shows whether the file is sound.
                self._synced_page_is_refused = True
                return False
        try:
            written = self._pages.write(offset, buffers[0])
        except OSError as error:
            if error.errno not in _UNSUPPORTED_ERRNOS:
                raise
            self._synced_page_is_refused = True
            return False
        if written < PAGE_BYTES:
            self._write_rest(offset, buffers, written)
            self.sync_data()
        return True

    def _write_rest(self, offset: int, group: Sequence[BufferView], written: int) -> None:
        rest = memoryview(b"".join(group))
        while written < len(rest):
            step = os.pwrite(self._descriptor, rest[written:], offset + written)
            if step == 0:
                raise OSError(errno.EIO, "write made no progress")
            written += step

    def write_direct(self, offset: int, buffers: Sequence[BufferView]) -> None:
        length = sum(len(buffer) for buffer in buffers)
        begin = -offset % PAGE_BYTES
        end = length - (offset + length) % PAGE_BYTES
        if begin >= end or self._direct_is_refused:
            self.write_at(offset, buffers)
            return
        head, rest = _split_buffers(buffers, begin)
        pages, tail = _split_buffers(rest, end - begin)
        self.write_at(offset, head)
        self._write_pages(offset + begin, pages)
        self.write_at(offset + end, tail)

    def _write_pages(self, offset: int, pages: Sequence[BufferView]) -> None:
        if self.direct is None:
            self.direct = DirectWriter()
        try:
            self.direct.write(self._descriptor, offset, pages)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct_is_refused = True
            self.write_at(offset, pages)

    def read_at(self, offset: int, length: int) -> bytes:
        content = os.pread(self._descriptor, length, offset)
        if len(content) == length or not content:
            return content
        parts = [content]
        have = len(content)
        while have < length:
            part = os.pread(self._descriptor, length - have, offset + have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    def read_into(self, offset: int, target: memoryview) -> int:
        have = 0
        while have < len(target):
            step = os.preadv(self._descriptor, [target[have:]], offset + have)
            if not step:
                break
            have += step
        return have

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync_data(self) -> None:
        os.fdatasync(self._descriptor)

    def start_writeback(self, start: int, length: int) -> None:
        # What this advice does to pages that are not written yet: their writing begins, and they stay.
        os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_DONTNEED)

    def drop_page_cache(self, start: int = 0, length: int = 0) -> None:
        os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_DONTNEED)

    def lock_exclusive(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def descriptor(self) -> int:
        """For a process that is started with it: a lock on this file is free when both have closed it."""
        return self._descriptor

    def release(self) -> int:
        """Give the descriptor away: this object closes it no more."""
        self._close_pages()
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def close(self) -> None:
        self.direct = None  # Its memory is freed after the last write from it.
        self._close_pages()
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _close_pages(self) -> None:
        if self._pages is not None:
            pages, self._pages = self._pages, None
            pages.close()


def _split_buffers(
    buffers: Sequence[BufferView], length: int
) -> tuple[list[BufferView], list[BufferView]]:
    """The first `length` bytes, and the others; nothing is copied."""
    for number, buffer in enumerate(buffers):
        if len(buffer) > length:
            view = memoryview(buffer)
            return (
                [*buffers[:number], view[:length]],
                [view[length:], *buffers[number + 1 :]],
            )
        length -= len(buffer)
    return list(buffers), []


class SystemFileSystem:
    """The operating system's files. Descriptors are close-on-exec (Python's default), so locks are not inherited."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return SystemFile(os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        # Behind every sync of a log this is asked: stat would make an object, or an exception, only to be dropped.
        return os.access(path, os.F_OK, follow_symlinks=False)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directories(parent)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        self.sync_directory(parent)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class LockHeldError(Exception):
    """Another open file has the lock."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the lock is held holder={holder!r}")
        self.holder = holder
        """What its holder wrote into the file; `unknown` if that is nothing."""


def lock_file(files: FileSystem, path: str, *, holder: str) -> File:
    """The file at `path`, made if it is missing, with its lock; from then on its text says which process holds it.

    The lock is free when the file is closed or the process has ended, in whatever way; a stopped process still holds
    it. The file is never removed: a lock on a file without a name locks nothing. Raises LockHeldError.
    """
    lock = files.open(path, create=True)
    try:
        if not lock.lock_exclusive():
            text = lock.read_at(0, _HOLDER_BYTES_MAX).decode(errors="replace").strip()
            raise LockHeldError(text or "unknown")
        lock.truncate(0)
        lock.write_at(0, [f"{holder}\n".encode()[:_HOLDER_BYTES_MAX]])
    except BaseException:
        lock.close()
        raise
    return lock


def read_whole(files: FileSystem, path: str) -> bytes:
    """All of a file that fits into memory. Raises FileNotFoundError."""
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def create_whole(files: FileSystem, path: str, content: BufferView, *, random: Random) -> None:
    """Make a file with all of its content; durable on return. Raises FileExistsError, and what is there stays as it is.

    It gets its name by a link, when all of it is synced: no reader sees a part of it, and of several that make it at
    once one wins. What a kill leaves behind is for `remove_unfinished`.
    """
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/.{name}-{random.randbytes(8).hex()}{_UNFINISHED_SUFFIX}"
    file = files.open(beside, create=True, exclusive=True)
    try:
        file.write_at(0, [content])
        file.sync_data()
    finally:
        file.close()
    try:
        files.link(beside, path)
    finally:
        files.remove(beside)
    files.sync_directory(folder)


def remove_unfinished(files: FileSystem, folder: str) -> None:
    """What `create_whole` left in a directory when it was killed. The caller alone uses the directory."""
    for name in files.list(folder):
        if name.startswith(".") and name.endswith(_UNFINISHED_SUFFIX):
            with suppress(FileNotFoundError):
                files.remove(f"{folder}/{name}")


class DirectWriter:
    """Writes long stretches past the cache. Holds 2 MiB of memory."""

    def __init__(self) -> None:
        # Page-aligned, as direct writes want their memory too.
        self._view = memoryview(mmap.mmap(-1, _DIRECT_STEP_BYTES))

    def write(self, descriptor: int, offset: int, buffers: Sequence[BufferView]) -> None:
        """Write the buffers one behind the other; `offset` and their sum are multiples of PAGE_BYTES.

        Raises OSError: EINVAL, before anything is written, where the file system only writes through its cache.
        """
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        try:
            filled = 0
            for buffer in buffers:
                rest = memoryview(buffer)
                while rest:
                    piece = rest[: _DIRECT_STEP_BYTES - filled]
                    self._view[filled : filled + len(piece)] = piece
                    rest = rest[len(piece) :]
                    filled += len(piece)
                    if filled == _DIRECT_STEP_BYTES:
                        offset += self._write_step(descriptor, offset, filled)
                        filled = 0
            self._write_step(descriptor, offset, filled)
        finally:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)

    def _write_step(self, descriptor: int, offset: int, length: int) -> int:
        written = 0
        while written < length:
            # A short write ends on a page, or the next one fails.
            written += os.pwrite(descriptor, self._view[written:length], offset + written)
        return length


class SyncedPageWriter:
    """Writes single pages past the cache, each synced. Holds a page of memory and a descriptor of the file's own, until
    close()."""

    def __init__(self, descriptor: int) -> None:
        """Raises OSError where the file cannot be opened for this once more."""
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        # By the descriptor, not by name: that may belong to another file by now.
        self._descriptor = os.open(
            f"/proc/self/fd/{descriptor}", access | os.O_DIRECT | os.O_CLOEXEC
        )
        self._free = [_AlignedPage()]

    def write(self, offset: int, content: BufferView) -> int:
        """Write a page at a multiple of PAGE_BYTES; what was written is synced. Returns how many bytes that are.

        Raises OSError: EINVAL, EOPNOTSUPP or ENOSYS, before anything is written, where the system has no such writes.
        """
        try:
            page = self._free.pop()
        except IndexError:
            page = _AlignedPage()  # Another thread writes from the one that was there.
        page.view[:] = content
        try:
            return os.pwritev(self._descriptor, page.buffers, offset, os.RWF_DSYNC)
        finally:
            self._free.append(page)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class _AlignedPage:
    """Memory to write a page from, aligned as direct writes want it."""

    __slots__ = ("buffers", "view")

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, PAGE_BYTES))
        self.buffers = (self.view,)
