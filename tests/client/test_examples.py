import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.cli.server_process import ServerProcess
from tests.client.real_server import controller_address

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("examples") / "data") as server:
        yield controller_address(server)


@pytest.mark.parametrize(
    ("name", "last_line"),
    [
        ("write_and_read", "-- 18 more, the last of them: well 9"),
        ("shared_reading", "300 different jobs were done, 0 of them twice"),
        ("all_or_nothing", "readable: ['alice -10', 'bob +10']"),
        ("key_value_table", "counter1 = 10"),
        ("growing_file", "one two three"),
        ("without_asyncio", "line 4"),
    ],
)
def test_an_example_runs_as_written_and_again(address: str, name: str, last_line: str) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", f"segmentstore.client.examples.{name}", address],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.stderr == ""
        assert done.stdout.splitlines()[-1] == last_line


def test_every_example_is_run() -> None:
    folder = Path(__file__).parents[2] / "segmentstore" / "client" / "examples"
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    marks = test_an_example_runs_as_written_and_again.pytestmark  # type: ignore[attr-defined]  # set by the decorator
    assert names == {name for name, _ in marks[0].args[1]}
