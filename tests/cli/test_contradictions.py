"""Options that cannot both be meant are refused before anything is asked or opened."""

from pathlib import Path

import pytest

from segmentstore.cli.exit_codes import ExitCode
from tests.cli.command_line import CommandLine

CONTRADICTIONS = {
    "segment tail s --offset 5 --from-start": "not at both",
    "stream tail s/t --from s/t:0=5 --from-head": "not at both",
    "reader-group create s/g t --from s/t:0=5 --from-tail": "not at both",
    "backup pin b --server http://127.0.0.1:1 --tier2 s3://b/p": "--tier2 goes with --data",
    "backup drop b --server http://127.0.0.1:1 --tier2 s3://b/p": "--tier2 goes with --data",
    "spark submit compact --dry-run --tier2 DIR --server http://127.0.0.1:1 --data DIR": "name the owner",
    "spark submit import f --stream s/t --controller tcp://c:1 --state DIR --kafka k:1": "is for topics",
    "spark submit export DIR --stream s/t --tier2 DIR --kafka k:1": "is for topics",
    "spark submit export DIR --topic t --tier2 DIR --controller tcp://c:1": "is for streams",
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_options_that_contradict_one_another_are_refused(
    offline: CommandLine, tmp_path: Path, words: str
) -> None:
    result = offline(*words.replace("DIR", str(tmp_path)).split())
    assert result.exit_code == ExitCode.USAGE, result
    assert CONTRADICTIONS[words] in result.errors
