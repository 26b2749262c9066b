"""One name refuses everything, for good: what does not need it goes on, and the next run of the controller begins.

Method: a verb runs while one of the names that it touches refuses; then another process starts over the same store,
while the name still refuses. Every verb, every name that it touches, every kind of error.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.key_value_table_record import (
    KeyValueTableRecord,
)
from segmentstore.codec.controller_records.record_keys import (
    SCOPES_TABLE,
    TRANSACTIONS_TABLE,
    scope_table,
)
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    CorruptedDataError,
    InvalidRequestError,
    NotATableError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.key_value_tables import (
    TABLES_INDEX,
    UNFINISHED_TABLES_INDEX,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from tests.controller.cluster import SteppingClock
from tests.controller.refusing_doors import MakeError, Refusals, RefusingSegments, RefusingTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

ERRORS: dict[str, MakeError] = {
    "down": lambda: ContainerNotFoundError(ContainerId(3), "failed: will not be restarted"),
    "corrupt": lambda: CorruptedDataError("a record does not parse"),
    "not a table": lambda: NotATableError("segment is not a table"),
    "invalid": lambda: InvalidRequestError("name is refused"),
    "gone": lambda: SegmentNotFoundError("it"),
}

Call = tuple[str, Message]

STREAM = api.StreamInfo(scope="s", stream="a")
CONFIG = api.StreamConfig(
    streamInfo=STREAM, scalingPolicy=api.ScalingPolicy(minNumSegments=2, scaleFactor=2)
)
GROUP = api.ReaderGroupConfiguration(
    scope="s",
    readerGroupName="g",
    readerGroupId="1",
    retentionType=1,
    startingStreamCuts=[api.StreamCut(streamInfo=STREAM)],
)
TABLE = api.KeyValueTableConfig(scope="s", kvtName="t", partitionCount=2, primaryKeyLength=3)

CREATE_STREAM: Call = ("createStream", CONFIG)
CREATE_GROUP: Call = ("createReaderGroup", GROUP)
CREATE_TABLE: Call = ("createKeyValueTable", TABLE)
SEAL_STREAM: Call = ("sealStream", STREAM)

VERBS: dict[str, tuple[list[Call], Call]] = {
    "create stream": ([], CREATE_STREAM),
    "scale": (
        [CREATE_STREAM],
        (
            "scale",
            api.ScaleRequest(
                streamInfo=STREAM,
                sealedSegments=[0],
                newKeyRanges=[
                    api.ScaleRequest.KeyRangeEntry(start=0.0, end=0.25),
                    api.ScaleRequest.KeyRangeEntry(start=0.25, end=0.5),
                ],
            ),
        ),
    ),
    "seal stream": ([CREATE_STREAM], SEAL_STREAM),
    "delete stream": ([CREATE_STREAM, SEAL_STREAM], ("deleteStream", STREAM)),
    "create group": ([CREATE_STREAM], CREATE_GROUP),
    "delete group": (
        [CREATE_STREAM, CREATE_GROUP],
        ("deleteReaderGroup", api.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId="1")),
    ),
    "create table": ([], CREATE_TABLE),
    "delete table": (
        [CREATE_TABLE],
        ("deleteKeyValueTable", api.KeyValueTableInfo(scope="s", kvtName="t")),
    ),
    "delete scope": ([], ("deleteScope", api.ScopeInfo(scope="s"))),
}


class Store:
    """What outlives a controller."""

    def __init__(self) -> None:
        self.refusals = Refusals()
        self.segments = RefusingSegments(self.refusals)
        self.tables = RefusingTables(self.refusals)

    def restart(self) -> None:
        self.segments, self.tables = self.segments.restarted(), self.tables.restarted()

    def controller(self) -> Controller:
        return Controller(
            segments=self.segments,
            tables=self.tables,
            wall_clock=SteppingClock(),
            random=Random(1),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(
                transactions=TransactionSettings(retry_seconds_min=0.01, retry_seconds_max=0.1)
            ),
        )


async def call(controller: Controller, name: str, request: Message) -> bytes:
    return await controller.service.answer(name, request.SerializeToString())


@asynccontextmanager
async def working(controller: Controller) -> AsyncIterator[None]:
    await controller.start()
    run = asyncio.create_task(controller.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def require_another_scope_works(controller: Controller) -> None:
    stream = api.StreamInfo(scope="other", stream="b")
    for name, request in (
        ("createStream", api.StreamConfig(streamInfo=stream, scalingPolicy=CONFIG.scalingPolicy)),
        ("sealStream", stream),
        ("deleteStream", stream),
    ):
        answer = api.CreateStreamStatus.FromString(await call(controller, name, request))
        assert answer.status == 0, f"{name} answers {answer}"


async def attempt(store: Store, before: list[Call], verb: Call, name: str, error: str) -> None:
    async with working(controller := store.controller()):
        for scope in ("s", "other"):
            await call(controller, "createScope", api.ScopeInfo(scope=scope))
        for each in before:
            await call(controller, *each)
        if name:
            store.refusals.of(name, ERRORS[error])
        store.refusals.seen.clear()
        with suppress(SegmentStoreError, TimeoutError):
            async with asyncio.timeout(1):
                await call(controller, *verb)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_name_that_refuses_for_good_keeps_no_controller_from_starting(
    verb: str, error: str
) -> None:
    async def touched(_: SimLoop) -> list[str]:
        store = Store()
        await attempt(store, *VERBS[verb], "", error)
        return [each for each in store.refusals.seen if each != SCOPES_TABLE]

    for name in [*run_simulation(1, touched).result, TRANSACTIONS_TABLE]:

        async def main(_: SimLoop, name: str = name) -> None:
            store = Store()
            await attempt(store, *VERBS[verb], name, error)
            for _life in range(2):
                store.restart()
                async with working(controller := store.controller()):
                    if name == TRANSACTIONS_TABLE:
                        assert any("transactions" in each for each in controller.complaints())
                        continue
                    await require_another_scope_works(controller)
                    if name == scope_table("s", 1) and error != "gone":
                        assert any("scope s" in each for each in controller.complaints())
            store.refusals.end()
            store.restart()
            async with working(controller := store.controller()):
                # Longer than any pause between two attempts.
                await asyncio.sleep(60)
                assert controller.complaints() == [], f"{name} stays unfinished"
                await require_another_scope_works(controller)

        run_simulation(1, main)


def test_a_scope_that_answers_again_is_taken_up_without_another_life() -> None:
    async def main(_: SimLoop) -> None:
        store = Store()
        await attempt(store, *VERBS["create stream"], "s/a/1.#epoch.0", "down")
        store.refusals.of(scope_table("s", 1), ERRORS["down"])
        store.restart()
        async with working(controller := store.controller()):
            assert any("scope s" in each for each in controller.complaints())
            store.refusals.end()
            await asyncio.sleep(30)
            assert not controller.is_incomplete
            assert controller.complaints() == []
            assert "s/a/1.#epoch.0" in store.segments.names()

    run_simulation(1, main)


def test_transactions_are_read_as_soon_as_they_can_be() -> None:
    async def main(_: SimLoop) -> None:
        store = Store()
        await attempt(store, [], CREATE_STREAM, "", "")
        store.refusals.of(TRANSACTIONS_TABLE, ERRORS["down"])
        store.restart()
        async with working(controller := store.controller()):
            # What needs no transactions goes on.
            scale = VERBS["scale"][1]
            answer = api.ScaleResponse.FromString(await call(controller, *scale))
            assert answer.status == api.ScaleResponse.ScaleStreamStatus.STARTED
            store.refusals.end()
            await asyncio.sleep(30)
            await call(controller, *SEAL_STREAM)
            assert controller.complaints() == []

    run_simulation(1, main)


def test_a_half_made_table_that_cannot_be_finished_is_taken_back() -> None:
    """An earlier version wrote its intent before it met the reader group's segment of the same name."""

    async def main(_: SimLoop) -> None:
        store = Store()
        async with working(controller := store.controller()):
            await call(controller, "createScope", api.ScopeInfo(scope="s"))
            name = "s/g_kvtable/0.#epoch.0"
            await store.tables.create_table(name)
            async with store.tables.open_table(name) as group:
                await group.update([TableEntry(b"positions", b"of a reader group")])
            record = KeyValueTableRecord(
                state=ScopeItemState.CREATING,
                partition_count=2,
                primary_key_bytes=8,
                secondary_key_bytes=0,
                rollover_bytes=0,
            )
            key = RecordKey("table/g", KeyValueTableRecord.decode)
            table = await controller.components.metadata.scope_table("s")
            batch = Batch()
            batch.put(key, record, await table.read(key))
            batch.list_name(TABLES_INDEX, "g")
            batch.list_name(UNFINISHED_TABLES_INDEX, "g")
            await table.commit(batch)
        store.restart()
        async with working(controller := store.controller()):
            assert controller.complaints() == []
            table = await controller.components.metadata.scope_table("s")
            assert (await table.read(key)).record is None
            assert not (await table.names(TABLES_INDEX, count=1)).names
            async with store.tables.open_table(name) as group:
                [entry] = await group.get([b"positions"])
            assert entry is not None
            assert [each for each in store.tables.names() if "_kvtable" in each] == [name]

    run_simulation(1, main)


