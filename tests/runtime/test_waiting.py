import asyncio

from containers.writer.storage_writer import Alarm
from tests.sim.simulation import run_simulation


def test_an_alarm_wakes_at_its_time_or_when_it_is_rung_even_beforehand() -> None:
    async def main(_: object) -> list[float]:
        loop = asyncio.get_running_loop()
        alarm = Alarm()
        times = []
        await alarm.wait(loop.time() + 5)
        times.append(loop.time())
        loop.call_later(2, alarm.ring)
        await alarm.wait(float("inf"))
        times.append(loop.time())
        alarm.ring()
        await alarm.wait(float("inf"))
        times.append(loop.time())
        await alarm.wait(loop.time() + 1)
        times.append(loop.time())
        return times

    assert run_simulation(1, main).result == [5, 7, 7, 8]
