"""A process dies behind each request that it makes, or the answer is lost: the log opens again with the same entries.

The requests of an opening, of a rollover, of a truncation and of the replacement of a failed ledger are counted, and
each of them is the last of one run: without effect, or with an effect of which the process does not hear.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

import pytest

from segmentstore.contracts.errors import (
    DurableDataLogError,
    LogCorruptedError,
    LogDisabledError,
    LogInUseError,
    LogNotPrimaryError,
)
from segmentstore.contracts.identifiers import BufferView, LogAddress
from tests.contracts.durable_data_log_suite import entries, opened, payloads
from tests.tier1.bookkeeper.simulated_metadata import MemoryMetadataStore
from tests.tier1.bookkeeper.worlds import PATH, SMALL, BookKeeperLogWorld
from tier1.bookkeeper.ledgers import (
    LabelledLedger,
    LedgerClient,
    LedgerId,
    LedgerReader,
    LedgerUnavailableError,
    LedgerWriter,
    Quorum,
)
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.log_record import LogRecord, decode_record, encode_record
from tier1.bookkeeper.metadata_store import (
    MetadataStore,
    MetadataUnavailableError,
    VersionedValue,
)
from tier1.bookkeeper.opening import fence_ledgers, take_record
from tier1.bookkeeper.owned_record import edit_record, read_record, vacate_record

Result = TypeVar("Result")


class Steps:
    """Counts the requests of a process that change something, and fails from one of them on."""

    def __init__(self) -> None:
        self.count = 0
        self.fails_at: int | None = None
        self.takes_effect = False
        self.fails_once = False

    async def take(
        self, step: Callable[[], Awaitable[Result]], error: DurableDataLogError
    ) -> Result:
        self.count += 1
        fails = self.fails_at is not None and (
            self.count == self.fails_at if self.fails_once else self.count >= self.fails_at
        )
        if not fails:
            return await step()
        if self.takes_effect and self.count == self.fails_at:
            await step()
        raise error


class _StepMetadata:
    """Implements MetadataStore."""

    def __init__(self, real: MetadataStore, steps: Steps) -> None:
        self._real = real
        self._steps = steps

    async def get(self, path: str) -> VersionedValue | None:
        return await self._real.get(path)

    async def create(self, path: str, value: bytes) -> int:
        return await self._steps.take(
            lambda: self._real.create(path, value), MetadataUnavailableError("lost")
        )

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        return await self._steps.take(
            lambda: self._real.compare_and_set(path, value, version=version),
            MetadataUnavailableError("lost"),
        )

    async def delete(self, path: str, *, version: int) -> None:
        await self._steps.take(
            lambda: self._real.delete(path, version=version), MetadataUnavailableError("lost")
        )

    async def children(self, path: str) -> list[str]:
        return await self._real.children(path)

    async def close(self) -> None:
        await self._real.close()


class _StepWriter:
    """Implements LedgerWriter."""

    def __init__(self, real: LedgerWriter, steps: Steps) -> None:
        self._real = real
        self._steps = steps
        self.append = real.append

    @property
    def ledger_id(self) -> LedgerId:
        return self._real.ledger_id

    @property
    def quorum(self) -> Quorum:
        return self._real.quorum

    async def close(self) -> None:
        await self._steps.take(self._real.close, LedgerUnavailableError("lost"))


class _StepLedgers:
    """Implements LedgerClient."""

    def __init__(self, real: LedgerClient, steps: Steps) -> None:
        self._real = real
        self._steps = steps

    async def create(self, quorum: Quorum, *, labels: dict[str, bytes]) -> LedgerWriter:
        writer = await self._steps.take(
            lambda: self._real.create(quorum, labels=labels), LedgerUnavailableError("lost")
        )
        return _StepWriter(writer, self._steps)

    async def open_fenced(self, ledger_id: LedgerId) -> LedgerReader:
        return await self._steps.take(
            lambda: self._real.open_fenced(ledger_id), LedgerUnavailableError("lost")
        )

    async def open_unfenced(self, ledger_id: LedgerId) -> LedgerReader:
        return await self._real.open_unfenced(ledger_id)

    async def delete(self, ledger_id: LedgerId) -> None:
        await self._steps.take(lambda: self._real.delete(ledger_id), LedgerUnavailableError("lost"))

    async def find_labelled(self, labels: Mapping[str, bytes]) -> list[LabelledLedger]:
        return await self._real.find_labelled(labels)

    async def living_bookies(self) -> int:
        return await self._real.living_bookies()

    async def close(self) -> None:
        await self._real.close()


class StepWorld(BookKeeperLogWorld):
    """A process' requests are counted."""

    def stepped(self, steps: Steps) -> BookKeeperDurableDataLog:
        client = self.bookies.client()
        log = BookKeeperDurableDataLog(
            PATH,
            ledgers=_StepLedgers(client, steps),
            metadata=_StepMetadata(self.metadata, steps),
            random=Random(5),
            settings=self.settings,
            owner="stepped",
        )
        self.clients[id(log)] = client
        return log


