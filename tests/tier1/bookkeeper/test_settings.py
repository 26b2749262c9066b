"""Settings of the log on BookKeeper that cannot work are refused in a sentence."""

from typing import Any

import pytest

from tier1.bookkeeper.ledgers import Quorum
from tier1.bookkeeper.settings import BookKeeperLogSettings


def test_what_production_runs_with_is_allowed() -> None:
    settings = BookKeeperLogSettings(quorum_with_few_bookies=Quorum(2, 2, 2))
    assert settings.quorum == Quorum(3, 3, 2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"quorum": Quorum(2, 3, 2)}, "a quorum has .* quorum=2/3/2"),
        ({"quorum": Quorum(3, 2, 3)}, "a quorum has .* quorum=3/2/3"),
        ({"quorum": Quorum(3, 3, 0)}, "a quorum has .* quorum=3/3/0"),
        ({"quorum_with_few_bookies": Quorum(3, 3, 2)}, "needs fewer bookies than quorum does"),
        ({"quorum_with_few_bookies": Quorum(2, 2, 1)}, "as many copies with few bookies"),
        ({"quorum_with_few_bookies": Quorum(2, 3, 2)}, "quorum_with_few_bookies=2/3/2"),
        ({"entry_bytes_max": 0}, "entry_bytes_max is from 1 to 4194304"),
        ({"entry_bytes_max": (4 << 20) + 1}, "entry_bytes_max is from 1 to 4194304"),
        ({"ledger_bytes_max": 1000}, "a ledger has room for one entry at least"),
        ({"outstanding_bytes_max": 1000}, "an entry of the largest size may be in flight"),
        ({"retry_seconds_max": 0}, "retry_seconds_max is above zero"),
        ({"look_again_seconds": -1}, "look_again_seconds is above zero"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BookKeeperLogSettings(**given)
