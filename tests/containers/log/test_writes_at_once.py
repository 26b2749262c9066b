"""Small appends wait for a frame in flight only while the log has as many as it writes at once."""

import asyncio
from dataclasses import replace

import pytest

from segmentstore.contracts.durable_data_log import WriteSettings
from tests.containers.node import MemoryTiers, running
from tests.containers.test_rules_failure import HeldLog


class WideLog(HeldLog):
    """Writes some entries at once."""

    writes_at_once = 1

    @property
    def write_settings(self) -> WriteSettings:
        return replace(super().write_settings, writes_at_once=self.writes_at_once)


@pytest.mark.parametrize("writes_at_once", [1, 3])
async def test_a_small_append_is_written_at_once_while_the_log_takes_more_writes(
    writes_at_once: int,
) -> None:
    tiers = MemoryTiers()
    log = WideLog(tiers)
    log.writes_at_once = writes_at_once
    async with running(tiers, log=log) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            log.held = True
            futures = []
            for number in range(5):
                futures.append(segment.append(b"%d" % number))
                for _ in range(5):
                    await asyncio.sleep(0)
            assert len(log.unanswered) == writes_at_once
            log.go_on()
            assert await asyncio.gather(*futures) == [1, 2, 3, 4, 5]
