"""Some seeds of random runs of a controller; a few of each theme; and every seed that ever found something.

Of the first some are passed over: a world that draws a Tier 2 of tiny objects beside slow requests takes as long as ten
others. `python -m tests.controller.random_runs` plays all there are.
"""

from pathlib import Path

import pytest

from tests.controller.random_runs.__main__ import run_seed
from tests.controller.random_runs.settings import Theme

pytestmark = [pytest.mark.simulation, pytest.mark.slow]

_REGRESSIONS = Path(__file__).with_name("regressions.txt")


def _regressions() -> list[int]:
    lines = _REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("seed", [*range(201, 205), 207, 208, *range(210, 215), 216])
def test_streams_transactions_and_names_are_what_clients_were_told(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("theme", list(Theme))
@pytest.mark.parametrize("seed", range(9, 12))
def test_a_run_about_one_thing_is_what_clients_were_told(theme: Theme, seed: int) -> None:
    run_seed(seed, theme=theme)


def test_runs_that_once_found_something_find_nothing_now() -> None:
    for seed in _regressions():
        run_seed(seed)


def test_the_same_seed_leads_to_the_same_run() -> None:
    assert run_seed(2).fingerprint == run_seed(2).fingerprint
