"""Pravega's Java client at work on a cluster while it suffers: events on one stream, transactions on another.

Each program (clients.Load) writes and reads all the time. Every key's events are numbered, so that the reader sees
what is lost, repeated or out of order; a transaction that was said to be committed is read once and whole, one that was
said to be aborted never. The programs live as long as the block, over as many faults as there are in it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.integration.pravega_clients.client_program import (
    ClientProgram,
    Line,
    as_count,
    client_program,
)
from tests.integration.pravega_clients.toolchain import java_command

LOADS = {
    "events": ("per_second=50", "segments=3"),
    "transactions": ("per_second=50", "segments=3", "transactions=5"),
}
_GO_ON_SECONDS_MAX = 240.0
"""The client's pauses between attempts grow tenfold, up to 30 s for a node and 20 s for a controller; the next faults
come meanwhile."""
_LOOK_SECONDS = 0.1


class PravegaLoad:
    """One program. Made by `pravega_loads`."""

    def __init__(self, name: str, program: ClientProgram) -> None:
        self.name = name
        self.acknowledged = 0
        self.read = 0
        self.readers_lost = 0
        self._program = program
        self._watching = asyncio.create_task(program.wait_for(self._note))

    def __str__(self) -> str:
        counts = f"acknowledged={self.acknowledged} read={self.read}"
        return f"pravega {self.name}: {counts} readers_lost={self.readers_lost}"

    async def until_it_goes_on(self) -> None:
        """Until something was acknowledged, and everything was read that had been acknowledged before."""
        before = self.acknowledged
        try:
            async with asyncio.timeout(_GO_ON_SECONDS_MAX):
                while self.acknowledged <= before or self.read < before:
                    if self._watching.done():
                        await self._watching
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError as error:
            raise AssertionError(f"it stands still: {self} acknowledged before={before}") from error

    async def finish(self) -> None:
        """Have it stop writing and read what is left. Fails unless each event was there once, in its key's order."""
        await self._program.go_on()
        async with asyncio.timeout(_GO_ON_SECONDS_MAX):
            await self._watching
        assert self.acknowledged == self.read > 0, str(self)

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    def _note(self, line: Line) -> bool:
        if "acknowledged" in line:
            self.acknowledged = as_count(line["acknowledged"])
            self.read = as_count(line["read"])
        self.readers_lost = max(self.readers_lost, as_count(line.get("readers_lost")))
        return line.get("passed") is True


@asynccontextmanager
async def pravega_loads(
    controllers: str, *, scope: str, directory: Path, seconds_max: float
) -> AsyncIterator[list[PravegaLoad]]:
    """At work when this yields. The block calls `finish`; programs that are left then are killed."""
    command = await asyncio.to_thread(java_command)
    directory.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        loads: list[PravegaLoad] = []
        for name, options in LOADS.items():
            more = [*options, "until_told=1", f"seconds={round(seconds_max)}"]
            program = await stack.enter_async_context(
                client_program(
                    [*command, "clients.Load", controllers, f"{scope}-{name}", *more],
                    log_path=directory / f"pravega-{name}.log",
                    seconds=seconds_max,
                )
            )
            load = PravegaLoad(name, program)
            stack.push_async_callback(load.close)
            loads.append(load)
        for each in loads:
            await each.until_it_goes_on()
        yield loads
