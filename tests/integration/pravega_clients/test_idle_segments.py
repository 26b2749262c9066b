"""Ten thousand segments that nobody uses cost nothing: no entry of the log, no request to Tier 2, next to no CPU.

Method: make them through the controller, append one event to each over the wire, wait until everything has reached
Tier 2, then compare the store's own counters over ten seconds in which nothing is asked of it, and its processor time
with that of an empty store in the same ten seconds. What else the machine does can only add to such a time: where it is
too much, it is measured again, and the least counts.
"""

import asyncio
import os
import re
import struct
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from segmentstore.codec.wire_protocol.appends import (
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command, Hello
from segmentstore.codec.wire_protocol.frames import decode_command
from tests.integration.pravega_clients.controller_calls import ControllerCalls
from tests.integration.pravega_clients.store_process import StoreProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

STREAMS, SEGMENTS_OF_EACH = 20, 500
IDLE_SECONDS = 10.0
MEASUREMENTS_MAX = 6
QUIET_SECONDS = 25
CPU_FRACTION_MAX = 0.05
"""A quiet machine shows less than 0.01."""
CPU_TIMES_EMPTY_MAX = 3
"""A machine that is busy with other things makes each look at the clock cost more, also that of an empty store."""
EVENT = struct.pack(">ii", 0, 5) + b"event"
QUIET_OPTIONS = ["--set", "writer.flush_interval_seconds=1s"]
QUIET_OPTIONS += ["--set", "tier2.garbage_grace_seconds=1s"]
"""What merges of runs left behind is deleted soon: an idle store has nothing due."""
COUNTERS = re.compile(
    r"^segmentstore_container_(frames_total|tier2_puts_total|tier2_gets_total)\{[^}]*\} (\S+)$",
    re.MULTILINE,
)


async def test_ten_thousand_idle_segments_cost_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        StoreProcess(tmp_path / "empty", QUIET_OPTIONS) as empty,
        StoreProcess(tmp_path / "data", QUIET_OPTIONS) as server,
    ):
        async with ControllerCalls(server.uri.removeprefix("tcp://")) as controller:
            for number in range(STREAMS):
                await controller.create("idle", f"s{number}", SEGMENTS_OF_EACH)
        for number in range(STREAMS):
            await append_to_each(
                server.wire_port,
                [f"idle/s{number}/{segment}.#epoch.0" for segment in range(SEGMENTS_OF_EACH)],
            )
        before = await quiet_counters(server)
        measured = [await idle_fractions(server, empty)]
        after = counters(server)
        while is_busy(measured) and len(measured) < MEASUREMENTS_MAX:
            measured.append(await idle_fractions(server, empty))
    with capsys.disabled():
        for fraction, fraction_empty in measured:
            sys.stdout.write(
                f"\n{STREAMS * SEGMENTS_OF_EACH} idle segments: {fraction:.2%} of a core, "
                f"an empty store: {fraction_empty:.2%}\n"
            )
    assert after == before
    assert not is_busy(measured), measured


async def idle_fractions(server: StoreProcess, empty: StoreProcess) -> tuple[float, float]:
    """Of a core that each of the two takes, over the same seconds."""
    loop = asyncio.get_running_loop()
    at, began = loop.time(), [cpu_seconds(each.process_id) for each in (server, empty)]
    await asyncio.sleep(IDLE_SECONDS)
    seconds = loop.time() - at
    ended = [cpu_seconds(each.process_id) for each in (server, empty)]
    return (ended[0] - began[0]) / seconds, (ended[1] - began[1]) / seconds


def is_busy(measured: Sequence[tuple[float, float]]) -> bool:
    """Whether the store takes more than a quiet one may, and than an empty one does, by the least of each."""
    fraction = min(each for each, _ in measured)
    fraction_empty = min(each for _, each in measured)
    return fraction >= max(CPU_FRACTION_MAX, CPU_TIMES_EMPTY_MAX * fraction_empty)


async def append_to_each(port: int, segments: Sequence[str]) -> None:
    """One event to each, over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(Hello(16, 5).encode())
        assert isinstance(await receive(reader), Hello)
        for number, segment in enumerate(segments):
            writer.write(SetupAppend(number, writer_id(number), segment, "").encode())
        for _ in segments:
            assert isinstance(await receive(reader), AppendSetup)
        for number in range(len(segments)):
            append = AppendBlockEnd(writer_id(number), len(EVENT), EVENT, 1, 0, number)
            writer.write(append.encode())
        for _ in segments:
            assert isinstance(await receive(reader), DataAppended)
    finally:
        writer.close()
        await writer.wait_closed()


def writer_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def receive(reader: asyncio.StreamReader) -> Command:
    async with asyncio.timeout(60):
        kind, length = struct.unpack(">ii", await reader.readexactly(8))
        return decode_command(kind, memoryview(await reader.readexactly(length)))


async def quiet_counters(server: StoreProcess) -> Mapping[str, float]:
    """The counters, once they have stood still for longer than the upkeep of Tier 2 pauses.

    Upkeep looks once at what earlier owners left, when everything is flushed; that is not what an idle store does.
    """
    async with asyncio.timeout(900):
        seen, since = counters(server), 0
        while since < 2 * QUIET_SECONDS:
            await asyncio.sleep(0.5)
            now = counters(server)
            since = since + 1 if now == seen else 0
            seen = now
        return seen


def counters(server: StoreProcess) -> Mapping[str, float]:
    """What was written to the log and asked of Tier 2, over all containers."""
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for name, value in COUNTERS.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    assert len(sums) == 3, f"counters found={sorted(sums)}"
    return sums


def cpu_seconds(process_id: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
