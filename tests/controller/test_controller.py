"""A run of the controller: ready only between start and the end of run, and started again without harm."""

import asyncio
from contextlib import suppress
from random import Random

import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import ContainerStoppedError, InvalidRequestError
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.errors import RetryLaterError
from segmentstore.controller.settings import ControllerSettings
from segmentstore.runtime.clock import SystemWallClock
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables


def controller_over(segments: MemorySegments, tables: MemoryTables) -> Controller:
    return Controller(
        segments=segments,
        tables=tables,
        wall_clock=SystemWallClock(),
        random=Random(1),
        locate=lambda name: Endpoint("127.0.0.1", 12345),
        settings=ControllerSettings(),
    )


async def create_scope(controller: Controller, scope: str) -> int:
    request = api.ScopeInfo(scope=scope).SerializeToString()
    answer = api.CreateScopeStatus()
    answer.ParseFromString(await controller.service.answer("createScope", request))
    return answer.status


async def test_calls_are_answered_between_start_and_the_end_of_run() -> None:
    controller = controller_over(MemorySegments(), MemoryTables())
    with pytest.raises(RetryLaterError):
        await create_scope(controller, "s")
    await controller.start()
    with pytest.raises(RetryLaterError):
        await create_scope(controller, "s")
    running = asyncio.create_task(controller.run())
    await asyncio.sleep(0)
    assert await create_scope(controller, "s") == api.CreateScopeStatus.Status.SUCCESS
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    with pytest.raises(RetryLaterError):
        await create_scope(controller, "t")


async def test_a_start_that_failed_is_done_again() -> None:
    segments, tables = MemorySegments(), MemoryTables()
    stopped = controller_over(segments, tables.restarted())
    await stopped.start()
    await stopped.start()
    tables.stop()
    controller = controller_over(segments, tables)
    with pytest.raises(ContainerStoppedError):
        await controller.start()
    assert not controller.is_ready


async def test_a_controller_whose_work_ended_starts_again_and_goes_on() -> None:
    controller = controller_over(MemorySegments(), MemoryTables())
    stream = api.StreamInfo(scope="s", stream="a")

    async def call(name: str, request: Message, answer: Message) -> None:
        answer.ParseFromString(await controller.service.answer(name, request.SerializeToString()))

    transaction = api.CreateTxnResponse()

    def known() -> api.TxnRequest:
        return api.TxnRequest(streamInfo=stream, txnId=transaction.txnId)

    for run_number in range(3):
        await controller.start()
        running = asyncio.create_task(controller.run())
        await asyncio.sleep(0)
        if run_number == 0:
            await create_scope(controller, "s")
            config = api.StreamConfig(streamInfo=stream)
            await call("createStream", config, api.CreateStreamStatus())
            request = api.CreateTxnRequest(streamInfo=stream, lease=20_000)
            await call("createTransaction", request, transaction)
        if run_number == 1:
            status = api.TxnStatus()
            await call("commitTransaction", known(), status)
            assert status.status == api.TxnStatus.Status.SUCCESS
            scale = api.ScaleRequest(
                streamInfo=stream,
                sealedSegments=[0],
                newKeyRanges=[api.ScaleRequest.KeyRangeEntry(start=0.0, end=1.0)],
            )
            scaled = api.ScaleResponse()
            await call("scale", scale, scaled)
            assert scaled.status == api.ScaleResponse.ScaleStreamStatus.STARTED
        if run_number == 2:
            await call("sealStream", stream, api.UpdateStreamStatus())
            state = api.TxnState()
            await call("checkTransactionState", known(), state)
            assert state.state == api.TxnState.State.COMMITTED
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_repair_comes_before_start_and_finds_nothing_in_a_new_store() -> None:
    controller = controller_over(MemorySegments(), MemoryTables())
    report = await controller.repair()
    assert (report.created, report.stranger_count) == ([], 0)
    await controller.start()


@pytest.mark.parametrize(("address", "port"), [("localhost", 1), ("", 1), ("10.0.0.1", 0)])
def test_an_endpoint_is_an_address_and_a_port(address: str, port: int) -> None:
    with pytest.raises(InvalidRequestError):
        Endpoint(address, port)
