"""The wheel holds every product file, so that what is installed is what was tested."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("segmentstore", "pyspark_segmentstore", "containers", "tier1", "tier2")
_ONLY_SOURCES = (".c", ".h", ".md", ".pyi", ".proto")


def test_the_wheel_holds_every_product_file(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), "."],
        cwd=clone,
        check=True,
    )
    (wheel,) = tmp_path.glob("segmentstore-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    listed = subprocess.run(
        ["git", "ls-files", *_PACKAGES], cwd=clone, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = {each for each in listed if not each.endswith(_ONLY_SOURCES)}
    assert expected <= held, f"missing in the wheel: {sorted(expected - held)}"
    assert any(each.endswith("entry_points.txt") for each in held), "the command is installed"
