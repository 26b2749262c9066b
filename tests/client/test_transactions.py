import asyncio
from dataclasses import replace
from random import Random

import pytest

from segmentstore.client import Store, Stream, Transaction, TransactionState, connect
from segmentstore.client.errors import NotFoundError, TransactionClosedError
from segmentstore.codec.stream_names import transaction_id_of
from segmentstore.codec.wire_protocol.appends import AppendBlockEnd
from segmentstore.contracts.errors import InvalidRequestError
from tests.client.conftest import SETTINGS
from tests.client.fake_controller import FakeController
from tests.client.fake_store import FakeStore


@pytest.fixture
async def stream(store: Store) -> Stream:
    stream = store.stream("s/t")
    await stream.create()
    return stream


async def test_what_is_written_appears_with_the_commit(
    stream: Stream, fake_store: FakeStore
) -> None:
    async with stream.transaction() as transaction:
        for number in range(100):
            await transaction.write(b"%d" % number, key="k")
        await transaction.flush()
        assert fake_store.events("s/t/0.#epoch.0") == []
        assert await transaction.state() is TransactionState.OPEN
    assert fake_store.events("s/t/0.#epoch.0") == [b"%d" % number for number in range(100)]
    assert await transaction.state() is TransactionState.COMMITTED


async def test_an_error_in_the_body_aborts_and_goes_on(
    stream: Stream, fake_store: FakeStore
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with stream.transaction() as transaction:
            await transaction.write(b"%d" % (1 // 0))
    assert fake_store.events("s/t/0.#epoch.0") == []
    assert await transaction.state() is TransactionState.ABORTED


async def test_a_transaction_ends_once(stream: Stream) -> None:
    async with stream.transaction() as transaction:
        await transaction.commit()
        with pytest.raises(TransactionClosedError):
            await transaction.write(b"late")
        with pytest.raises(TransactionClosedError):
            await transaction.abort()


async def test_a_transaction_is_resumed_by_its_id(stream: Stream, fake_store: FakeStore) -> None:
    async with stream.transaction() as transaction:
        await transaction.write(b"first")
        await transaction.flush()
        await transaction.detach()
    assert await stream.transaction_state(transaction.id) is TransactionState.OPEN
    async with await stream.resume_transaction(transaction.id) as resumed:
        await resumed.write(b"second")
    assert fake_store.events("s/t/0.#epoch.0") == [b"first", b"second"]
    with pytest.raises(TransactionClosedError):
        await stream.resume_transaction(transaction.id)
    with pytest.raises(NotFoundError):
        await stream.resume_transaction(f"{transaction_id_of(high=0, low=99):032x}")


async def test_a_resumed_transaction_has_its_lease_from_the_beginning(
    stream: Stream, controller: FakeController
) -> None:
    """Of the one that it was begun with there may be a second left, and nothing tells how long it was."""
    found = await stream.begin_transaction(lease_seconds=30)
    async with await stream.resume_transaction(found, lease_seconds=600) as resumed:
        assert controller.leases_ms == [600_000]
        await resumed.detach()
    controller.lease_ms_max = 60_000
    with pytest.raises(InvalidRequestError, match="lease"):
        async with await stream.resume_transaction(found, lease_seconds=600):
            raise AssertionError("a lease is believed that was not granted")
    await stream.abort_transaction(found)


async def test_a_transaction_that_is_resumed_without_a_lease_keeps_the_one_it_has(
    stream: Stream, controller: FakeController
) -> None:
    """As far as it can be kept: a shorter one would end what another process is to commit later."""
    found = await stream.begin_transaction(lease_seconds=600)
    async with await stream.resume_transaction(found) as resumed:
        await resumed.detach()
    assert controller.leases_ms == [600_000]
    controller.lease_ms_max = 120_000
    async with await stream.resume_transaction(found) as resumed:
        await resumed.detach()
    assert controller.leases_ms[1:] == [600_000, SETTINGS.transaction_lease_seconds * 1000]
    await stream.abort_transaction(found)


async def test_the_lease_is_extended_while_the_body_runs(
    stream: Stream, controller: FakeController
) -> None:
    async with stream.transaction(lease_seconds=0.03):
        while controller.pings < 3:
            await asyncio.sleep(0.001)


@pytest.mark.slow
async def test_a_controller_that_was_away_for_a_while_ends_no_transaction(
    stream: Stream, controller: FakeController, fake_store: FakeStore
) -> None:
    """For longer than a request may take: the controller grants a new lease when it is back."""
    impatient = replace(SETTINGS, request_seconds=1.0)
    async with connect(controller.address, settings=impatient, random=Random(1)) as store:
        async with store.stream("s/t").transaction(lease_seconds=0.03) as transaction:
            controller.unavailable = 1 << 30
            await asyncio.sleep(1.2 * impatient.request_seconds)
            controller.unavailable = 0
            await transaction.write(b"event")
            pings = controller.pings
            async with asyncio.timeout(60):
                while controller.pings < pings + 3:
                    await asyncio.sleep(0.001)
        assert await transaction.state() is TransactionState.COMMITTED
    assert fake_store.events("s/t/0.#epoch.0") == [b"event"]


async def test_a_transaction_that_is_too_old_for_a_new_lease_is_open_until_that_ends(
    stream: Stream,
    controller: FakeController,
    fake_store: FakeStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As at Pravega's clients: what a day of work has written can be committed while the last lease lasts."""
    async with stream.transaction(lease_seconds=0.03) as transaction:
        controller.is_too_old = True
        async with asyncio.timeout(60):
            while "too old" not in caplog.text:
                await asyncio.sleep(0.001)
        await transaction.write(b"late")
    assert await transaction.state() is TransactionState.COMMITTED
    found = await stream.begin_transaction(lease_seconds=600)
    async with await stream.resume_transaction(found) as resumed:
        await resumed.write(b"later")
        assert await resumed.state() is TransactionState.OPEN
    assert fake_store.events("s/t/0.#epoch.0") == [b"late", b"later"]
    ended = await stream.begin_transaction(lease_seconds=600)
    async with await stream.resume_transaction(ended) as resumed:
        await stream.abort_transaction(ended)
        await resumed.write(b"too late")
        with pytest.raises(TransactionClosedError, match="aborted"):
            await resumed.flush()
        await resumed.detach()


async def test_a_transaction_that_was_aborted_elsewhere_says_so(stream: Stream) -> None:
    async with stream.transaction() as transaction:
        await stream.abort_transaction(transaction.id)
        await transaction.write(b"event")
        with pytest.raises(TransactionClosedError):
            await transaction.flush()
        await transaction.detach()


async def test_what_is_decided_otherwise_is_told_to_be_over_and_not_to_be_tried_again(
    stream: Stream,
) -> None:
    """The controller says FAILURE of both, which was told as that it cannot now."""
    aborted = await stream.begin_transaction(lease_seconds=30)
    await stream.abort_transaction(aborted)
    await stream.abort_transaction(aborted)
    with pytest.raises(TransactionClosedError, match="state=aborted"):
        await stream.commit_transaction(aborted)
    committed = await stream.begin_transaction(lease_seconds=30)
    await stream.commit_transaction(committed)
    await stream.commit_transaction(committed)
    with pytest.raises(TransactionClosedError, match="state=committed"):
        await stream.abort_transaction(committed)


async def test_a_commit_behind_the_end_of_the_lease_says_so(stream: Stream) -> None:
    async with stream.transaction() as transaction:
        await stream.abort_transaction(transaction.id)
        with pytest.raises(TransactionClosedError, match="state=aborted"):
            await transaction.commit()
        await transaction.detach()


async def test_a_lease_that_ended_is_noticed(stream: Stream) -> None:
    async with stream.transaction(lease_seconds=0.003) as transaction:
        await stream.abort_transaction(transaction.id)
        with pytest.raises(TransactionClosedError, match="aborted"):
            await _write_for_ever(transaction)
        await transaction.detach()


async def _write_for_ever(transaction: Transaction) -> None:
    while True:
        await transaction.write(b"event")
        await asyncio.sleep(0.001)


async def test_broken_connections_do_not_double_events(
    stream: Stream, fake_store: FakeStore
) -> None:
    seen = 0

    def breaking(_: AppendBlockEnd) -> str:
        nonlocal seen
        seen += 1
        return "drop after" if seen % 2 else "store and answer"

    fake_store.on_append = breaking
    async with stream.transaction() as transaction:
        for number in range(20):
            await transaction.write(b"%d" % number, key="k")
            await transaction.flush()
    assert fake_store.events("s/t/0.#epoch.0") == [b"%d" % number for number in range(20)]
