"""Which file goes into which segment.

Invariants:

- Every file goes into exactly one segment; the files of a segment are in order of their path, joined without anything
  between them. So the bytes of a segment are a function of the tree, and a load can be taken up where it stopped.
- Hidden files and directories (a leading dot), and `__pycache__`, are left out.

Names, for `load PATH...`:

    a file      its own name:                 load notes/a.txt       -> a.txt
    a tree      its own name, then the path:  load notes             -> notes/a.txt, notes/old/b.txt
    --prefix P  P takes the place of the tree's name, or comes before the file's: load --prefix x/ notes -> x/a.txt
    --by-package  one segment for each name at the top of the tree, without a suffix:
                  load --by-package lib      -> lib/ast (from lib/ast.py), lib/json (from lib/json/...)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.host.segment_names import check_segment_name

_LEFT_OUT = "__pycache__"


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file at its place in the segment. The size is what it was when the plan was made, in bytes."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One segment and the files that make it up."""

    name: str
    parts: Sequence[FilePart]

    @property
    def length(self) -> int:
        return self.parts[-1].offset + self.parts[-1].size if self.parts else 0

    def read(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length) of the segment as the files have them. Blocks.

        Raises InvalidRequestError if a file has become shorter since the plan was made.
        """
        pieces = []
        for part in self.parts:
            start = max(offset, part.offset)
            end = min(offset + length, part.offset + part.size)
            if start >= end:
                continue
            with part.path.open("rb") as file:
                file.seek(start - part.offset)
                piece = file.read(end - start)
            if len(piece) != end - start:
                raise InvalidRequestError(f"a file became shorter during the load path={part.path}")
            pieces.append(piece)
        return b"".join(pieces)


def plan_load(
    paths: Sequence[Path],
    *,
    prefix: str | None = None,
    by_package: bool = False,
    include: Sequence[str] = (),
) -> list[SegmentPlan]:
    """Plans in order of their names. `include` are patterns for file names; none takes all.

    Raises InvalidRequestError for a name that no segment may have, or when two PATHs claim one name.
    """
    files: dict[str, list[Path]] = {}
    owners: dict[str, Path] = {}
    for path in paths:
        for name, file in _named_files(path, prefix, by_package=by_package):
            if include and not any(fnmatch(file.name, pattern) for pattern in include):
                continue
            if owners.setdefault(name, path) != path:
                raise InvalidRequestError(
                    f"two paths claim one segment; load them apart, each with its own --prefix "
                    f"name={name!r} paths={owners[name]},{path}"
                )
            files.setdefault(name, []).append(file)
    plans = []
    for name in sorted(files):
        check_segment_name(name)
        plans.append(SegmentPlan(name, _parts(files[name])))
    return plans


def _parts(files: Sequence[Path]) -> list[FilePart]:
    parts = []
    offset = 0
    for file in files:
        size = file.stat().st_size
        parts.append(FilePart(file, offset, size))
        offset += size
    return parts


def _named_files(path: Path, prefix: str | None, *, by_package: bool) -> Iterator[tuple[str, Path]]:
    absolute = path.resolve()
    if absolute.is_file():
        yield (prefix or "") + absolute.name, absolute
        return
    start = f"{absolute.name}/" if prefix is None else prefix
    for file in _tree(absolute):
        inside = PurePosixPath(file.relative_to(absolute).as_posix())
        if by_package:
            top = inside.parts[0]
            yield start + (top if len(inside.parts) > 1 else inside.stem), file
        else:
            yield start + str(inside), file


def _tree(directory: Path) -> Iterator[Path]:
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name == _LEFT_OUT:
            continue
        if entry.is_dir():
            if not entry.is_symlink():  # a link to a parent would never end
                yield from _tree(entry)
        elif entry.is_file():
            yield entry
