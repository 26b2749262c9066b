"""A client program in a process of its own, that tells what it does in lines of JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

Line = Mapping[str, object]


class ClientProgram:
    """One that runs. Its stderr goes to a file beside it."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self._process = process
        self._log_path = log_path
        self._last: Line = {}

    async def wait_for(self, wanted: Callable[[Line], bool]) -> Line:
        """The next line that will do. Fails if the program ends or reports a failure before."""
        assert self._process.stdout is not None, "stdout is a pipe"
        while True:
            text = await self._process.stdout.readline()
            assert text, f"the client program ended: {self._words()}"
            if not text.startswith(b"{"):
                continue
            line: Line = json.loads(text)
            if line.get("passed") is False:
                raise AssertionError(f"{line} before={self._last} log: {self._words()}")
            self._last = line
            if wanted(line):
                return line

    async def wait_for_count(self, name: str, count: int) -> Line:
        """Until it has acknowledged, written or read so many events."""
        return await self.wait_for(lambda line: as_count(line.get(name)) >= count)

    async def wait_for_verdict(self) -> Line:
        """The last line, which says that everything was right."""
        return await self.wait_for(lambda line: line.get("passed") is True)

    async def go_on(self) -> None:
        """It was waiting for us."""
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.write(b"go\n")
        await self._process.stdin.drain()

    def _words(self) -> str:
        return self._log_path.read_text()[-2000:]


def as_count(value: object) -> int:
    return value if isinstance(value, int) else -1


@asynccontextmanager
async def client_program(
    command: Sequence[str], *, log_path: Path, seconds: float
) -> AsyncIterator[ClientProgram]:
    """Killed when it is left, however it is left. The body has so many seconds."""
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=1 << 20,
        )
    try:
        async with asyncio.timeout(seconds):
            yield ClientProgram(process, log_path)
    except TimeoutError as error:
        raise AssertionError(
            f"not done after {seconds} s: {log_path.read_text()[-2000:]}"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
