"""Our checker and porcupine say the same of a thousand histories, of which each fifth is of a store that lies."""

import pytest

from tests.linearizability import porcupine_referee
from tests.linearizability.checker import violation
from tests.linearizability.random_history import LIES, random_history
from tests.linearizability.test_checker import RIGHT, WRONG

pytestmark = pytest.mark.integration

COUNT = 1000


def test_porcupine_agrees_on_a_thousand_histories() -> None:
    lies = list(LIES)
    histories = [
        random_history(
            seed, lie="" if seed % 5 else lies[seed // 5 % len(lies)], operation_count=40
        )
        for seed in range(COUNT)
    ]
    found = porcupine_referee.verdicts(histories)
    ours = ["right" if violation(each) is None else "wrong" for each in histories]
    differing = [seed for seed in range(COUNT) if found[seed] not in (ours[seed], "undecided")]
    assert differing == []
    assert found.count("undecided") <= COUNT // 100
    assert ours.count("wrong") > COUNT // 10


def test_porcupine_agrees_on_the_cases_by_hand() -> None:
    histories = [*RIGHT.values(), *WRONG.values()]
    assert porcupine_referee.verdicts(histories) == ["right"] * len(RIGHT) + ["wrong"] * len(WRONG)
