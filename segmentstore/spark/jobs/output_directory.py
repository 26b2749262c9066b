"""The directory that a job writes its results to: local files, or whatever file system Spark's own writers know.

- A text is there as a whole or not at all, and is never replaced: of several that make it, one does.
- A local directory belongs to the run that opened it, until it is closed or the process ends. Elsewhere there is no
  such lock: other runs may be at work, and only what is never replaced keeps them apart.
- `move` may be done again, by this run or another one: what is not at its source any more was moved before, and may
  have been taken away since by those that it was written for.
- On local files everything is durable when a call returns; other file systems are as durable as they are.
"""

from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from segmentstore.runtime.entropy import random_id, system_random
from segmentstore.runtime.files import (
    File,
    FileSystem,
    SystemFileSystem,
    create_whole,
    read_whole,
    remove_unfinished,
)
from segmentstore.spark.jobs.run_lock import lock_run

_LOCK_NAME = "_lock"
_CREATE_ON_CLOSE = "fs.option.create.conditional.overwrite"
"""What a file system of Hadoop says it can if a file without a predecessor appears, whole, when it is closed."""


class OutputDirectory(Protocol):
    """Places are `/`-separated and relative to it. Everything blocks; it is for the driver."""

    @property
    def url(self) -> str:
        """As Spark's readers and writers take it."""

    def open(self) -> bool:
        """Before anything else; whether no other run is at work there until `close()`. Raises JobInUseError."""

    def close(self) -> None:
        """The next run may begin. Idempotent."""

    def read_text(self, place: str) -> str | None:
        """None if it is not there. What is found is durable, also if the run that made it was killed before that."""

    def create_text(self, place: str, text: str) -> None:
        """Make it, whole. Raises FileExistsError if it is there, and changes nothing then."""

    def files(self, place: str) -> list[str]:
        """Places of all files below, in order; none if there is no such directory."""

    def sync(self, place: str) -> None:
        """What is written below is durable when it returns."""

    def move(self, source: str, target: str) -> None:
        """Move a file; the directory of the target is made. Nothing to do if it is not at its source."""

    def remove(self, place: str) -> None:
        """A file or a directory with all that is in it, if it is there."""


class LocalDirectory:
    """Plain files of this machine."""

    def __init__(self, path: Path, *, files: FileSystem | None = None) -> None:
        self._path = str(path.absolute())
        self._files = files or SystemFileSystem()
        self._random = system_random()
        self._lock: File | None = None

    @property
    def url(self) -> str:
        return self._path

    def open(self) -> bool:
        self._files.make_directories(self._path)
        self._lock = lock_run(self._files, self._join(_LOCK_NAME))
        return True

    def close(self) -> None:
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    def read_text(self, place: str) -> str | None:
        path = self._join(place)
        if not self._files.exists(path):
            return None
        text = read_whole(self._files, path).decode()
        self._files.sync_directory(_parent(path))
        return text

    def create_text(self, place: str, text: str) -> None:
        path = self._join(place)
        folder = _parent(path)
        self._files.make_directories(folder)
        if self._lock is not None:
            remove_unfinished(self._files, folder)
        create_whole(self._files, path, text.encode(), random=self._random)

    def files(self, place: str) -> list[str]:
        below = [each for each in self._walk(place) if each != place]
        return sorted(each for each in below if not self._is_directory(each))

    def sync(self, place: str) -> None:
        for each in self._walk(place):
            if self._is_directory(each):
                self._files.sync_directory(self._join(each))
                continue
            file = self._files.open(self._join(each))
            try:
                file.sync_data()
            finally:
                file.close()
        if self._files.exists(self._join(place)):
            self._files.sync_directory(_parent(self._join(place)))

    def move(self, source: str, target: str) -> None:
        moved_from, moved_to = self._join(source), self._join(target)
        if self._files.exists(moved_from):
            self._files.make_directories(_parent(moved_to))
            with suppress(FileNotFoundError):  # Another run has moved it since it was looked at.
                self._files.rename(moved_from, moved_to)
        # Also what a killed run has moved: staging goes next, and a power cut would leave it nowhere.
        for folder in (_parent(moved_to), _parent(moved_from)):
            if self._files.exists(folder):
                self._files.sync_directory(folder)

    def remove(self, place: str) -> None:
        path = self._join(place)
        if not self._files.exists(path):
            return
        for inside in reversed(list(self._walk(place))):
            if self._is_directory(inside):
                # What was in it is gone for good before it is: no power cut brings a staged file back.
                self._files.sync_directory(self._join(inside))
                self._files.remove_directory(self._join(inside))
            else:
                self._files.remove(self._join(inside))
        self._files.sync_directory(_parent(path))

    def _walk(self, place: str) -> list[str]:
        """The place and all that is below it, directories before what is in them; none if it is not there."""
        found = [place] if self._files.exists(self._join(place)) else []
        for each in found:
            if self._is_directory(each):
                found += [f"{each}/{name}" for name in self._files.list(self._join(each))]
        return found

    def _is_directory(self, place: str) -> bool:
        return self._files.is_directory(self._join(place))

    def _join(self, place: str) -> str:
        return f"{self._path}/{place}"


