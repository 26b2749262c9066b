"""The files that an import reads: which there are, what they have in common, and their rows.

A file is known by the URL by which Spark lists it. Spark reads paths, and takes what it is told for a pattern: so a URL
is decoded, and characters of patterns are escaped.

- Files are read by name, in the order and the number in which they are asked for, whatever is put beside them.
- The columns of partitions (`day=2026-11-21/`) are those that Spark finds when it reads the whole input: directories
  below the *base* of a file. The base is the input, or the directory that a pattern matches, or `basePath` if that is
  among the options.
- CSV files with different headers are not read together: Spark takes columns by their place, whatever their names are.
- The schema of some files is made of all of them. Columns that only some have are null in the others.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

FORMATS: Final = ("parquet", "json", "csv", "text")
_READ_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {"header": "true", "inferSchema": "true"},
    "parquet": {"mergeSchema": "true"},
}
_PATTERN_CHARACTER = re.compile(r"([{}\[\]*?\\])")
_ANY_SCHEMA = StructType([StructField("_", StringType())])
"""To list files, without a look into them."""


class InputFiles:
    """Of one import."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        inputs: Sequence[str],
        file_format: str,
        read_options: Mapping[str, str],
    ) -> None:
        """`inputs`: files, directories or patterns, as Spark takes them; `read_options`: of Spark's reader."""
        self._spark = spark
        self._inputs = list(inputs)
        self._format = file_format
        self._options = {**_READ_OPTIONS.get(file_format, {}), **read_options}
        self._words = {name.lower(): value for name, value in self._options.items()}
        jvm = spark.sparkContext._jvm
        context = spark.sparkContext._jsc
        assert jvm is not None, "the session has a JVM"
        assert context is not None, "the session has a context"
        self._jvm = jvm
        self._configuration = context.hadoopConfiguration()
        self._bases: list[str] | None = None

    def found(self) -> list[str]:
        """URLs of all files that there are now, in order, each once. Nothing is read."""
        frame = self._reader().schema(_ANY_SCHEMA).load(self._inputs)
        return sorted(set(frame.inputFiles()))

    def alike(self, urls: Sequence[str]) -> list[tuple[str, list[str]]]:
        """The files in groups that can be read together, each with their base; empty where that says nothing."""
        headers = self._headers(urls) if self._has_headers else {}
        groups: dict[tuple[str, str], list[str]] = {}
        for url in urls:
            groups.setdefault((self._base_of(url), headers.get(url, "")), []).append(url)
        return [(base, some) for (base, _), some in groups.items()]

    def schema_of(self, urls: Sequence[str], *, base: str) -> StructType:
        """Of files that are alike. Raises what Spark raises if their columns contradict each other."""
        return self._reader(base).load([self._pattern_of(url) for url in urls]).schema

    def read(self, urls: Sequence[str], schema: StructType, *, base: str | None) -> DataFrame:
        """The rows of the files; no rows of no files. `base`: None if it is to be found in the inputs."""
        by_base: dict[str, list[str]] = {}
        for url in urls:
            found = self._base_of(url) if base is None else base
            by_base.setdefault(found, []).append(self._pattern_of(url))
        frames = [
            self._reader(found).schema(schema).load(paths) for found, paths in by_base.items()
        ]
        if not frames:
            return self._spark.createDataFrame([], schema)
        return reduce(DataFrame.unionByName, frames)

    def missing(self, urls: Sequence[str]) -> list[str]:
        """Those that are not there any more."""
        paths = [(url, self._path_of(url)) for url in urls]
        return [url for url, path in paths if not self._system_of(path).exists(path)]

    @property
    def _has_headers(self) -> bool:
        return self._format == "csv" and self._words.get("header", "").lower() == "true"

    def _headers(self, urls: Sequence[str]) -> dict[str, str]:
        """The first line that is one, by file."""
        lines = self._spark.read.text([self._pattern_of(url) for url in urls])
        lines = lines.where(sql.length(sql.trim("value")) > 0)
        comment = self._words.get("comment", "")
        if comment:
            lines = lines.where(~sql.col("value").startswith(comment))
        numbered = lines.select(
            sql.col("_metadata.file_path").alias("file"),
            sql.col("_metadata.file_block_start").alias("start"),
            "value",
            # Grows with the lines of a part of a file, which one task reads.
            sql.monotonically_increasing_id().alias("number"),
        ).where("start = 0")
        first = numbered.groupBy("file").agg(sql.min_by("value", "number").alias("header"))
        by_path = {
            str(self._path_of(row["file"])): str(row["header"]).rstrip("\r")
            for row in first.collect()
        }
        return {url: by_path.get(str(self._path_of(url)), "") for url in urls}

    def _reader(self, base: str = "") -> DataFrameReader:
        reader = self._spark.read.format(self._format).options(**self._options)
        return reader.option("basePath", base) if base else reader

    def _base_of(self, url: str) -> str:
        """Empty if no directory between it and the file names a partition, or the options name it."""
        if "basepath" in self._words:
            return ""
        if self._bases is None:
            self._bases = self._find_bases()
        path = str(self._path_of(url))
        above = [base for base in self._bases if path.startswith(f"{base.rstrip('/')}/")]
        nearest = max(above, key=len, default="")
        inside = path[len(nearest) :].rpartition("/")[0]
        return nearest if "=" in inside else ""

    def _find_bases(self) -> list[str]:
        bases: dict[str, None] = {}
        for each in self._inputs:
            path = self._jvm.org.apache.hadoop.fs.Path(each)
            system = self._system_of(path)
            matched = (
                system.globStatus(path)
                if _PATTERN_CHARACTER.search(each)
                else [system.getFileStatus(path)]
            )
            for status in matched or ():
                found = status.getPath()
                bases[str(found if status.isDirectory() else found.getParent())] = None
        return list(bases)

    def _path_of(self, url: str) -> JavaObject:
        return self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(url))

    def _pattern_of(self, url: str) -> str:
        return _PATTERN_CHARACTER.sub(r"\\\1", str(self._path_of(url)))

    def _system_of(self, path: JavaObject) -> JavaObject:
        return path.getFileSystem(self._configuration)
