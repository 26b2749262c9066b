"""What a seed draws: worlds that wait long look less often at what waits, and are what they were in all else."""

from dataclasses import replace
from random import Random

import pytest

from tests.sim.settings import draw_swarm

pytestmark = pytest.mark.simulation


def test_tier_2_is_looked_after_rarely_where_troubles_last_long() -> None:
    seen: dict[float, float] = {}
    for seed in range(200):
        swarm = draw_swarm(Random(seed))
        trouble = swarm.trouble
        pauses = trouble.pause_seconds_max if trouble.pause else 0.0
        is_away = trouble.store_down or trouble.cut_off
        longest = max(pauses, trouble.store_down_seconds_max if is_away else 0.0)
        seen[longest] = swarm.node.maintenance_seconds
    rarely = {1000.0: 1000 / 300, 3600.0: 12.0}
    assert rarely.keys() <= seen.keys()
    assert seen == {longest: rarely.get(longest, 1.0) for longest in seen}


def test_how_often_tier_2_is_looked_after_is_not_in_the_text_that_seeds_other_draws() -> None:
    swarm = draw_swarm(Random(1))
    rarer = replace(swarm, node=replace(swarm.node, maintenance_seconds=1e6))
    assert repr(rarer) == repr(swarm)
