"""Pravega's Java client 0.13.0, unmodified, against a server of ours: one JVM runs the scenarios of java/."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.integration.pravega_clients.server_under_test import server_under_test
from tests.integration.pravega_clients.toolchain import (
    java_command,
    java_scenario_names,
    require_java,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

SECONDS_MAX = 1700
"""Of all scenarios in one JVM, which take one minute on a quiet machine; below the end of a test here."""
SOME_SECONDS_MAX = 550
"""Of some of them; below the end of a test elsewhere."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, dict[str, object]]]:
    require_java()
    directory = tmp_path_factory.mktemp("java-client")
    with server_under_test(directory) as uri:
        yield run_scenarios(uri, directory, seconds_max=SECONDS_MAX)


def run_scenarios(
    uri: str, directory: Path, names: Sequence[str] = (), *, seconds_max: float = SOME_SECONDS_MAX
) -> Mapping[str, dict[str, object]]:
    """What each scenario came to, of all if none is named; those that were not reached are not there."""
    output = directory / "output"
    with output.open("wb") as lines, (directory / "errors").open("wb") as errors:
        command = [*java_command(), "clients.Scenarios", uri, "java", *names]
        process = subprocess.Popen(command, stdout=lines, stderr=errors)
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()
            process.wait()
    found = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    return {one["scenario"]: one for one in found}


@pytest.mark.parametrize("name", java_scenario_names())
def test_the_java_client_finds_that(name: str, results: Mapping[str, dict[str, object]]) -> None:
    assert name in results, f"the JVM ended before this scenario: {sorted(results)}"
    assert results[name]["passed"], str(results[name]["failure"])