class HadoopDirectory:
    """Any file system that Hadoop knows, through Spark's JVM: s3a://, hdfs:// and so on.

    A text gets its name by a rename, which HDFS refuses if the name is taken; or, where a file appears when it is
    closed, by closing one that must be new (S3A). File systems that know neither are looked at before and after.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._url = url.rstrip("/")
        jvm = spark.sparkContext._jvm
        context = spark.sparkContext._jsc
        assert jvm is not None, "the session has a JVM"
        assert context is not None, "the session has a context"
        self._jvm = jvm
        self._random = system_random()
        self._configuration = context.hadoopConfiguration()
        self._system: JavaObject = self._path("").getFileSystem(self._configuration)

    @property
    def url(self) -> str:
        return self._url

    def open(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is held."""

    def read_text(self, place: str) -> str | None:
        path = self._path(place)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            content = self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)
            return bytes(content).decode()
        finally:
            stream.close()

    def create_text(self, place: str, text: str) -> None:
        if self._system.exists(self._path(place)):
            raise FileExistsError(place)
        failure: Exception | None = None
        try:
            if self._system.hasPathCapability(self._path(place), _CREATE_ON_CLOSE):
                self._create_on_close(place, text)
            else:
                self._create_by_rename(place, text)
        except Py4JJavaError as error:
            # Whether it was made is unknown: the answer may be lost, or say that the name is taken by this very text.
            failure = error
        found = self.read_text(place)
        if found == text:
            return
        if found is not None:
            raise FileExistsError(place)
        raise OSError(f"cannot create place={place!r} in={self._url}") from failure

    def _create_on_close(self, place: str, text: str) -> None:
        builder = self._system.createFile(self._path(place)).overwrite(False).recursive()
        self._write(builder.opt(_CREATE_ON_CLOSE, True).build(), text)

    def _create_by_rename(self, place: str, text: str) -> None:
        folder, _, name = place.rpartition("/")
        beside_name = f"_{name}-{random_id(self._random).hex()}"
        beside = self._path(f"{folder}/{beside_name}" if folder else beside_name)
        self._write(self._system.create(beside, False), text)
        if not self._system.rename(beside, self._path(place)):
            self._system.delete(beside, False)

    def _write(self, stream: JavaObject, text: str) -> None:
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def files(self, place: str) -> list[str]:
        path = self._path(place)
        if not self._system.exists(path):
            return []
        listing = self._system.listFiles(path, True)
        base = str(self._path("").toUri().getPath()).rstrip("/") + "/"
        found: list[str] = []
        while listing.hasNext():
            found.append(str(listing.next().getPath().toUri().getPath()).removeprefix(base))
        return sorted(found)

    def sync(self, place: str) -> None:
        """Files were as durable as they get when their writers closed them."""

    def move(self, source: str, target: str) -> None:
        moved_from, moved_to = self._path(source), self._path(target)
        if not self._system.exists(moved_from):
            return
        if self._is_copy(moved_from, moved_to):
            self._system.delete(moved_from, False)
            return
        self._system.mkdirs(moved_to.getParent())
        try:
            moved = bool(self._system.rename(moved_from, moved_to))
        except Py4JJavaError:
            # Another run may have moved it at this moment.
            if self._system.exists(moved_from):
                raise
            return
        if not moved and self._system.exists(moved_from):
            raise OSError(f"cannot move source={source!r} target={target!r} in={self._url}")

    def _is_copy(self, moved_from: JavaObject, moved_to: JavaObject) -> bool:
        """Where a move is a copy and a removal, a kill between the two leaves both."""
        if not self._system.exists(moved_to):
            return False
        lengths = [self._system.getFileStatus(each).getLen() for each in (moved_from, moved_to)]
        return bool(lengths[0] == lengths[1])

    def remove(self, place: str) -> None:
        self._system.delete(self._path(place), True)

    def _path(self, place: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{place}" if place else self._url)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def open_output(spark: SparkSession, url: str) -> OutputDirectory:
    """By the words that a person writes: a path, a file:// URL, or a URL of another file system."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return LocalDirectory(Path(unquote(parts.path) if parts.scheme else url))
    return HadoopDirectory(spark, url)