async def _refusal_of(controller: Controller, name: str, request: Message) -> SegmentStoreError:
    with pytest.raises(InvalidRequestError) as refused:
        await call(controller, name, request)
    return refused.value


@pytest.mark.parametrize(
    ("name", "request_of"),
    [
        (
            "createReaderGroup",
            lambda s, n: api.ReaderGroupConfiguration(
                scope=s, readerGroupName=n, readerGroupId="i"
            ),
        ),
        (
            "createKeyValueTable",
            lambda s, n: api.KeyValueTableConfig(
                scope=s, kvtName=n, partitionCount=1, primaryKeyLength=8
            ),
        ),
        (
            "createReaderGroup",
            lambda s, n: api.ReaderGroupConfiguration(
                scope=s,
                readerGroupName="g",
                readerGroupId="i",
                retentionType=1,
                startingStreamCuts=[
                    api.StreamCut(streamInfo=api.StreamInfo(scope=s, stream=40 * n))
                ],
            ),
        ),
    ],
    ids=["group", "table", "group of a stream"],
)
def test_names_that_are_too_long_are_refused_before_anything_is_written(
    name: str, request_of: Callable[[str, str], Message]
) -> None:
    async def main(_: SimLoop) -> None:
        store = Store()
        scope = "s" * 250
        async with working(controller := store.controller()):
            await call(controller, "createScope", api.ScopeInfo(scope=scope))
            await _refusal_of(controller, name, request_of(scope, "g" * 250))
            table = await controller.components.metadata.scope_table(scope)
            for index in ("groups", "tables", "unfinished-groups", "unfinished-tables"):
                assert not (await table.names(index, count=1)).names
        store.restart()
        async with working(controller := store.controller()):
            assert controller.complaints() == []

    run_simulation(1, main)
