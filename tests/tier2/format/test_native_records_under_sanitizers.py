"""Goal: whatever the bytes of batches and blocks say, the native loops read and write nothing outside of their buffers.

Method: they are built once more with the sanitizers for addresses and undefined behaviour, and fuzzed for some seconds;
a planted read behind a buffer shows that the sanitizers are there.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = (
    "tier2/format/native/record_transcoding.c",
    "segmentstore/codec/native/record_columns.c",
)
SECONDS = 4
COMPILER = shutil.which("gcc")
PLACE = "    PyObject *answer = NULL;\n"
PLANTED = "    if (arguments && ((volatile char *)out.buf)[out.len + 1])\n        answer = NULL;\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(COMPILER is None, reason="there is no gcc"),
]


def sanitizers() -> list[str]:
    """The libraries of both; skips where they are not installed."""
    assert COMPILER is not None
    found = []
    for name in ("libasan.so", "libubsan.so"):
        path = subprocess.run(
            [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if not Path(path).is_absolute():
            pytest.skip(f"{name} is not installed")
        found.append(path)
    return found


def built(directory: Path, *, planted: bool) -> list[str]:
    assert COMPILER is not None
    paths = []
    for source in SOURCES:
        text = (ROOT / source).read_text()
        if planted and source == SOURCES[0]:
            assert PLACE in text
            text = text.replace(PLACE, PLACE + PLANTED)
        copy = directory / Path(source).name
        copy.write_text(text)
        library = copy.with_suffix(".so")
        subprocess.run(
            [
                COMPILER, "-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
                "-fno-sanitize-recover=undefined", "-shared", "-fPIC",
                f"-I{sysconfig.get_paths()['include']}", f"-I{ROOT}/segmentstore/runtime/native",
                f"-I{ROOT}/segmentstore/codec/native", str(copy), "-o", str(library),
            ],
            check=True,
        )  # fmt: skip
        paths.append(str(library))
    return paths


def fuzzed(paths: list[str], preloaded: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.tier2.format.fuzz_native_records", "7", str(SECONDS), *paths],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "LD_PRELOAD": " ".join(preloaded),
            "ASAN_OPTIONS": "detect_leaks=0",
            # Small objects have a neighbour in Python's own pools, which no sanitizer watches.
            "PYTHONMALLOC": "malloc",
        },
    )


def test_nothing_outside_of_a_buffer_is_touched(tmp_path: Path) -> None:
    preloaded = sanitizers()
    sound = fuzzed(built(tmp_path, planted=False), preloaded)
    assert sound.returncode == 0, sound.stderr[-3000:]
    assert "damaged batches" in sound.stdout


def test_a_planted_read_behind_a_buffer_is_found(tmp_path: Path) -> None:
    preloaded = sanitizers()
    bad = fuzzed(built(tmp_path, planted=True), preloaded)
    assert bad.returncode != 0
    assert "AddressSanitizer" in bad.stderr
