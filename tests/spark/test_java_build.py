"""The jar of the Java reader."""

import shutil
import zipfile
from pathlib import Path

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jvm.jar_build import build, jar_name, jvm_jar
from tests.integration.java_libraries import missing

pytestmark = pytest.mark.slow


def test_the_jar_is_built_once_and_names_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("javac") is None:
        missing(
            "javac is missing: the Java reader was not compiled; install a JDK of release 17 or later"
        )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = jvm_jar()
    assert jar == tmp_path / "segmentstore" / jar_name()
    with zipfile.ZipFile(jar) as archive:
        described = archive.read(
            "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
        )
        provider = described.decode().strip().replace(".", "/") + ".class"
        assert provider in archive.namelist()
    before = jar.stat().st_mtime_ns
    assert jvm_jar() == jar
    assert jar.stat().st_mtime_ns == before
    assert build(tmp_path / "again").read_bytes() == jar.read_bytes()
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]


def test_without_a_compiler_a_sentence_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequestError, match="needs a JDK"):
        build(tmp_path)
