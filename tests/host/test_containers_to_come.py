"""A container that is about to start here is waited for as one that is starting: no other process has it.

A process listens before its containers begin, and what connects to sockets that a parent keeps has asked before that. A
container that has failed starts again after a pause.
"""

import asyncio

from segmentstore.codec.wire_protocol.appends import SetupAppend
from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.service_builder import open_service
from segmentstore.host.setting_sources import resolve_settings
from tests.host.simple_container import SimpleContainer
from tests.wire.protocol_client import ProtocolClient

HERE, ELSEWHERE = ContainerId(0), ContainerId(1)


async def test_a_writer_that_comes_before_the_containers_begin_is_not_sent_away() -> None:
    resolved = resolve_settings(
        flags={
            "tier1.kind": "memory",
            "tier2.place": "memory",
            "http.address": "127.0.0.1:0",
            "wire.address": "127.0.0.1:0",
            "controller.address": "off",
        },
        environment={},
    )
    async with open_service(resolved) as service, asyncio.TaskGroup() as group:
        await service.servers.start()
        host, port = service.servers.addresses().wire.rsplit(":", 1)
        client = await ProtocolClient.connect((host, int(port)))
        client.send(SetupAppend(1, bytes(16), "scope/stream/0.#epoch.0", ""))
        try:
            for _ in range(3):
                await client.ask(KeepAlive(), KeepAlive)
            managing = group.create_task(service.manager.run())
            assert (await client.expect(NoSuchSegment)).request_id == 1
            managing.cancel()
        finally:
            await client.close()
            await service.servers.close()


async def test_a_container_that_failed_is_waited_for_until_it_runs_or_stays_down() -> None:
    registry = ContainerRegistry(container_count=2)
    registry.expect([HERE])

    async def waiting() -> asyncio.Task[None]:
        task = asyncio.create_task(registry.wait_while_starting(HERE))
        await asyncio.sleep(0)
        return task

    first, second = SimpleContainer(HERE), SimpleContainer(HERE)
    registry.set_starting(first)
    registry.set_absent(first, reason="failed: slow", failed=True)
    task = await waiting()
    registry.set_starting(second)
    await asyncio.sleep(0)
    assert not task.done()
    registry.set_running(second)
    await task
    registry.set_absent(second, reason="failed: damaged", failed=True)
    task = await waiting()
    assert not task.done()
    registry.set_kept_down(HERE, reason="stays down", published=None)
    await task
    registry.check()


async def test_a_container_that_is_not_of_this_host_is_not_waited_for() -> None:
    registry = ContainerRegistry(container_count=2)
    registry.expect([HERE])
    await registry.wait_while_starting(ELSEWHERE)
