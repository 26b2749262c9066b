"""Pravega's Python client (the wheel pravega 0.3.8, which is the Rust client), unmodified, against a server of ours."""

import asyncio
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.integration.pravega_clients.client_program import client_program
from tests.integration.pravega_clients.controller_calls import ControllerCalls
from tests.integration.pravega_clients.server_under_test import server_under_test
from tests.integration.pravega_clients.toolchain import WHEEL, scenario_names, wheel_python

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECONDS_MAX = 500
"""No promise, only an end. The client's pauses grow tenfold, up to ten seconds."""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    wheel_python()
    with server_under_test(tmp_path_factory.mktemp("python-wheel")) as uri:
        yield uri


@pytest.mark.parametrize("name", scenario_names())
def test_the_wheel_finds_that(name: str, uri: str) -> None:
    scope = f"wheel{scenario_names().index(name)}"
    command = [str(wheel_python()), str(WHEEL / "scenarios.py"), uri, scope, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, f"exit_code={done.returncode} {done.stderr[-2000:]}"
    outcome = json.loads(lines[-1])
    assert outcome["passed"], outcome["failure"] + done.stderr[-1500:]


async def until_set(events: Iterable[asyncio.Event]) -> None:
    for each in events:
        await each.wait()


async def test_two_wheels_share_a_reader_group(uri: str, tmp_path: Path) -> None:
    load = [str(wheel_python()), str(WHEEL / "load.py")]
    given = [uri, "shared", "events=2000", "segments=6", "keys=40", "per_second=250"]
    given.append("pause_at=40")
    events: list[str] = []
    busy: set[int] = set()

    joined = {number: asyncio.Event() for number in (1, 2)}
    both_joined = asyncio.Event()

    async def collect(number: int) -> None:
        async with client_program(
            [*load, "share", uri, "shared", f"reader={number}"],
            log_path=tmp_path / f"reader{number}",
            seconds=SECONDS_MAX,
        ) as reader:
            await reader.wait_for_count("paused", 0)
            joined[number].set()
            await both_joined.wait()
            await reader.go_on()
            last: dict[str, int] = {}
            while len(events) < 2000:
                line = await reader.wait_for(lambda line: "events" in line)
                told = line["events"]
                assert isinstance(told, list)
                for event in told:
                    key, _, number_of_key = event.partition(":")
                    assert int(number_of_key) > last.get(key, -1), f"out of order {event}"
                    last[key] = int(number_of_key)
                events.extend(told)
                busy.add(number)

    async with client_program(
        [*load, "write", *given], log_path=tmp_path / "writer", seconds=SECONDS_MAX
    ) as writer:
        await writer.wait_for(lambda line: line.get("ready") is True)
        readers = [asyncio.create_task(collect(number)) for number in (1, 2)]
        try:
            # Both are members before either asks for its segments, and before most of the events are there.
            await writer.wait_for_count("paused", 40)
            joining = asyncio.create_task(until_set(joined.values()))
            await asyncio.wait([joining, *readers], return_when=asyncio.FIRST_COMPLETED)
            joining.cancel()
            both_joined.set()
            await writer.go_on()
            await writer.wait_for_verdict()
            await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS_MAX)
        finally:
            for each in readers:
                each.cancel()
            outcomes = await asyncio.gather(*readers, return_exceptions=True)
    failures = [each for each in outcomes if isinstance(each, Exception)]
    assert not failures, failures
    assert sorted(events) == sorted(f"k{key}:{number}" for key in range(40) for number in range(50))
    assert busy == {1, 2}, f"readers with work: {busy}"


async def test_the_wheel_keeps_each_keys_order_over_scales_under_load(
    uri: str, tmp_path: Path
) -> None:
    load = [str(wheel_python()), str(WHEEL / "load.py")]
    given = [uri, "scaled", "events=3000", "segments=1"]
    async with (
        ControllerCalls(uri.removeprefix("tcp://")) as controller,
        client_program(
            [*load, "write", *given], log_path=tmp_path / "writer", seconds=SECONDS_MAX
        ) as writer,
    ):
        await writer.wait_for(lambda line: line.get("ready") is True)
        async with client_program(
            [*load, "read", *given], log_path=tmp_path / "reader", seconds=SECONDS_MAX
        ) as reader:
            for written, count in ((400, 3), (1200, 2), (2000, 4)):
                await writer.wait_for_count("written", written)
                await controller.scale("scaled", "s", count)
            await writer.wait_for_verdict()
            await reader.wait_for_verdict()


async def test_a_transaction_of_the_wheel_is_committed_across_a_scale(
    uri: str, tmp_path: Path
) -> None:
    load = [str(wheel_python()), str(WHEEL / "load.py")]
    given = [uri, "transaction", "events=200", "segments=2"]
    async with (
        ControllerCalls(uri.removeprefix("tcp://")) as controller,
        client_program(
            [*load, "transaction", *given], log_path=tmp_path / "writer", seconds=SECONDS_MAX
        ) as writer,
    ):
        await writer.wait_for_count("paused", 100)
        await controller.start_scale("transaction", "s", 3)
        await writer.go_on()
        await writer.wait_for_verdict()
        async with client_program(
            [*load, "read", *given], log_path=tmp_path / "reader", seconds=SECONDS_MAX
        ) as reader:
            await reader.wait_for_verdict()
