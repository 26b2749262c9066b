"""What the Spark page shows works as it is printed there.

All `python` and `sql` blocks of the page run in order, in one session, against a store of their own. An indented block
behind one is what it prints, if it prints something; numbers and lengths of blanks may differ. Everything is in Tier 2
before the page reads what Tier 2 alone has.
"""

import asyncio
import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from segmentstore.client.topics import connected_topics
from tests.integration.spark.test_streaming_spark import STARTS_MAX, was_too_slow
from tests.spark.live_store import OPTIONS, LiveStore, live_store
from tests.test_pages import ROOT, pattern_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = ROOT / "docs" / "spark.md"
_BLOCK = re.compile(
    r"^```(?P<kind>python|sql)\n(?P<code>.*?)^```\n(?:\n(?P<printed>(?:    [^\n]*\n)+))?",
    re.MULTILINE | re.DOTALL,
)


async def make_topics(address: str, *names: str) -> None:
    async with connected_topics(address) as topics:
        for name in names:
            await topics.create(name, partitions=2)


def run_python(code: str, names: dict[str, object]) -> str:
    """What it printed. A block with a streaming query has nothing else."""
    for _ in range(STARTS_MAX):
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                exec(compile(code, str(PAGE), "exec"), names)
        except StreamingQueryException as error:
            if not was_too_slow(error):
                raise
        else:
            return printed.getvalue()
    raise AssertionError(f"no Python process of Spark's came up in time starts={STARTS_MAX}")


def run_sql(code: str, spark: SparkSession) -> str:
    """What the shell of Spark prints of the last statement."""
    printed = io.StringIO()
    *before, last = [each for each in code.split(";") if each.strip()]
    for statement in before:
        spark.sql(statement)
    with redirect_stdout(printed):
        spark.sql(last).show()
    return printed.getvalue()


def on_this_machine(code: str, live: LiveStore, directory: Path) -> str:
    """The page's places, replaced by those of the test."""
    places = {
        "tcp://127.0.0.1:9090": live.controller,
        "127.0.0.1:9092": live.kafka,
        "s3://lake/store": live.tier2,
        '"data"': f'"{live.tier2}"',
        "'data'": f"'{live.tier2}'",
        '"checkpoint"': f'"{directory / "checkpoint"}"',
        '"checkpoint-of-logs"': f'"{directory / "checkpoint-of-logs"}"',
    }
    for printed, own in places.items():
        code = code.replace(printed, own)
    return code


def test_the_page_shows_what_its_blocks_do(spark: SparkSession, tmp_path: Path) -> None:
    blocks = list(_BLOCK.finditer(PAGE.read_text()))
    assert {block["kind"] for block in blocks} == {"python", "sql"}
    names: dict[str, object] = {"spark": spark}
    compared = 0
    with live_store(tmp_path, options=[*OPTIONS, "--kafka=127.0.0.1:0"]) as live:
        asyncio.run(make_topics(live.kafka, "logs", "logs-copy"))
        for block in blocks:
            if "segmentstore-jvm" in block["code"]:
                live.flush_stream("plant/readings", [0, 1])
            code = on_this_machine(block["code"], live, tmp_path)
            python = block["kind"] == "python"
            found = run_python(code, names) if python else run_sql(code, spark)
            if found:
                assert block["printed"], (
                    f"the page does not show what this prints:\n{block['code']}"
                )
                assert re.fullmatch(pattern_of(block["printed"]), found.strip(), re.DOTALL), (
                    f"{block['code']}\nthe page says:\n{block['printed']}\nit printed:\n{found}"
                )
                compared += 1
        assert compared >= 2
        # What the page only makes can be read as well.
        for format_name in ("segmentstore", "segmentstore-jvm"):
            offline = spark.read.format(format_name).option("tier2", live.tier2)
            readings = offline.option("mode", "offline").option("stream", "plant/readings").load()
            assert readings.count() == 1000
        copied = (
            spark.read.format("segmentstore")
            .option("tier2", live.tier2)
            .option("controller", live.controller)
            .option("stream", "plant/copy")
            .load()
        )
        assert copied.count() == 1000
        for topic in ("logs", "logs-copy"):
            records = spark.read.format("segmentstore").option("kafka", live.kafka)
            assert records.option("topic", topic).load().select("value").distinct().count() == 1000
