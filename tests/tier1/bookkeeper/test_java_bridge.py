"""The bridge between the loop and Java, with a stand-in for the side of Java."""

import asyncio
import os
import struct
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from segmentstore.contracts.errors import DurableDataLogError
from tier1.bookkeeper.java_bridge import CallFailedError, JavaBridge
from tier1.bookkeeper.java_client import (
    JavaClientSettings,
    JavaLedgerClient,
    JavaLedgerReader,
    JavaLedgerWriter,
)
from tier1.bookkeeper.ledgers import (
    LedgerId,
    LedgerNotFoundError,
    LedgerUnavailableError,
    Quorum,
)


class JavaSide:
    """What LedgerBridge does; a test says what ended."""

    def __init__(self, stage: bytearray, pipe: int) -> None:
        self._stage = stage
        self._pipe = pipe
        self.appended: list[tuple[int, bytes]] = []
        self.handed_over = 0
        self.takes_nothing = False
        self.results: dict[int, object] = {}
        self.begun: list[int] = []
        self.opened: list[tuple[int, bool]] = []
        self.forgotten: list[int] = []
        self.closed_writers: list[int] = []
        self._ended = array("q")

    def append(self, count: int) -> None:
        self.handed_over += 1
        if self.takes_nothing:
            raise JavaError
        at = 0
        while at < count:
            writer, length = struct.unpack_from("<ii", self._stage, at)
            at += 8
            self.appended.append((writer, bytes(self._stage[at : at + length])))
            at += length

    def end(self, number: int, acknowledged: int = 0, code: int = 0) -> None:
        self._ended.extend((number, acknowledged, code))
        os.write(self._pipe, b"\1")

    def drain(self) -> "array[int]":
        ended, self._ended = self._ended, array("q")
        return ended

    def take(self, number: int) -> object:
        return self.results.pop(number)

    def takeMessage(self, number: int) -> object:  # noqa: N802  # of Java
        return self.results.pop(number)

    def forgetWriter(self, number: int) -> None:  # noqa: N802  # of Java
        self.forgotten.append(number)

    def closeWriter(self, number: int, writer: int) -> None:  # noqa: N802  # of Java
        self.closed_writers.append(writer)
        self.results[number] = None
        self.end(-number)

    def create(self, number: int, *_: object) -> None:
        self.begun.append(number)

    def open(self, number: int, ledger: int, fences: bool) -> None:
        self.begun.append(number)
        self.opened.append((ledger, fences))

    def read(self, number: int, *_: object) -> None:
        self.begun.append(number)

    def close(self) -> None:
        os.close(self._pipe)


class Writer:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, int]] = []
        self.errors: list[DurableDataLogError] = []

    def report(self, acknowledged: int, code: int) -> None:
        self.reports.append((acknowledged, code))

    def fail(self, error: DurableDataLogError) -> None:
        self.errors.append(error)

    def look_for_progress(self, now: float) -> None:
        pass


class JavaError(Exception):
    """An exception of Java."""


class Held:
    """What Java gives out and wants back: entries that were read, or the handle of a ledger."""

    def __init__(self) -> None:
        self.closings = 0

    def close(self) -> None:
        self.closings += 1

    def closeAsync(self) -> None:  # noqa: N802  # of Java
        self.closings += 1


def bridged(
    *, call_seconds_max: float = 60.0, staging_bytes: int = 100
) -> tuple[JavaBridge, JavaSide]:
    pipe, pipe_end = os.pipe()
    os.set_blocking(pipe, False)
    stage = bytearray(staging_bytes)
    side = JavaSide(stage, pipe_end)
    java: Any = SimpleNamespace(
        nio=SimpleNamespace(convertToDirectBuffer=lambda buffer: buffer), JException=JavaError
    )
    bridge = JavaBridge(
        side,
        java,
        thread=ThreadPoolExecutor(max_workers=1),
        pipe=pipe,
        stage=stage,
        hand_over_bytes=80,
        call_seconds_max=call_seconds_max,
    )
    return bridge, side


async def test_a_client_of_java_that_is_given_up_while_it_is_made_is_closed() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    closed: list[str] = []

    def make(*_: object) -> Any:
        begun.set()
        assert goes_on.wait(60)
        return SimpleNamespace(close=lambda: closed.append("close"))

    java: Any = SimpleNamespace(
        nio=SimpleNamespace(convertToDirectBuffer=lambda buffer: buffer),
        JException=JavaError,
        JClass=lambda _: make,
    )
    connecting = asyncio.create_task(
        JavaBridge.connect(
            java,
            dict,
            password=b"",
            staging_bytes=100,
            hand_over_bytes=80,
            call_seconds_max=60.0,
        )
    )
    await seen(begun.is_set)
    connecting.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert closed == ["close"]


