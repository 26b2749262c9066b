"""The directory that a job writes its results to: local files, or whatever file system Spark's own writers know.

- A text is there as a whole or not at all: it is written beside its place and renamed.
- `rename` of something that was renamed before does nothing, so that a killed job may simply do it again.
"""

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # it has no types
from pyspark.sql import SparkSession

from segmentstore.runtime.files import SystemFileSystem


class OutputDirectory(Protocol):
    """Places are `/`-separated and relative to it. Everything blocks; it is for the driver."""

    @property
    def url(self) -> str:
        """As Spark's readers and writers take it."""

    def read_text(self, place: str) -> str | None:
        """None if it is not there."""

    def write_text(self, place: str, text: str) -> None:
        """Make or replace it, whole."""

    def files(self, place: str) -> list[str]:
        """Places of all files below, in order; none if there is no such directory."""

    def rename(self, source: str, target: str) -> None:
        """Move a file; the directory of the target is made. Nothing to do if only the target is there."""

    def remove(self, place: str) -> None:
        """A file or a directory with all that is in it, if it is there."""


class LocalDirectory:
    """Plain files of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._files = SystemFileSystem()

    @property
    def url(self) -> str:
        return str(self._path)

    def read_text(self, place: str) -> str | None:
        path = self._path / place
        return path.read_text() if path.exists() else None

    def write_text(self, place: str, text: str) -> None:
        path = self._path / place
        self._files.make_directories(str(path.parent))
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        file = self._files.open(str(beside), create=True)
        try:
            file.truncate(0)
            file.write_at(0, [text.encode()])
            file.sync_data()
        finally:
            file.close()
        self._files.rename(str(beside), str(path))
        self._files.sync_directory(str(path.parent))

    def files(self, place: str) -> list[str]:
        found = (path for path in (self._path / place).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._path)) for path in found)

    def rename(self, source: str, target: str) -> None:
        if not (self._path / source).exists() and (self._path / target).exists():
            return
        self._files.make_directories(str((self._path / target).parent))
        self._files.rename(str(self._path / source), str(self._path / target))

    def remove(self, place: str) -> None:
        path = self._path / place
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for inside in sorted(path.rglob("*"), reverse=True):
            if inside.is_dir():
                inside.rmdir()
            else:
                inside.unlink()
        path.rmdir()


class HadoopDirectory:
    """Any file system that Hadoop knows, through Spark's JVM: s3a://, hdfs:// and so on."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._url = url.rstrip("/")
        jvm = spark.sparkContext._jvm
        context = spark.sparkContext._jsc
        assert jvm is not None, "the session has a JVM"
        assert context is not None, "the session has a context"
        self._jvm = jvm
        self._configuration = context.hadoopConfiguration()
        self._system: JavaObject = self._path("").getFileSystem(self._configuration)

    @property
    def url(self) -> str:
        return self._url

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

    def write_text(self, place: str, text: str) -> None:
        folder, _, name = place.rpartition("/")
        beside = f"{folder}/_{name}.{os.getpid()}" if folder else f"_{name}.{os.getpid()}"
        stream = self._system.create(self._path(beside), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if self._system.exists(self._path(place)):
            self._system.delete(self._path(place), False)
        self._system.rename(self._path(beside), self._path(place))

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

    def rename(self, source: str, target: str) -> None:
        if not self._system.exists(self._path(source)) and self._system.exists(self._path(target)):
            return
        self._system.mkdirs(self._path(target).getParent())
        if not self._system.rename(self._path(source), self._path(target)):
            raise OSError(f"cannot rename source={source!r} target={target!r} in={self._url}")

    def remove(self, place: str) -> None:
        self._system.delete(self._path(place), True)

    def _path(self, place: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._url}/{place}" if place else self._url)


def open_output(spark: SparkSession, url: str) -> OutputDirectory:
    """By the words that a person writes: a path, a file:// URL, or a URL of another file system."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return LocalDirectory(Path(unquote(parts.path) if parts.scheme else url))
    return HadoopDirectory(spark, url)
