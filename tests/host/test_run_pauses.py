"""How long what works over containers waits between its runs."""

from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.run_pauses import (
    BREAK_SECONDS_MAX,
    FIRST_SECONDS,
    WAIT_SECONDS_MAX,
    RunPauses,
)

AWAY = ContainerNotFoundError(ContainerId(1), "recovering")
BUG = ValueError("our bug")


def test_pauses_grow_over_failures_in_a_row_up_to_what_fits_them() -> None:
    for error, seconds_max in ((AWAY, WAIT_SECONDS_MAX), (BUG, BREAK_SECONDS_MAX)):
        pauses = RunPauses()
        seen = [pauses.behind(error, is_lost=False, worked_seconds=0) for _ in range(60)]
        assert seen == sorted(seen)
        assert (seen[0], seen[-1]) == (FIRST_SECONDS, seconds_max)


def test_a_run_that_lost_its_containers_is_no_failure_however_short_it_was() -> None:
    pauses = RunPauses()
    for _ in range(60):
        pauses.behind(AWAY, is_lost=False, worked_seconds=0)
    assert pauses.behind(AWAY, is_lost=True, worked_seconds=0.001) == FIRST_SECONDS
    # An attempt that was cut short by a further move has not worked.
    assert pauses.behind(AWAY, is_lost=True, worked_seconds=0) > FIRST_SECONDS


def test_a_run_that_breaks_is_a_failure_until_one_has_worked_for_a_while() -> None:
    pauses = RunPauses()
    seen = [pauses.behind(BUG, is_lost=False, worked_seconds=9.9) for _ in range(60)]
    assert seen[-1] == BREAK_SECONDS_MAX
    assert pauses.behind(BUG, is_lost=False, worked_seconds=10.1) == FIRST_SECONDS
