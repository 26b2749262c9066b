"""A disk in memory that is as mean as a real one is allowed to be.

Invariants (what callers may rely on, and not a bit more):
- Bytes are certain only after sync_data() of their file returned; names only after sync_directory() of their directory.
- Until then every 4096-byte page of a file may keep any of the contents it had since the last sync, each on its own; so
  may the file's size; and every creation, removal, rename and link may have happened or not, each on its own.
- A failed sync_data() drops pages silently: they still read back, the next sync says OK, and a power cut shows the old
  bytes (some kernels do exactly this).
- Locks belong to the simulated process that took them: freed when it dies or closes, not when it merely stands still.
- A dead process starts nothing any more, but a few writes it had submitted may still land (`Mount.kill`).

Every change is a numbered boundary; `on_boundary` sees the disk between any two of them. All randomness is the given
random.Random's.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.identifiers import BufferView
from tests.sim.disk_faults import DiskFaults
from tests.sim.inode import Inode

PAGE_BYTES = 4096
_ZERO_PAGE = bytes(PAGE_BYTES)


class DeadProcessError(OSError):
    """A process that was killed, or whose machine lost power, asked for something."""


Node = Inode | None
"""A file, or None for a directory."""


@dataclass(frozen=True, slots=True)
class NameChange:
    """One un-synced change of a directory: what each name means afterwards (absent: not there)."""

    boundary: int
    set_names: tuple[tuple[str, Node], ...] = ()
    removed: tuple[str, ...] = ()

    def apply(self, names: dict[str, Node]) -> None:
        for path in self.removed:
            names.pop(path, None)
        names.update(self.set_names)


@dataclass(frozen=True, slots=True)
class Boundary:
    """One change that has just happened."""

    number: int
    kind: str
    path: str


class SimulatedDisk:
    """The machine's disk. Processes see it through mount()."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.faults = DiskFaults()
        self.on_boundary: Callable[[Boundary], None] | None = None
        self.boundaries = 0
        self.names: dict[str, Node] = {"/": None}
        self.durable_names: dict[str, Node] = {"/": None}
        self.name_changes: dict[str, list[NameChange]] = {}
        self.writes_of_the_dead: list[Callable[[], None]] = []
        self._mounts: list[Mount] = []

    def mount(self, process: str) -> "Mount":
        """What one process sees; its open files and locks belong to it."""
        mount = Mount(self, process)
        self._mounts.append(mount)
        return mount

    def lose_power(self, random: Random) -> None:
        """Every process is gone; of what was not certain, any part is kept."""
        # Imported here: the persistence choices are built on this module.
        from tests.sim.power_cuts import cut_power_in_place

        self.kill_all()
        cut_power_in_place(self, random)

    def kill_all(self) -> None:
        """The power is off: no process runs, no submitted write lands."""
        for mount in self._mounts:
            mount.kill(late_writes=0)
        self._mounts.clear()
        self.writes_of_the_dead.clear()

    def land_writes_of_the_dead(self) -> None:
        """What processes had submitted when they died in a write reaches the files now (H79)."""
        landing, self.writes_of_the_dead = self.writes_of_the_dead, []
        for write in landing:
            write()

    def used_bytes(self) -> int:
        """Pages that files occupy. O(files)."""
        inodes = {id(node): node for node in self.names.values() if node is not None}
        return sum(-(-inode.size // PAGE_BYTES) * PAGE_BYTES for inode in inodes.values())

    def free_bytes(self) -> int:
        return 1 << 62 if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes()

    def changed(self, kind: str, path: str) -> None:
        """A change has happened: the next boundary."""
        self.boundaries += 1
        if self.on_boundary is not None:
            self.on_boundary(Boundary(self.boundaries, kind, path))

    def change_names(self, kind: str, parent: str, change: NameChange) -> None:
        change.apply(self.names)
        self.name_changes.setdefault(parent, []).append(change)
        self.changed(kind, parent)

    def reserve(self, inode: Inode, size: int) -> None:
        """Raises OSError(ENOSPC) if the file cannot grow to `size`."""
        if self.capacity_bytes is None or size <= inode.size:
            return
        pages = -(-size // PAGE_BYTES) - -(-inode.size // PAGE_BYTES)
        if pages * PAGE_BYTES > self.free_bytes():
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")


class SimulatedFile:
    """An open file of one process."""

    def __init__(self, mount: "Mount", path: str, inode: Inode) -> None:
        self._mount = mount
        self._disk = mount.disk
        self._path = path
        self._inode = inode
        self.open = True

    def write_at(self, offset: int, buffers: Sequence[BufferView]) -> None:
        content = b"".join(buffers)
        if self._mount.dies_in_next_write:
            self._mount.kill(late_writes=0)
            self._disk.writes_of_the_dead.append(lambda: self._put(offset, content))
        self._mount.enter_write(self._path)
        assert self.open or not self._mount.alive, f"write to a closed file {self._path}"
        self._put(offset, content)

    def _put(self, offset: int, content: bytes) -> None:
        inode = self._inode
        self._disk.reserve(inode, offset + len(content))
        boundary = self._disk.boundaries + 1
        at = 0
        while at < len(content):
            page, start = divmod(offset + at, PAGE_BYTES)
            length = min(PAGE_BYTES - start, len(content) - at)
            old = inode.pages.get(page, _ZERO_PAGE)
            new = old[:start] + content[at : at + length] + old[start + length :]
            new = _ZERO_PAGE if new == _ZERO_PAGE else new
            inode.pages[page] = new
            inode.page_history.setdefault(page, []).append((boundary, new))
            at += length
        if offset + len(content) > inode.size:
            inode.size = offset + len(content)
            inode.size_history.append((boundary, inode.size))
        self._disk.changed("write", self._path)

    def write_synced(self, offset: int, buffers: Sequence[BufferView]) -> None:
        """Two boundaries, and no more than these bytes (and the size) become certain."""
        self.write_at(offset, buffers)
        first, end = offset // PAGE_BYTES, offset + sum(map(len, buffers))
        pages = range(first, -(-end // PAGE_BYTES))
        try:
            self._mount.enter("sync", self._path)
        except DeadProcessError:
            raise  # a kill is no failed sync: what was written stays as dirty as it is
        except OSError:
            self._inode.forget(pages)
            self._disk.changed("failed sync", self._path)
            raise
        self._inode.settle(pages)
        self._disk.changed("sync", self._path)

    def write_direct(self, offset: int, buffers: Sequence[BufferView]) -> None:
        self.write_at(offset, buffers)

    def read_at(self, offset: int, length: int) -> bytes:
        self._mount.enter("read", self._path)
        assert self.open, f"read from a closed file {self._path}"
        inode = self._inode
        end = min(offset + length, inode.size)
        if offset >= end:
            return b""
        first, last = offset // PAGE_BYTES, (end - 1) // PAGE_BYTES
        pages = [inode.pages.get(page, _ZERO_PAGE) for page in range(first, last + 1)]
        start = offset - first * PAGE_BYTES
        return b"".join(pages)[start : start + end - offset]

    def read_into(self, offset: int, target: memoryview) -> int:
        content = self.read_at(offset, len(target))
        target[: len(content)] = content
        return len(content)

    def size(self) -> int:
        self._mount.enter("size", self._path)
        return self._inode.size

    def truncate(self, size: int) -> None:
        self._mount.enter("truncate", self._path)
        inode = self._inode
        self._disk.reserve(inode, size)
        boundary = self._disk.boundaries + 1
        first_gone = -(-size // PAGE_BYTES)
        for page in [page for page in inode.pages if page >= first_gone]:
            inode.pages[page] = _ZERO_PAGE
            inode.page_history.setdefault(page, []).append((boundary, _ZERO_PAGE))
        if size % PAGE_BYTES and size < inode.size:
            page = size // PAGE_BYTES
            kept = inode.pages.get(page, _ZERO_PAGE)[: size % PAGE_BYTES]
            inode.pages[page] = kept + bytes(PAGE_BYTES - len(kept))
            inode.page_history.setdefault(page, []).append((boundary, inode.pages[page]))
        inode.size = size
        inode.size_history.append((boundary, size))
        self._disk.changed("truncate", self._path)

    def sync_data(self) -> None:
        try:
            self._mount.enter("sync", self._path)
        except DeadProcessError:
            raise
        except OSError:
            # The pages count as clean from now on, yet they never reached the platter.
            self._inode.forget()
            self._disk.changed("failed sync", self._path)
            raise
        self._inode.settle()
        self._disk.changed("sync", self._path)

    def start_writeback(self, start: int, length: int) -> None:
        """Nothing is certain by that; a power cut keeps any part of it as before."""

    def drop_page_cache(self, start: int = 0, length: int = 0) -> None:
        """Clean pages read back as the platter has them: also those that a failed sync gave up."""
        self._mount.enter("drop_page_cache", self._path)
        inode = self._inode
        for page in inode.pages:
            is_asked = page * PAGE_BYTES >= start and (
                not length or (page + 1) * PAGE_BYTES <= start + length
            )
            if is_asked and page not in inode.page_history:
                inode.pages[page] = inode.durable_pages.get(page, _ZERO_PAGE)

    def lock_exclusive(self) -> bool:
        self._mount.enter("lock", self._path)
        if self._inode.holder not in (None, self):
            return False
        self._inode.holder = self
        return True

    def close(self) -> None:
        self.open = False
        if self._inode.holder is self:
            self._inode.holder = None


class Mount:
    """A FileSystem as one process sees it."""

    def __init__(self, disk: SimulatedDisk, process: str) -> None:
        self.disk = disk
        self.process = process
        self.alive = True
        self.dies_in_next_write = False
        """Set it: the process dies in its next write, which stays on its way (`land_writes_of_the_dead`)."""
        self._late_writes = 0
        self._files: list[SimulatedFile] = []

    def kill(self, *, late_writes: int = 1) -> None:
        """The process dies: its locks are free; up to `late_writes` writes that it had submitted may still land."""
        self.alive = False
        self._late_writes = late_writes
        for file in self._files:
            file.close()
        self._files.clear()

    def enter(self, kind: str, path: str) -> None:
        """Every call begins here: death and planned faults."""
        if not self.alive:
            raise DeadProcessError(f"{self.process} is dead: {kind} {path}")
        self.disk.faults.strike(kind, path, process=self.process)

    def enter_write(self, path: str) -> None:
        if not self.alive and self._late_writes > 0:
            self._late_writes -= 1
            return
        self.enter("write", path)

    # --- files -----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SimulatedFile:
        self.enter("open", path)
        if path in self.disk.names:
            node = self.disk.names[path]
            if exclusive:
                raise FileExistsError(errno.EEXIST, "file exists", path)
            if node is None:
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        else:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._require_directory(_parent(path))
            self.disk.faults.strike("create", path, process=self.process)
            node = Inode()
            change = NameChange(self.disk.boundaries + 1, set_names=((path, node),))
            self.disk.change_names("create", _parent(path), change)
        file = SimulatedFile(self, path, node)
        self._files.append(file)
        return file

    def exists(self, path: str) -> bool:
        self.enter("exists", path)
        return path in self.disk.names

    def size(self, path: str) -> int:
        self.enter("size", path)
        return self._inode(path).size

    def rename(self, source: str, target: str) -> None:
        self.enter("rename", source)
        if source not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        node = self.disk.names[source]
        boundary = self.disk.boundaries + 1
        if _parent(source) == _parent(target):
            change = NameChange(boundary, set_names=((target, node),), removed=(source,))
            self.disk.change_names("rename", _parent(target), change)
            return
        # Two directories: each may keep its half without the other.
        arrives = NameChange(boundary, set_names=((target, node),))
        self.disk.change_names("rename", _parent(target), arrives)
        leaves = NameChange(boundary + 1, removed=(source,))
        self.disk.change_names("rename", _parent(source), leaves)

    def link(self, source: str, target: str) -> None:
        self.enter("link", source)
        if target in self.disk.names:
            raise FileExistsError(errno.EEXIST, "file exists", target)
        self._require_directory(_parent(target))
        change = NameChange(self.disk.boundaries + 1, set_names=((target, self._inode(source)),))
        self.disk.change_names("link", _parent(target), change)

    def remove(self, path: str) -> None:
        self.enter("remove", path)
        self._inode(path)
        change = NameChange(self.disk.boundaries + 1, removed=(path,))
        self.disk.change_names("remove", _parent(path), change)

    def free_bytes(self, path: str) -> int:
        self.enter("free", path)
        return max(0, self.disk.free_bytes())

    # --- directories -----------------------------------------------------------------------------

    def list(self, path: str) -> list[str]:
        self.enter("list", path)
        self._require_directory(path)
        prefix = path.rstrip("/") + "/"
        names = [name[len(prefix) :] for name in self.disk.names if name.startswith(prefix)]
        return sorted(name for name in names if name and "/" not in name)

    def make_directories(self, path: str) -> None:
        self.enter("make_directories", path)
        if path in self.disk.names:
            self._require_directory(path)
            return
        self.make_directories(_parent(path))
        self.disk.names[path] = None
        self.disk.durable_names[path] = None
        self.disk.changed("make_directories", path)

    def remove_directory(self, path: str) -> None:
        self.enter("remove_directory", path)
        self._require_directory(path)
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        change = NameChange(self.disk.boundaries + 1, removed=(path,))
        self.disk.change_names("remove_directory", _parent(path), change)

    def is_directory(self, path: str) -> bool:
        self.enter("is_directory", path)
        return self.disk.names.get(path, self) is None

    def sync_directory(self, path: str) -> None:
        self.enter("sync_directory", path)
        self._require_directory(path)
        for change in self.disk.name_changes.pop(path, []):
            change.apply(self.disk.durable_names)
        self.disk.changed("sync_directory", path)

    def _inode(self, path: str) -> Inode:
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        node = self.disk.names[path]
        if node is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return node

    def _require_directory(self, path: str) -> None:
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if self.disk.names[path] is not None:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"