Story = Callable[[BookKeeperDurableDataLog, StepWorld], Awaitable[dict[LogAddress, bytes]]]


async def _open(log: BookKeeperDurableDataLog, world: StepWorld) -> dict[LogAddress, bytes]:
    await log.initialize()
    address = await log.append([b"appended"])
    return {address: b"appended"}


async def _roll_over(log: BookKeeperDurableDataLog, world: StepWorld) -> dict[LogAddress, bytes]:
    await log.initialize()
    acknowledged = {}
    large = bytes(SMALL.ledger_bytes_max // 3)
    for number in range(8):
        payload = bytes([number]) + large
        acknowledged[await log.append([payload])] = payload
        await asyncio.sleep(0.01)
    return acknowledged


async def _truncate(log: BookKeeperDurableDataLog, world: StepWorld) -> dict[LogAddress, bytes]:
    acknowledged = await _roll_over(log, world)
    addresses = sorted(acknowledged)
    await log.truncate(addresses[5])
    await asyncio.sleep(0.2)
    await log.truncate(addresses[6])
    return {address: acknowledged[address] for address in addresses[7:]}


async def _replace(log: BookKeeperDurableDataLog, world: StepWorld) -> dict[LogAddress, bytes]:
    await log.initialize()
    acknowledged = {await log.append([b"before"]): b"before"}
    world.bookies.fill()
    futures = [log.append([bytes([number])]) for number in range(5)]
    await asyncio.sleep(0.05)
    world.bookies.free()
    for number, address in enumerate(await asyncio.gather(*futures)):
        acknowledged[address] = bytes([number])
    return acknowledged


STORIES: dict[str, Story] = {
    "opening": _open,
    "rollover": _roll_over,
    "truncation": _truncate,
    "replacement": _replace,
}
QUICK = replace(SMALL, retry_seconds_max=0.5)


async def _tell(
    story: Story, steps: Steps
) -> tuple[StepWorld, dict[LogAddress, bytes], BaseException | None]:
    """The world, what was acknowledged and not truncated, and how the story ended."""
    world = StepWorld(settings=QUICK)
    first = await opened(world)
    kept = {await first.append([b"first"]): b"first"}
    await world.kill(first)
    log = world.stepped(steps)
    told: dict[LogAddress, bytes] = {}
    failure: BaseException | None = None
    honest = log.append

    def append(
        entry: Sequence[BufferView], *, internal: bool = False
    ) -> "asyncio.Future[LogAddress]":
        payload = b"".join(entry)
        future = honest(entry, internal=internal)

        def note(done: "asyncio.Future[LogAddress]") -> None:
            if not done.cancelled() and done.exception() is None:
                told[done.result()] = payload

        future.add_done_callback(note)
        return future

    log.append = append  # type: ignore[method-assign]
    try:
        kept_by_story = await story(log, world)
        if story is _truncate:
            kept = {}
            told = kept_by_story
    except DurableDataLogError as error:
        failure = error
    await asyncio.sleep(0)
    world.bookies.free()
    await world.kill(log)
    return world, kept | told, failure


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("takes_effect", [False, True])
async def test_h40_a_crash_at_any_step_leaves_a_log_that_opens_with_the_same_entries(
    name: str, takes_effect: bool
) -> None:
    steps = Steps()
    _, _, failure = await _tell(STORIES[name], steps)
    assert failure is None
    assert steps.count >= 3
    for number in range(1, steps.count + 1):
        broken = Steps()
        broken.fails_at = number
        broken.takes_effect = takes_effect
        world, kept, _ = await _tell(STORIES[name], broken)
        await _require(world, kept)


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("takes_effect", [False, True])
async def test_one_lost_request_or_answer_ends_nothing(name: str, takes_effect: bool) -> None:
    steps = Steps()
    await _tell(STORIES[name], steps)
    for number in range(1, steps.count + 1):
        broken = Steps()
        broken.fails_at = number
        broken.takes_effect = takes_effect
        broken.fails_once = True
        world, kept, failure = await _tell(STORIES[name], broken)
        assert failure is None, f"step {number}: {failure!r}"
        await _require(world, kept)


async def _require(world: StepWorld, kept: dict[LogAddress, bytes]) -> None:
    """Two owners more find all of it, and the same."""
    first = await opened(world)
    found = await entries(first)
    assert {address: payload for address, payload in found if address in kept} == kept
    await world.kill(first)
    second = await opened(world)
    assert await entries(second) == found
    await second.append([b"and goes on"])
    await second.close()


# --- owners --------------------------------------------------------------------------------------


async def test_h47_of_two_that_open_at_once_one_owns_the_log() -> None:
    world = BookKeeperLogWorld()
    for _ in range(10):
        logs = [world.log() for _ in range(3)]
        outcomes = await asyncio.gather(*(log.initialize() for log in logs), return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, int | LogInUseError | LogNotPrimaryError), outcome
        alive = []
        for log, outcome in zip(logs, outcomes, strict=True):
            if isinstance(outcome, int):
                with suppress(LogNotPrimaryError):
                    await log.append([b"mine"])
                    alive.append(log)
        assert len(alive) == 1
        for log in logs:
            await log.close()


async def test_h47_an_old_owner_changes_nothing_in_the_record() -> None:
    world = BookKeeperLogWorld()
    old = await opened(world)
    address = await old.append([b"old"])
    new = await opened(world)
    before = await read_record(PATH, metadata=world.metadata)
    with pytest.raises(LogNotPrimaryError):
        await old.truncate(address)
    with pytest.raises(LogNotPrimaryError):
        await old.append([b"too late"])
    await old.disable("by one who does not own it")
    assert await read_record(PATH, metadata=world.metadata) == before
    await old.close()
    await new.close()


async def test_h47_an_old_owner_does_not_take_a_record_that_was_made_anew_for_its_own() -> None:
    """Its versions begin again, and come past the one that the old owner saw last."""
    world = BookKeeperLogWorld()
    old = await opened(world)
    address = await old.append([b"old"])
    found = world.metadata.values[PATH]
    await world.metadata.delete(PATH, version=found.version)
    new = await opened(world)
    kept = [(await new.append([b"new"]), b"new")]
    before = world.metadata.values[PATH]
    assert before.version == found.version
    with pytest.raises(LogNotPrimaryError):
        await old.truncate(address)
    assert world.metadata.values[PATH] == before
    await old.close()
    await new.close()
    successor = await opened(world)
    assert await entries(successor) == kept
    await successor.close()


@dataclass(slots=True)
class _MetadataThatWaits(MemoryMetadataStore):
    """The next change waits for what happens meanwhile."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def compare_and_set(self, path: str, value: bytes, *, version: int) -> int:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await MemoryMetadataStore.compare_and_set(self, path, value, version=version)


async def test_h47_a_change_that_was_under_way_when_the_log_was_set_aside_reaches_no_later_log() -> (
    None
):
    """It names the version that it has read; no version comes again at the path."""
    world = BookKeeperLogWorld()
    world.metadata = metadata = _MetadataThatWaits(world.network)
    old = await opened(world)
    address = await old.append([b"old"])
    stale = metadata.values[PATH].version
    successors = []

    async def set_aside() -> None:
        await vacate_record(PATH, metadata=metadata, version=await _fence(world))
        assert await read_record(PATH, metadata=metadata) is None
        new = await opened(world)
        await new.append([b"new"])
        successors.append(new)
        for number in range(10):
            if metadata.values[PATH].version != stale:
                await edit_record(PATH, partial(_noted, f"look {number}"), metadata=metadata)

    metadata.meanwhile = set_aside
    with pytest.raises(LogNotPrimaryError):
        await old.truncate(address)
    await old.close()
    await edit_record(PATH, partial(_noted, ""), metadata=metadata)
    for new in successors:
        await new.close()
    successor = await opened(world)
    assert await payloads(successor) == [b"new"]
    await successor.close()


def _noted(disabled: str, found: LogRecord | None) -> LogRecord:
    assert found is not None
    return replace(found, disabled=disabled)


@pytest.mark.parametrize("is_own", [True, False])
async def test_an_owner_tells_that_an_older_state_of_its_record_was_put_back(
    *, is_own: bool
) -> None:
    """With an old copy of ZooKeeper's data, from before its claim or from before its newest ledgers: what they have is
    lost if the log goes on with that."""
    world = BookKeeperLogWorld()
    await (await opened(world)).close()
    copies = [world.metadata.values[PATH]]
    log = await opened(world)
    copies.append(world.metadata.values[PATH])
    for _ in range(8):
        await log.append([bytes(20_000)])
    address = await log.append([b"newest"])
    await log.truncate(address)
    newest = world.metadata.values[PATH]
    await log.check_owner()
    world.metadata.values[PATH] = copies[is_own]
    for ask in (log.check_owner, lambda: log.truncate(address)):
        with pytest.raises(LogCorruptedError, match="older state"):
            await ask()
    assert world.metadata.values[PATH] == copies[is_own]
    await log.close()
    assert len(decode_record(newest.value, path=PATH).ledgers)


async def _fence(world: BookKeeperLogWorld) -> int:
    found = world.metadata.values[PATH]
    version = await take_record(
        PATH, found, metadata=world.metadata, owner="a tool", random=Random(7)
    )
    await fence_ledgers(PATH, found, ledgers=world.bookies.client())
    return version


@pytest.mark.parametrize("disabled", ["", "a person said so"])
async def test_h47_the_owner_of_a_log_that_was_fenced_completes_nothing_more(disabled: str) -> None:
    world = BookKeeperLogWorld()
    appending = await opened(world)
    address = await appending.append([b"kept"])
    await edit_record(
        PATH,
        lambda found: replace(found, disabled=disabled) if found else None,
        metadata=world.metadata,
    )
    await _fence(world)
    with pytest.raises(LogNotPrimaryError, match="a tool"):
        await appending.append([b"lost"])
    await appending.close()
    await edit_record(
        PATH, lambda found: replace(found, disabled="") if found else None, metadata=world.metadata
    )
    idle = await opened(world)
    assert await entries(idle) == [(address, b"kept")]
    await _fence(world)
    with pytest.raises(LogNotPrimaryError, match="a tool"):
        await idle.truncate(address)
    await idle.close()


async def test_a_ledger_that_is_gone_keeps_no_log_from_being_fenced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = BookKeeperLogWorld()
    log = await opened(world)
    await log.append([b"x"])
    await world.kill(log)
    record = decode_record(world.metadata.values[PATH].value, path=PATH)
    world.bookies.delete_ledger(record.ledgers[-1].ledger_id)
    assert await _fence(world) == world.metadata.values[PATH].version
    assert "a ledger is not fenced" in caplog.text


async def test_a_log_is_made_with_an_identity_and_keeps_it() -> None:
    world = BookKeeperLogWorld()
    identity = LogRecord(bytes(range(16)), follows=bytes(16), follows_changes=7)
    await edit_record(
        PATH, lambda found: identity if found is None else None, metadata=world.metadata
    )
    log = await opened(world)
    assert (log.log_id, log.follows, log.follows_changes) == (bytes(range(16)), bytes(16), 7)
    assert log.is_new
    await log.close()


async def test_the_epoch_floor_is_exceeded() -> None:
    world = BookKeeperLogWorld()
    client = world.bookies.client()
    log = BookKeeperDurableDataLog(
        PATH, ledgers=client, metadata=world.metadata, random=Random(1), epoch_floor=57
    )
    assert await log.initialize() == 58
    await log.close()


async def test_a_log_that_was_disabled_while_it_was_owned_stays_disabled() -> None:
    world = BookKeeperLogWorld()
    log = await opened(world)
    await edit_record(
        PATH,
        lambda found: replace(found, disabled="a person said so") if found else None,
        metadata=world.metadata,
    )
    await log.truncate(await log.append([b"goes on"]))
    await log.close()
    with pytest.raises(LogDisabledError, match="a person said so"):
        await world.log().initialize()


async def test_a_record_that_does_not_read_back_ends_the_opening_in_words() -> None:
    world = BookKeeperLogWorld()
    await (await opened(world)).close()
    stored = world.metadata.values[PATH]
    world.metadata.values[PATH] = replace(stored, value=stored.value[:-1])
    with pytest.raises(LogCorruptedError, match="fails its checksum"):
        await world.log().initialize()


async def test_a_ledger_that_is_gone_is_damage_and_never_an_empty_log() -> None:
    world = BookKeeperLogWorld()
    log = await opened(world)
    await log.append([b"x"])
    await world.kill(log)
    record = decode_record(world.metadata.values[PATH].value, path=PATH)
    world.bookies.delete_ledger(record.ledgers[-1].ledger_id)
    with pytest.raises(LogCorruptedError, match="a ledger of the log is gone"):
        await world.log().initialize()


async def test_a_ledger_that_ends_before_the_record_says_is_damage() -> None:
    world = BookKeeperLogWorld()
    log = await opened(world)
    await log.append([b"x"])
    await log.close()
    second = await opened(world)
    await second.close()
    stored = world.metadata.values[PATH]
    record = decode_record(stored.value, path=PATH)
    longer = replace(record.ledgers[0], last_entry=1)
    world.metadata.values[PATH] = replace(
        stored, value=encode_record(replace(record, ledgers=(longer, *record.ledgers[1:])))
    )
    third = await opened(world)
    with pytest.raises(LogCorruptedError, match="ends elsewhere than the record says"):
        await payloads(third)
    await third.close()
