"""Every file that a document or a docstring names is there, so that a reader who follows a name arrives.

A name is a path from the root, from the folder of the text that names it or from a folder above that one; or the end of
a path below that folder, of exactly one if it is a bare file name.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_NAMED = re.compile(
    r"(?<![\w/.*{<-])((?:\w[\w.-]*/)*[\w-]+\.(?:py|pyi|java|md|proto|c|h|sh))(?![\w/*])"
)
_ROOMS = ("segmentstore", "pyspark_segmentstore", "containers", "tier1", "tier2")


def _listed(*patterns: str) -> list[str]:
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [each for each in found.stdout.splitlines() if (ROOT / each).exists()]


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def _is_there(name: str, folder: Path) -> bool:
    if name == "DESIGN.md":  # every room has one
        return True
    folders = [folder, *folder.parents]
    if any((each / name).exists() for each in folders[: folders.index(ROOT) + 1]):
        return True
    below = [
        each for each in PATHS if each.is_relative_to(folder) and f"/{each}".endswith(f"/{name}")
    ]
    return len(below) == 1 or (bool(below) and "/" in name)


def _missing(text: str, folder: Path) -> list[str]:
    return [each for each in _NAMED.findall(text) if not _is_there(each, folder)]


PATHS = [ROOT / each for each in _listed()]
DOCUMENTS = [each for each in _listed("*.md") if each != "CHANGELOG.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    path = ROOT / document
    assert not _missing(path.read_text(), path.parent)


@pytest.mark.parametrize("room", _ROOMS)
def test_every_file_that_a_docstring_names_is_there(room: str) -> None:
    missing = {
        module: names
        for module in _listed(f"{room}/*.py")
        for text in _docstrings(ROOT / module)
        if (names := _missing(text, (ROOT / module).parent))
    }
    assert not missing
