"""What is raised inside of `except*` comes alone or in another group, as the release of Python has it.

In 3.11.2, which Debian 12 has, an error that such a block raises, also a cancellation of what it waits for, comes out
in a group of its own, which the `except` of a caller passes by; in 3.11.7 it comes alone. So these blocks take note;
what is to be raised or waited for comes behind them. A bare `raise` gives the group on, in every release.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("containers", "pyspark_segmentstore", "segmentstore", "tier1", "tier2")


def doubtful_lines(source: str) -> list[int]:
    """Of what `except*` blocks raise or wait for."""
    return [
        node.lineno
        for block in ast.walk(ast.parse(source))
        if isinstance(block, ast.TryStar)
        for handler in block.handlers
        for node in ast.walk(handler)
        if (isinstance(node, ast.Raise) and node.exc is not None)
        or isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
    ]


def test_no_block_that_takes_a_group_apart_raises_or_waits() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 300
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in paths
        for line in doubtful_lines(path.read_text())
    ]
    assert not found, "raise and wait behind the block"


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("raise KeyError from group", 1),
        ("await end()", 1),
        ("if group:\n            raise KeyError", 1),
        ("raise", 0),
        ("lost = group", 0),
    ],
)
def test_a_block_that_raises_or_waits_is_found(body: str, count: int) -> None:
    source = f"async def work():\n    try:\n        pass\n    except* ValueError as group:\n        {body}\n"
    assert len(doubtful_lines(source)) == count
