"""Calls that meet a controller before it has recovered."""

import asyncio

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.controller.errors import RetryLaterError
from tests.controller.api.conftest import Node

CREATE = api.ScopeInfo(scope="s").SerializeToString()


async def test_a_call_waits_for_a_controller_that_recovers(silent_node: Node) -> None:
    service = silent_node.controller.service
    call = asyncio.create_task(service.answer_when_ready("createScope", CREATE, wait_seconds=60))
    await asyncio.sleep(0)
    await silent_node.start()
    answer = api.CreateScopeStatus()
    answer.ParseFromString(await call)
    assert answer.status == api.CreateScopeStatus.SUCCESS


async def test_a_call_is_told_to_come_back_when_the_recovery_takes_too_long(
    silent_node: Node,
) -> None:
    with pytest.raises(RetryLaterError):
        await silent_node.controller.service.answer_when_ready(
            "createScope", CREATE, wait_seconds=0.01
        )
