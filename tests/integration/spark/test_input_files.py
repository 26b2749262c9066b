"""What files hold is what an import reads of them: every column, under its name, every row once."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from segmentstore.spark.jobs.file_import import events_of
from segmentstore.spark.jobs.input_files import InputFiles

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Rows = Callable[..., list[object]]


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Rows:
    """The rows of all files that are there, but for those that were read before, as an import reads and writes them."""
    seen: set[str] = set()

    def read(file_format: str, inputs: Sequence[str] = (), **options: str) -> list[object]:
        files = InputFiles(
            spark,
            inputs=inputs or [str(tmp_path)],
            file_format=file_format,
            read_options=options,
        )
        new = [each for each in files.found() if each not in seen]
        seen.update(new)
        assert files.missing(new) == []
        found: list[object] = []
        for base, some in files.alike(new):
            frame = files.read(some, files.schema_of(some, base=base), base=base)
            events = events_of(frame, key_column="", value_column="").collect()
            found += [json.loads(row["value"]) for row in events]
        return sorted(found, key=str)

    return read


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_partitions_are_columns(rows: Rows, tmp_path: Path) -> None:
    put(tmp_path / "day=2026-11-21" / "a.json", '{"n":1}\n')
    put(tmp_path / "day=2026-11-22" / "a.json", '{"n":2}\n')
    first, second = {"n": 1, "day": "2026-11-21"}, {"n": 2, "day": "2026-11-22"}
    assert rows("json") == [first, second]
    put(tmp_path / "day=2026-11-22" / "b.json", '{"n":3}\n')
    assert rows("json") == [{"n": 3, "day": "2026-11-22"}]


def test_directories_above_the_input_are_no_columns(rows: Rows, tmp_path: Path) -> None:
    put(tmp_path / "day=1" / "hour=2" / "a.json", '{"n":1}\n')
    for directory in ("day=1", "day=[1]"):
        assert rows("json", [str(tmp_path / directory)]) == [{"n": 1, "hour": 2}]
        put(tmp_path / "day=1" / "hour=2" / "b.json", '{"n":1}\n')


def test_a_base_that_the_options_name_is_that(rows: Rows, tmp_path: Path) -> None:
    put(tmp_path / "day=1" / "a.json", '{"n":1}\n')
    assert rows("json", [str(tmp_path / "day=1")], basePath=str(tmp_path)) == [{"n": 1, "day": 1}]


def test_a_column_that_only_some_files_have_is_kept(rows: Rows, tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2], "more": ["x"]}), tmp_path / "b.parquet")
    assert rows("parquet") == [{"n": 1}, {"n": 2, "more": "x"}]
    pq.write_table(pa.table({"n": [3], "yet": ["y"]}), tmp_path / "c.parquet")
    assert rows("parquet") == [{"n": 3, "yet": "y"}]


def test_values_stand_under_the_names_of_their_own_header(rows: Rows, tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "name,age\nann,31\n")
    put(tmp_path / "b.csv", "age,name\r\n32,ben\r\n")
    put(tmp_path / "c.csv", "name,age\ncyd,33\n")
    put(tmp_path / "d.csv", "")
    found = [dict(sorted(row.items())) for row in rows("csv") if isinstance(row, dict)]
    expected = [{"age": age, "name": name} for name, age in (("ann", 31), ("ben", 32), ("cyd", 33))]
    assert sorted(found, key=str) == expected


def test_a_header_without_names_or_with_one_twice_is_read(rows: Rows, tmp_path: Path) -> None:
    put(tmp_path / "a.csv", ",n,n\n0,1,2\n")
    assert rows("csv") == [{"_c0": 0, "n1": 1, "n2": 2}]


def test_names_that_look_like_patterns_are_names(rows: Rows, tmp_path: Path) -> None:
    names = ["a*.json", "ab.json", "a b.json", "a%20b.json", "a#.json", "a[b].json", "a{b,c}.json"]
    for number, name in enumerate([*names, "a?.json", "a\\b.json"]):
        put(tmp_path / name, f'{{"n":{number}}}\n')
    assert rows("json") == [{"n": number} for number in range(9)]


def test_files_that_are_gone_are_named(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a b.json", "c.json"):
        put(tmp_path / name, '{"n":1}\n')
    files = InputFiles(spark, inputs=[str(tmp_path)], file_format="json", read_options={})
    found = files.found()
    (tmp_path / "a b.json").unlink()
    (missing,) = files.missing(found)
    assert "a%20b.json" in missing
    schema = files.schema_of([each for each in found if each != missing], base="")
    assert files.read([], schema, base="").collect() == []
