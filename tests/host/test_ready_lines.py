"""What a process announces is true of that moment."""

import asyncio

import pytest

from segmentstore.host import standalone
from segmentstore.host.service_builder import Service, open_service
from segmentstore.host.setting_sources import resolve_settings

FLAGS = {
    "tier1.kind": "memory",
    "tier2.place": "memory",
    "http.address": "127.0.0.1:0",
    "wire.address": "127.0.0.1:0",
    "controller.address": "127.0.0.1:0",
    "kafka.address": "127.0.0.1:0",
}


async def test_a_start_names_what_does_not_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "_SERVERS_SECONDS_MAX", 0.05)
    monkeypatch.setattr(standalone, "freeze_long_lived_objects", lambda: None)
    resolved = resolve_settings(flags=FLAGS, environment={})
    async with open_service(resolved) as service, asyncio.TaskGroup() as group:
        await service.servers.start()
        managing = group.create_task(service.manager.run())
        try:
            # Nothing recovers the controller and topics.
            words = await announced(service)
            assert "recovering=controller,topics,groups" in words
            running = group.create_task(service.servers.run())
            await service.servers.wait_until_ready()
            words = await announced(service)
            assert words[0] == "ready"
            assert not any(each.startswith("recovering=") for each in words)
            running.cancel()
        finally:
            await service.servers.close()
            managing.cancel()


async def announced(service: Service) -> list[str]:
    lines: list[str] = []
    await standalone._announce_when_ready(service, lines.append)
    (line,) = lines
    return line.split()
