"""What `make test` runs its stages with: it counts what passed, and leaves nothing behind when it is ended."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ROOT / ".ci" / "stages.py"
# Who is started in the background is told to ignore SIGINT, and hands that on.
LOAD = f"""
import importlib.util, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
spec = importlib.util.spec_from_file_location("stages", {str(STAGES)!r})
stages = importlib.util.module_from_spec(spec)
sys.modules["stages"] = stages
spec.loader.exec_module(stages)
"""
# A stage that started another process, and says which when both are there.
ENDLESS = """
import subprocess, sys, time
program = "import time; time.sleep(600)"
other = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
try:
    print("other", other.pid, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("what it says at its end")
"""


@pytest.fixture
def stages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stages", STAGES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("closing", "code", "passed", "failed"),
    [
        ("12 passed in 0.11s", 0, 12, 0),
        ("3 failed, 575 passed, 1 error in 250.11s (0:04:10)", 1, 575, 4),
        ("INTERNALERROR", 3, 0, 1),
    ],
)
def test_the_closing_line_is_counted_and_no_failure_is_missed(
    stages: ModuleType, closing: str, code: int, passed: int, failed: int
) -> None:
    program = f"print({closing!r}); raise SystemExit({code})"
    (outcome,) = stages.run([stages.Stage("some", [sys.executable, "-c", program], tests=True)])
    assert (outcome.passed, outcome.failed) == (passed, failed)


def test_temporary_files_are_in_memory_where_a_stage_says_so(
    stages: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import tempfile; print(f'in {tempfile.gettempdir()}.')"
    stages.run(
        [
            stages.Stage(name, [sys.executable, "-c", program], in_memory=name == "computed")
            for name in ("computed", "integration")
        ],
        tmp_path,
    )
    computed, integration = capfd.readouterr().out.split("== integration")
    assert f"in {tmp_path}." in computed
    assert f"in {tempfile.gettempdir()}." in integration


def test_a_machine_with_little_memory_for_files_keeps_all_on_the_disk(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_MEMORY", tmp_path)
    made = stages.made_in_memory()
    assert made is not None
    assert made.parent == tmp_path
    monkeypatch.setattr(stages, "_MEMORY_BYTES_MIN", 1 << 62)
    assert stages.made_in_memory() is None
    monkeypatch.setattr(stages, "_MEMORY", tmp_path / "not there")
    assert stages.made_in_memory() is None


def test_the_lanes_run_at_the_same_time_and_print_in_order(
    stages: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of the first two waits for a file that the other one makes; the third begins when its lane is free."""
    wait = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
    make = "import pathlib\npathlib.Path({!r}).touch()\nprint({!r})\n"
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    programs = {
        "first": make.format(one, "says first") + wait.format(other),
        "behind": wait.format(one) + make.format(other, "says behind"),
        "last": f"assert __import__('os').path.exists({other!r})\nprint('says last')",
    }
    outcomes = stages.run(
        [
            stages.Stage(name, [sys.executable, "-c", program], behind=name == "behind")
            for name, program in programs.items()
        ]
    )
    assert [each.failed for each in outcomes] == [0, 0, 0]
    printed = [f"{words} {name}" for name in programs for words in ("==", "says")]
    assert capfd.readouterr().out.splitlines() == printed


def test_a_stage_that_is_to_be_alone_waits_for_both_lanes(
    stages: ModuleType, tmp_path: Path
) -> None:
    made = str(tmp_path / "made")
    late = f"import pathlib, time\ntime.sleep(1)\npathlib.Path({made!r}).touch()"
    look = f"assert __import__('os').path.exists({made!r})"
    first = stages.Stage("first", [sys.executable, "-c", ""])
    behind = stages.Stage("behind", [sys.executable, "-c", late], behind=True)
    alone = stages.Stage("alone", [sys.executable, "-c", look], alone=True)
    outcomes = stages.run([first, behind, alone])
    assert [each.failed for each in outcomes] == [0, 0, 0]


def test_what_is_computed_behind_is_left_out_in_front(stages: ModuleType) -> None:
    by_name = {stage.name: stage for stage in stages.STAGES}
    words = [word for word in by_name["unit"].command if word.startswith("--ignore=")]
    assert words == [f"--ignore={path}" for path in stages.COMPUTED]
    assert list(by_name["unit: computed"].command[-len(words) :]) == stages.COMPUTED
    assert all((ROOT / path).exists() for path in stages.COMPUTED)
    assert not any("api" in Path(path).parts for path in stages.COMPUTED)
    assert stages.STAGES[-1].alone


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stage_that_is_ended_takes_along_what_it_started(
    number: signal.Signals, behind: bool
) -> None:
    stage = f"stages.Stage('endless', [sys.executable, '-c', {ENDLESS!r}], behind={behind})"
    stage = f"stages.STAGES = ({stage},)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{LOAD}\n{stage}\nstages.main()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as runner:
        assert runner.stdout is not None
        other = next(int(line.split()[1]) for line in runner.stdout if line.startswith("other"))
        runner.send_signal(number)
        rest, _ = runner.communicate(timeout=60)
    assert runner.returncode != 0
    said = rest.splitlines()
    assert said[0] == "== endless: ended early"
    assert "what it says at its end" in said[1:]
    for _ in range(600):
        if not runs(other):
            return
        time.sleep(0.05)
    raise AssertionError(f"it still runs process={other}")


def runs(process: int) -> bool:
    """A process that nobody waited for runs no more."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