async def test_entries_of_one_turn_are_handed_over_together_and_in_order() -> None:
    bridge, side = bridged()
    for number in range(3):
        bridge.append(number, [b"%d" % number, memoryview(b"-rest")], 6)
    assert side.handed_over == 0
    await asyncio.sleep(0)
    assert side.handed_over == 1
    assert side.appended == [(number, b"%d-rest" % number) for number in range(3)]
    await bridge.close()


async def test_what_does_not_fit_beside_earlier_entries_follows_them_at_once() -> None:
    bridge, side = bridged()
    bridge.append(1, [b"a" * 40], 40)
    bridge.append(1, [b"b" * 50], 50)
    bridge.append(1, [b"c" * 92], 92)
    assert [entry[:1] for _, entry in side.appended] == [b"a", b"b", b"c"]
    await bridge.close()


async def test_a_late_report_of_a_writer_that_was_forgotten_ends_nothing() -> None:
    bridge, side = bridged()
    kept, forgotten = Writer(), Writer()
    bridge.register_writer(1, forgotten)
    bridge.register_writer(2, kept)
    bridge.forget_writer(1)
    for code in (0, -6):
        side.end(1, 5, code)
    side.end(2, 7)
    while not kept.reports:
        await asyncio.sleep(0.001)
    assert forgotten.reports == []
    assert kept.reports == [(7, 0)]
    assert kept.errors == []
    await bridge.close()


async def test_a_call_ends_with_its_result_or_with_its_failure() -> None:
    bridge, side = bridged()

    def well(number: int) -> None:
        side.results[number] = "result"
        side.end(-number)

    def badly(number: int) -> None:
        side.results[number] = "why"
        side.end(-number, code=-7)

    assert (await bridge.call(well))[1] == "result"
    with pytest.raises(CallFailedError, match="why") as caught:
        await bridge.call(badly)
    assert caught.value.code == -7
    await bridge.close()


async def test_a_call_that_nothing_ends_is_given_up() -> None:
    bridge, _ = bridged(call_seconds_max=0.05)
    with pytest.raises(CallFailedError, match="no answer"):
        await bridge.call(lambda number: None)
    await bridge.close()


async def test_a_bug_on_the_way_fails_all_that_wait() -> None:
    bridge, side = bridged()
    writer = Writer()
    bridge.register_writer(1, writer)
    is_called = threading.Event()
    waiting = asyncio.create_task(bridge.call(lambda number: is_called.set()))
    while not is_called.is_set():
        await asyncio.sleep(0.001)
    side.end(-77)  # a call that never was
    with pytest.raises(LedgerUnavailableError):
        await waiting
    assert [type(error) for error in writer.errors] == [LedgerUnavailableError]
    await bridge.close()
    await bridge.close()


async def test_a_writer_without_progress_fails_when_its_time_is_over_and_not_before() -> None:
    bridge, _ = bridged()
    settings = JavaClientSettings(append_seconds_max=30.0)
    client = JavaLedgerClient(bridge, None, settings)
    writer = JavaLedgerWriter(client, bridge, 1, LedgerId(7), Quorum(), settings)
    first, second = writer.append([b"first"]), writer.append([b"second"])
    for now in (1000.0, 1030.0):
        writer.look_for_progress(now)
    assert not first.done()
    writer.report(1, 0)
    for now in (1035.0, 1069.0):
        writer.look_for_progress(now)
    assert await first == 0
    assert not second.done()
    writer.look_for_progress(1071.0)
    with pytest.raises(LedgerUnavailableError, match="no entry was acknowledged for 36 s"):
        await second
    with pytest.raises(LedgerUnavailableError):
        await writer.append([b"later"])
    await bridge.close()


async def test_a_writer_that_rests_does_not_fail() -> None:
    bridge, _ = bridged()
    settings = JavaClientSettings(append_seconds_max=30.0)
    client = JavaLedgerClient(bridge, None, settings)
    writer = JavaLedgerWriter(client, bridge, 1, LedgerId(7), Quorum(), settings)
    for now in (1000.0, 5000.0):
        writer.look_for_progress(now)
    entry = writer.append([b"entry"])
    writer.look_for_progress(5001.0)
    assert not entry.done()
    await bridge.close()
    with pytest.raises(LedgerUnavailableError, match="closed"):
        await entry


async def begun_call(side: JavaSide) -> int:
    """The number of the call that Java was given last, once it has it."""
    while not side.begun:
        await asyncio.sleep(0.001)
    return side.begun.pop()


