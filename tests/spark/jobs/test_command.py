"""The words of `segmentstore spark submit`, as far as they need no Spark."""

from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.main import run
from segmentstore.cli.spark_session import pairs_of, require_spark
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.jobs.file_import import ImportPlan, versions_of


def test_every_job_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for job in ("verify", "compact", "stats", "export", "import"):
        assert run(["spark", "submit", job, "--help"]) == ExitCode.OK
        assert "--master" in capsys.readouterr().out


def test_compaction_needs_an_owner_and_not_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["spark", "submit", "compact", "--tier2", str(tmp_path)]
    for more in ([], ["--server", "http://127.0.0.1:1", "--data", str(tmp_path)]):
        assert run([*words, *more]) == ExitCode.USAGE
        assert "name the owner" in capsys.readouterr().err


def test_a_missing_java_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(InvalidRequestError, match="Spark needs Java 17"):
        require_spark()


def test_pairs_are_keys_and_values() -> None:
    assert pairs_of(["a=1", "b=x=y"], "--conf") == {"a": "1", "b": "x=y"}
    with pytest.raises(InvalidRequestError, match="--conf takes KEY=VALUE"):
        pairs_of(["a"], "--conf")


def test_the_version_of_a_batch_never_changes_when_files_are_planned_later() -> None:
    first = ImportPlan("app", "{}", (("a", "b"), ("c",)))
    second = ImportPlan("app", "{}", (("d",),))
    assert [(number, files) for number, _, files in versions_of([first])] == [
        (1, ("a", "b")),
        (2, ("c",)),
    ]
    assert [number for number, _, _ in versions_of([first, second])] == [1, 2, 3]
    assert ImportPlan.of_entry(first.as_entry()) == first
