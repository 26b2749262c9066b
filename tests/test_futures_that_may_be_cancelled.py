"""Whoever waits for a future may cancel it, and a future that is done takes no result: InvalidStateError.

Every set_result() and set_exception() of the tree is looked at. It is safe if the future was made in the same function,
if the same function looks at done() before, or if it is one of those below.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("containers", "segmentstore", "tier1", "tier2")

HANDED_OUT_BY_NO_ONE = {
    "segmentstore/spark/python_worker.py": "futures of threads, made for one call each",
    "tier1/file_log/frame_writer.py:_append_lone": "append() made it in the same stretch",
}
"""By file, or by file and function, and why."""

SETTERS = ("set_result", "set_exception")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def unsafe_calls(path: Path) -> list[str]:
    """Where a result is set without a look, as file:line."""
    found: list[str] = []
    name = path.relative_to(ROOT).as_posix()
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if f"{name}:{function.name}" in HANDED_OUT_BY_NO_ONE or name in HANDED_OUT_BY_NO_ONE:
            continue
        looked_at = {
            ast.unparse(node.func.value): node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "done"
        }
        made = {
            ast.unparse(target): node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if "create_future()" in ast.unparse(node.value)
        }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in SETTERS:
                continue
            future = ast.unparse(node.func.value)
            seen = [at for at in (looked_at.get(future), made.get(future)) if at is not None]
            if not any(at <= node.lineno for at in seen):
                found.append(f"{name}:{node.lineno} {future}.{node.func.attr}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_result_is_set_on_a_future_that_may_be_cancelled(package: str) -> None:
    found = [
        call
        for path in sources()
        if path.is_relative_to(ROOT / package)
        for call in unsafe_calls(path)
    ]
    assert not found, "\n".join(found)
