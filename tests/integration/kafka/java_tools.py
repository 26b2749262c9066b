"""Programs of Kafka, each run in a JVM of its own against a server of ours: `JavaTools` runs command-line tools, which
end by themselves, `JavaProgram` those that a test ends, as Connect."""

import asyncio
import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.java_libraries import class_path

_POM = Path(__file__).parent / "java" / "pom.xml"
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_SECONDS = 400.0
_PATIENCE_MS = "60000"
"""In the place of a few seconds that some tools give a server, which a busy machine may stand still."""


_END_SECONDS = 60.0


@functools.cache
def tools_class_path() -> str:
    return class_path(_POM)


class JavaProgram:
    """Runs within the `with` block. `main` is a class, or a source file that is compiled as it starts."""

    def __init__(self, main: str | Path, arguments: Sequence[str], *, log: Path) -> None:
        """What it prints is appended to `log`."""
        self._command = ["java", *_JVM, "-cp", tools_class_path(), str(main), *arguments]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def require_running(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"it ended with {code}: {self.said()[-2000:]}"

    def said(self) -> str:
        return self._log.read_text()


@dataclass(frozen=True)
class JavaTools:
    """`--bootstrap-server` is given to each of them."""

    address: str

    async def topics(self, *arguments: str) -> str:
        return await self._run("TopicCommand", *arguments)

    async def get_offsets(self, *arguments: str) -> dict[str, int]:
        """By `topic:partition`."""
        text = await self._run("GetOffsetShell", *arguments)
        return {line.rpartition(":")[0]: int(line.rpartition(":")[2]) for line in text.splitlines()}

    async def groups(self, *arguments: str) -> str:
        return await self._run(
            "consumer.group.ConsumerGroupCommand", "--timeout", _PATIENCE_MS, *arguments
        )

    async def delete_records(self, offsets: str) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(offsets)
            file.flush()
            return await self._run("DeleteRecordsCommand", "--offset-json-file", file.name)

    async def console_producer(self, *arguments: str, lines: str) -> str:
        return await self._run(
            "ConsoleProducer", "--request-timeout-ms", _PATIENCE_MS, *arguments, given=lines
        )

    async def console_consumer(self, *arguments: str) -> str:
        return await self._run("consumer.ConsoleConsumer", *arguments)

    async def producer_performance(self, *arguments: str) -> str:
        """The last line, which has the totals."""
        text = await self._run("ProducerPerformance", *arguments)
        return text.strip().splitlines()[-1]

    async def consumer_performance(self, *arguments: str) -> str:
        """The last line, which has the totals."""
        text = await self._run("ConsumerPerformance", *arguments)
        return text.strip().splitlines()[-1]

    async def api_versions(self) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            file.write(f"request.timeout.ms={_PATIENCE_MS}\n")
            file.flush()
            return await self._run("BrokerApiVersionsCommand", "--command-config", file.name)

    async def end_to_end_latency(self, *arguments: str) -> str:
        return await self._run("EndToEndLatency", *arguments)

    async def says(self, tool: str, *arguments: str) -> str:
        """What it prints, whatever it ends with: some tools print errors and end well."""
        _, said = await self._outcome(tool, *arguments)
        return said

    async def _run(self, tool: str, *arguments: str, given: str = "") -> str:
        code, said = await self._outcome(tool, *arguments, given=given)
        assert code == 0, f"{tool} {' '.join(arguments)} ended with {code}: {said}"
        return said

    async def _outcome(self, tool: str, *arguments: str, given: str = "") -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            "java",
            *_JVM,
            "-cp",
            tools_class_path(),
            f"org.apache.kafka.tools.{tool}",
            "--bootstrap-server",
            self.address,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        try:
            async with asyncio.timeout(_SECONDS):
                said, _ = await process.communicate(given.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, said.decode()
