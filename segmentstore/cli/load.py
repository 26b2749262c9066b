"""`segmentstore load`: files and trees into segments, resumable.

`plan_load` decides which file goes into which segment; `Loader` brings the segments up to what their files say, however
often it is interrupted.

Names, for `load PATH...`:

    a file      its own name:                 load notes/a.txt       -> a.txt
    a tree      its own name, then the path:  load notes             -> notes/a.txt, notes/old/b.txt
    --prefix P  P takes the place of the tree's name, or comes before the file's: load --prefix x/ notes -> x/a.txt
    --by-package  one segment for each name at the top of the tree, without a suffix:
                  load --by-package lib      -> lib/notes (from lib/notes.txt), lib/json (from lib/json/...)

Invariants:

- Every file goes into exactly one segment; the files of a segment are in order of their path, joined without anything
  between them. So the bytes of a segment are a function of the tree, and a load can be taken up where it stopped.
- Hidden files and directories (a leading dot), and `__pycache__`, are left out.
- An append is conditional on the length that the loader believes in, so a piece is never stored twice: if an answer
  was lost, the next attempt finds the piece there or not there, never half.
- Before it adds to a segment that has bytes already, the loader compares them with the files; a segment that differs is
  left alone and reported.
- Memory is bounded by (segments at once) x (piece size).
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TypeVar

import click

from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.options import APPEND_BYTES, SECONDS, server_option, with_client
from segmentstore.cli.output import output_option, print_rows, progress_bar
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.contracts.segments import check_segment_name
from segmentstore.runtime.backoff import Backoff

_LEFT_OUT = "__pycache__"
_RETRY_SECONDS_FIRST = 0.1
_RETRY_SECONDS_MAX = 5.0

_Result = TypeVar("_Result")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--prefix", help="Name prefix; by default the tree's own name and a slash.")
@click.option("--by-package", is_flag=True, help="One segment for each name at the top of a tree.")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Only such file names, as '*.py'."
)
@click.option("--seal", is_flag=True, help="Seal each segment when it is complete.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Segments at once."
)
@click.option(
    "--piece",
    "piece_bytes",
    type=APPEND_BYTES,
    default="1MiB",
    show_default=True,
    help="Bytes an append.",
)
@click.option(
    "--retry",
    "retry_seconds",
    type=SECONDS,
    default="10s",
    show_default=True,
    help="How long an unavailable server is tried again.",
)
@click.option("--quiet", is_flag=True, help="No progress bar, no summary.")
@server_option
@output_option
def load(
    paths: tuple[Path, ...],
    prefix: str | None,
    by_package: bool,
    include: tuple[str, ...],
    seal: bool,
    jobs: int,
    piece_bytes: int,
    retry_seconds: float,
    quiet: bool,
    server: str,
    output: str,
) -> None:
    """Load files and trees, each file into a segment of its own.

    A file's segment is called like the file; the files of a tree are called TREE/path/in/tree. Run it again after an
    interruption: bytes that are there are compared with the files, and the rest is added, nothing twice.
    """
    plans = plan_load(paths, prefix=prefix, by_package=by_package, include=include)
    total = sum(plan.length for plan in plans)
    with progress_bar(f"{len(plans)} segments", "B", quiet=quiet) as show:
        done = 0

        def progress(more: int) -> None:
            nonlocal done
            done += more
            show(done, total)

        async def work(client: HttpClient) -> list[LoadedSegment]:
            loader = Loader(
                client=client,
                piece_bytes=piece_bytes,
                segments_at_once=jobs,
                seal=seal,
                retry_seconds=retry_seconds,
                progress=progress,
            )
            return await loader.load(plans)

        loaded = with_client(server, work)
    if not quiet or output == "json":
        print_rows([asdict(each) for each in loaded], output)


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


class LoadConflictError(SegmentStoreError):
    """The segment holds other bytes than the files."""

    kind = ErrorKind.CONFLICT


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """One segment that is now as long as its files."""

    name: str
    length: int
    found_bytes: int
    """Bytes that were there already."""
    sha256: str


class Loader:
    """Loads plans through one client, several segments at once."""

    def __init__(
        self,
        *,
        client: HttpClient,
        piece_bytes: int,
        segments_at_once: int,
        seal: bool,
        retry_seconds: float,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._piece_bytes = piece_bytes
        self._segments_at_once = segments_at_once
        self._seal = seal
        self._give_up_seconds = retry_seconds
        self._progress = progress

    async def load(self, plans: Sequence[SegmentPlan]) -> list[LoadedSegment]:
        """Results in the order of the plans. The first failure ends the load; what was stored stays."""
        waiting = list(enumerate(plans))[::-1]
        results: list[LoadedSegment | None] = [None] * len(plans)

        async def work() -> None:
            while waiting:
                position, plan = waiting.pop()
                results[position] = await self._load_segment(plan)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._segments_at_once, len(plans))):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [result for result in results if result is not None]

    async def _load_segment(self, plan: SegmentPlan) -> LoadedSegment:
        info = await self._retried(lambda: self._client.ensure(plan.name))
        if info.length > plan.length:
            raise LoadConflictError(
                f"the segment is longer than its files; was something else appended? name={plan.name!r} "
                f"length={info.length} files={plan.length}"
            )
        digest = hashlib.sha256()
        await self._compare(plan, info.start_offset, info.length, digest)
        position = info.length
        while position < plan.length:
            content = await _in_thread(
                plan.read, position, min(self._piece_bytes, plan.length - position)
            )
            await self._append(plan, position, content)
            digest.update(content)
            position += len(content)
            self._progress(len(content))
        if self._seal:
            await self._retried(lambda: self._client.seal(plan.name))
        return LoadedSegment(plan.name, plan.length, info.length, digest.hexdigest())

    async def _compare(
        self, plan: SegmentPlan, start_offset: int, length: int, digest: "hashlib._Hash"
    ) -> None:
        """What is there must be what the files begin with; truncated bytes are taken from the files."""
        position = 0
        while position < length:
            wanted = min(self._piece_bytes, length - position)
            content = await _in_thread(plan.read, position, wanted)
            if position >= start_offset:
                content = await self._compare_piece(plan, position, content)
            digest.update(content)
            position += len(content)
            self._progress(len(content))

    async def _compare_piece(self, plan: SegmentPlan, position: int, content: bytes) -> bytes:
        """As much of `content` as the server gave back at once, which is at least one byte and equal."""
        piece = await self._retried(lambda: self._client.read(plan.name, position, len(content)))
        if not piece.content or piece.content != content[: len(piece.content)]:
            raise LoadConflictError(
                f"the segment holds other bytes than its files name={plan.name!r} offset={position}"
            )
        return piece.content

    async def _append(self, plan: SegmentPlan, position: int, content: bytes) -> None:
        async def attempt() -> None:
            try:
                await self._client.append(plan.name, content, offset=position)
            except ServerError as error:
                if error.kind is not ErrorKind.CONFLICT:
                    raise
                await self._recognise(plan, position, content)

        await self._retried(attempt)

    async def _recognise(self, plan: SegmentPlan, position: int, content: bytes) -> None:
        """A refused append is fine if it is our own earlier attempt whose answer was lost."""
        info = await self._client.info(plan.name)
        if info.length == position and info.sealed:
            raise LoadConflictError(
                f"the segment is sealed but shorter than its files name={plan.name!r} length={info.length} "
                f"files={plan.length}"
            )
        if info.length != position + len(content):
            raise LoadConflictError(
                f"something else is appending to the segment name={plan.name!r} length={info.length} "
                f"expected={position + len(content)}"
            )
        done = 0
        while done < len(content):
            done += len(await self._compare_piece(plan, position + done, content[done:]))

    async def _retried(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Again after UNAVAILABLE, with growing pauses, until time is up. Only for what may be sent twice."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._give_up_seconds
        backoff = Backoff(seconds_first=_RETRY_SECONDS_FIRST, seconds_max=_RETRY_SECONDS_MAX)
        while True:
            try:
                return await attempt()
            except ServerError as error:
                pause = backoff.next_seconds()
                if error.kind is not ErrorKind.UNAVAILABLE or loop.time() + pause > give_up_at:
                    raise
            await asyncio.sleep(pause)


async def _in_thread(call: Callable[[int, int], bytes], first: int, second: int) -> bytes:
    return await asyncio.get_running_loop().run_in_executor(None, call, first, second)
