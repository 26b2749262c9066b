"""What `make soak` runs: tests that draw from seeds, on the seeds that were asked for, and nothing else."""

from tests import soak


def test_a_test_that_draws_from_seeds_gets_those_that_were_asked_for_and_no_other_test_runs() -> (
    None
):
    listed = soak.pytest("--collect-only", "tests/runtime/test_backoff.py", seeds=2, first=77)
    assert listed.returncode == 0, listed.stdout
    name = "test_a_pause_takes_one_draw_and_keeps_at_least_half"
    found = [line for line in listed.stdout.splitlines() if "::" in line]
    assert found == [f"tests/runtime/test_backoff.py::{name}[{seed}]" for seed in (77, 78)]


def test_a_file_without_seeds_is_passed_over() -> None:
    paths = ["tests/runtime/test_backoff.py", "tests/runtime/test_waiting.py"]
    assert soak.files_with_seeds(paths) == paths[:1]