async def seen(condition: Callable[[], object]) -> None:
    """Returns when it holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("leaves", ["before the end", "with the end"])
async def test_entries_that_came_behind_the_end_of_their_reading_are_given_back(
    leaves: str,
) -> None:
    bridge, side = bridged()
    client = JavaLedgerClient(bridge, None, JavaClientSettings())
    reader = JavaLedgerReader(client, bridge, None, LedgerId(7), 9, 100)
    reading = asyncio.create_task(reader.read(0, 9))
    number = await begun_call(side)
    entries = side.results[number] = Held()
    if leaves == "before the end":
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        side.end(-number)
    else:
        side.end(-number)
        while number in side.results:
            bridge._look()
        reading.cancel()
    await seen(lambda: entries.closings)
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert entries.closings == 1
    await bridge.close()


async def test_entries_that_come_when_their_reading_was_given_up_are_given_back() -> None:
    bridge, side = bridged(call_seconds_max=0.05)
    client = JavaLedgerClient(bridge, None, JavaClientSettings())
    reader = JavaLedgerReader(client, bridge, None, LedgerId(7), 9, 100)
    with pytest.raises(LedgerUnavailableError, match="no answer"):
        await reader.read(0, 9)
    number = await begun_call(side)
    entries = side.results[number] = Held()
    side.end(-number)
    await seen(lambda: entries.closings)
    await bridge.close()


@pytest.mark.parametrize("fences", [False, True])
async def test_an_entry_that_is_missing_fences_no_ledger_that_was_opened_to_look(
    *, fences: bool
) -> None:
    """Why it is missing is asked by another opening; a tool looks at ledgers that are written."""
    bridge, side = bridged()
    client = JavaLedgerClient(bridge, None, JavaClientSettings())
    open_it = client.open_fenced if fences else client.open_unfenced
    opening = asyncio.create_task(open_it(LedgerId(7)))
    side.results[number := await begun_call(side)] = SimpleNamespace(
        getLastAddConfirmed=lambda: 9, getLength=lambda: 100
    )
    side.end(-number)
    reading = asyncio.create_task((await opening).read(0, 9))
    side.results[number := await begun_call(side)] = "no such entry"
    side.end(-number, code=-13)
    side.results[number := await begun_call(side)] = "no such ledger"
    side.end(-number, code=-25)
    with pytest.raises(LedgerNotFoundError):
        async with asyncio.timeout(60):
            await reading
    assert side.opened == [(7, fences), (7, fences)]
    await bridge.close()


async def test_a_ledger_that_was_opened_when_its_caller_had_left_is_closed() -> None:
    bridge, side = bridged()
    client = JavaLedgerClient(bridge, None, JavaClientSettings())
    opening = asyncio.create_task(client.open_fenced(LedgerId(7)))
    number = await begun_call(side)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    handle = side.results[number] = Held()
    side.end(-number)
    await seen(lambda: handle.closings)
    await bridge.close()


async def test_a_ledger_that_was_made_when_its_caller_had_left_is_closed_and_forgotten() -> None:
    bridge, side = bridged()
    java: Any = SimpleNamespace(JClass=lambda _: dict)
    client = JavaLedgerClient(bridge, java, JavaClientSettings())
    making = asyncio.create_task(client.create(Quorum(), labels={}))
    number = await begun_call(side)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    side.results[number] = 7
    side.end(-number)
    await seen(lambda: side.forgotten)
    assert side.closed_writers == side.forgotten == [number]
    await seen(lambda: not side.results)
    await bridge.close()


async def test_of_calls_that_have_ended_nothing_is_kept() -> None:
    bridge, side = bridged()
    waiting = asyncio.create_task(bridge.call(side.read))
    number = await begun_call(side)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    side.results[number] = "why"
    side.end(-number, code=-7)
    await seen(lambda: not side.results)
    assert not bridge._calls
    await bridge.close()


async def test_a_ledger_that_is_made_as_the_client_ends_takes_no_entries() -> None:
    bridge, side = bridged()
    java: Any = SimpleNamespace(JClass=lambda _: dict)
    client = JavaLedgerClient(bridge, java, JavaClientSettings())
    making = asyncio.create_task(client.create(Quorum(), labels={}))
    number = await begun_call(side)
    side.results[number] = 7
    side.end(-number)
    while number in side.results:
        bridge._look()
    await bridge.close()
    with pytest.raises(LedgerUnavailableError, match="closed"):
        async with asyncio.timeout(60):
            await (await making).append([b"entry"])


async def test_behind_entries_that_java_did_not_take_no_ledger_gets_others() -> None:
    bridge, side = bridged()
    settings = JavaClientSettings()
    client = JavaLedgerClient(bridge, None, settings)
    large, small = (
        JavaLedgerWriter(client, bridge, number, LedgerId(number), Quorum(), settings)
        for number in (1, 2)
    )
    lost = small.append([b"lost"])
    side.takes_nothing = True
    refused = large.append([bytes(90)])
    side.takes_nothing = False
    behind = small.append([b"behind it"])
    for each in (lost, refused, behind):
        with pytest.raises(LedgerUnavailableError):
            async with asyncio.timeout(60):
                await each
    assert side.appended == []
    await bridge.close()
