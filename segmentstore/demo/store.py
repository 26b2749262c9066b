"""A demonstration that checks itself: `make demo`.

Loads the running interpreter's standard library into a store on a fresh directory, one segment for each top-level
module or package; follows a segment while it grows; kills the server with -9 in the middle of the load; restarts it
and finishes; compares the SHA-256 of every segment with the files, through the service and, with the service off, from
Tier 2 alone; truncates and seals. Ends with 1 if anything differs.

With Tier 1 in BookKeeper it starts a cluster of its own, of which it kills a bookie in the middle of the load, or uses
the one that is named. At the end it throws the node's data directory away: the next node has every byte.
"""

import asyncio
import hashlib
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import click

from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cli.load import LoadedSegment, Loader, SegmentPlan, plan_load
from segmentstore.cli.server_process import ServerProcess
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.host.settings import BOOKKEEPER_SCHEME
from segmentstore.recovery.tier2_access import open_tier2
from tier1.bookkeeper.jars import Part, build
from tier1.bookkeeper.local_ensemble import LEDGERS_PATH, LocalEnsemble

LIVE = "demo/live"
LIVE_LINES = 200
LATE = "demo/late"
_LATE_CONTENT = b"acknowledged, and in no Tier 2\n"
KILL_AT_SHARE = 0.4
KILL_BOOKIE_AT_SHARE = 0.15
_READ_BYTES = 4 << 20
_SEGMENTS_AT_ONCE = 8
_NOT_LIBRARY = "site-packages"
_LOOK_SECONDS = 0.05
_RETRY_SECONDS = 20.0
_OWN_BOOKKEEPER = "bookkeeper"


class DemoFailedError(SegmentStoreError):
    """What the demonstration shows is not so."""


class Demo:
    """The steps, in order."""

    def __init__(
        self,
        directory: Path,
        plans: Sequence[SegmentPlan],
        *,
        tier1: str,
        tier2: str,
        ensemble: LocalEnsemble | None,
        processes: int = 1,
    ) -> None:
        """`ensemble`: the cluster of `tier1`, if it was started for this."""
        self._data_directory = directory / "data"
        self._outlives_directory = tier1.startswith(BOOKKEEPER_SCHEME)
        self._ensemble = ensemble
        self._has_killed_bookie = False
        if self._outlives_directory:
            # A disk of its own, behind a link: the directory is thrown away in the end.
            (directory / "tier2").mkdir()
            self._make_node()
        self._in_bucket = tier2.startswith("s3://")
        self._tier2_place = tier2 if self._in_bucket else str(self._data_directory)
        self._plans = plans
        self._total_bytes = sum(plan.length for plan in plans)
        self._processes = processes
        self._places = ["--tier1", tier1, "--tier2", tier2]
        self._server = self._server_of(processes)
        self._killing: asyncio.Task[None] | None = None
        self._hashes: dict[str, str] = {}

    async def run(self) -> None:
        """All steps. Raises DemoFailedError."""
        with self._server:
            say("start", self._server.ready_line)
            await self._with_client(self._follow_live)
            await self._load_until_killed()
            self._server.start()
            say("restart", self._server.ready_line)
            await self._with_client(self._finish_load)
            await self._with_client(self._check_through_service)
            await self._with_client(self._truncate_and_seal)
            await self._with_client(self._flush)
            code = self._server.terminate()
            expect(code == 0, f"the server ended with {code} after SIGTERM")
            say("stop", "SIGTERM; the server ended with 0")
            await self._check_from_tier2()
            self._server.start()
            say("restart", self._server.ready_line)
            await self._with_client(self._check_truncated_and_sealed)
            if self._outlives_directory:
                await self._with_client(self._append_late)
                self._lose_directory()
                self._server.start()
                say("restart", self._server.ready_line)
                await self._with_client(self._check_late)
                await self._with_client(self._check_through_service)

            for others in (1, 3) if self._processes > 1 else ():
                await self._check_with(others)

    async def _check_with(self, processes: int) -> None:
        """The same directory in another number of processes, which have ended when this returns."""
        if self._server.is_running:
            self._server.terminate()
        with self._server_of(processes) as self._server:
            say("restart", self._server.ready_line)
            await self._with_client(self._check_through_service)
            code = self._server.terminate()
            expect(code == 0, f"the server ended with {code} after SIGTERM")

    def _server_of(self, processes: int) -> ServerProcess:
        options = [*self._places, "--processes", str(processes)]
        return ServerProcess(self._data_directory, options)

    def _kill_process(self) -> None:
        """Once, in the middle of the load, which does not end for that."""
        if self._processes > 1 and self._killing is None:
            self._killing = asyncio.get_running_loop().create_task(self._kill_last_process())

    async def _kill_last_process(self) -> None:
        status = self._server.status_address
        name = f"node_{self._processes - 1}"
        async with HttpClient(status) as client:
            process_id = (await client.health())[f"{name}_process_id"]
            expect(isinstance(process_id, int), f"{name} does not run")
            assert isinstance(process_id, int), "expected"
            os.kill(process_id, signal.SIGKILL)
            say("kill -9", f"{name}, one of {self._processes} processes: the load goes on")
            health = await client.health()
            while health[f"{name}_process_id"] in (None, process_id) or not health["ready"]:
                await asyncio.sleep(_LOOK_SECONDS)
                health = await client.health()
        say("restart", f"{name} runs again")

    def _make_node(self) -> None:
        self._data_directory.mkdir()
        link = self._data_directory / "tier2"
        link.symlink_to(self._data_directory.with_name("tier2"), target_is_directory=True)

    def _kill_bookie(self) -> None:
        """Once, in the middle of the load, which does not end for that."""
        if self._ensemble is None or self._has_killed_bookie:
            return
        self._has_killed_bookie = True
        bookie = self._ensemble.bookies[0]
        self._ensemble.send(bookie, signal.SIGKILL)
        say("kill -9", f"{bookie.name}, one of {len(self._ensemble.bookies)}: the load goes on")

    async def _append_late(self, client: HttpClient) -> None:
        """What Tier 2 does not have yet."""
        await client.create(LATE)
        await client.append(LATE, _LATE_CONTENT)

    def _lose_directory(self) -> None:
        self._server.kill()
        shutil.rmtree(self._data_directory)
        self._make_node()
        say(
            "lose",
            "kill -9, and the data directory is thrown away: identity, lock, place of the logs",
        )

    async def _check_late(self, client: HttpClient) -> None:
        piece = await client.read(LATE, 0, _READ_BYTES)
        expect(piece.content == _LATE_CONTENT, f"other bytes than were acknowledged name={LATE}")
        say("verify", "what was acknowledged a moment before, and never flushed, is there")

    async def _with_client(self, step: Callable[[HttpClient], Awaitable[object]]) -> None:
        async with HttpClient(self._server.address) as client:
            await step(client)

    async def _follow_live(self, client: HttpClient) -> None:
        """One task appends line by line, another follows; the follower sees exactly what was appended."""
        info = await client.create(LIVE)
        lines = [f"line {number:04d}\n".encode() for number in range(LIVE_LINES)]
        seen = bytearray()

        async def follow() -> None:
            async with aclosing(client.follow(info, 0)) as pieces:
                async for piece in pieces:
                    seen.extend(piece.content)
                    if len(seen) >= sum(map(len, lines)):
                        return

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(follow())
                for line in lines:
                    await client.append(LIVE, line)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        expect(bytes(seen) == b"".join(lines), "the follower saw other bytes than were appended")
        say("follow", f"{LIVE_LINES} appends, each seen by a follower while the segment grew")

    async def _load_until_killed(self) -> None:
        """Load with an eye on the amount, and kill -9 in the middle."""
        loaded = 0
        loop = asyncio.get_running_loop()
        started = loop.time()

        def progress(count: int) -> None:
            nonlocal loaded
            loaded += count
            if loaded >= KILL_BOOKIE_AT_SHARE * self._total_bytes:
                self._kill_bookie()
                self._kill_process()
            is_back = self._killing is None or self._killing.done()
            if loaded >= KILL_AT_SHARE * self._total_bytes and self._server.is_running and is_back:
                self._server.kill()

        say("load", f"{len(self._plans)} segments, {megabytes(self._total_bytes)} from {library()}")
        try:
            # Of several processes one is killed before the parent is; behind that no try helps.
            retry_seconds = _RETRY_SECONDS if self._processes > 1 else 0
            await self._with_client(
                lambda client: self._load(client, progress, retry_seconds=retry_seconds)
            )
        except ServerError as error:
            expect(error.kind is ErrorKind.UNAVAILABLE, f"the load ended with {error}")
        if self._killing is not None:
            await self._killing
        expect(not self._server.is_running, "the load ended before the server was killed")
        rate = loaded / (loop.time() - started) / 1e6
        say("kill -9", f"after {megabytes(loaded)} were acknowledged, durable, at {rate:.1f} MB/s")

    async def _finish_load(self, client: HttpClient) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        results = await self._load(client, lambda _: None)
        elapsed = loop.time() - started
        found = sum(result.found_bytes for result in results)
        added = self._total_bytes - found
        expect(found > 0, "nothing that was acknowledged before the kill is there")
        self._hashes = {result.name: result.sha256 for result in results}
        say(
            "load",
            f"{megabytes(found)} were there and equal to the files, {megabytes(added)} added: "
            f"{self._total_bytes / elapsed / 1e6:.1f} MB/s checked or written",
        )

    async def _load(
        self, client: HttpClient, progress: Callable[[int], None], *, retry_seconds: float = 0
    ) -> list[LoadedSegment]:
        loader = Loader(
            client=client,
            piece_bytes=256 << 10,
            segments_at_once=_SEGMENTS_AT_ONCE,
            seal=False,
            retry_seconds=retry_seconds,
            progress=progress,
        )
        return await loader.load(self._plans)

    async def _check_through_service(self, client: HttpClient) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for plan in self._plans:
            digest = hashlib.sha256()
            position = 0
            while position < plan.length:
                piece = await client.read(plan.name, position, _READ_BYTES)
                expect(piece.content != b"", f"no bytes name={plan.name} offset={position}")
                digest.update(piece.content)
                position = piece.end_offset
            self._compare(plan, position, digest.hexdigest())
        rate = self._total_bytes / (loop.time() - started) / 1e6
        say("verify", f"SHA-256 of {len(self._plans)} segments equal, read at {rate:.1f} MB/s")

    async def _truncate_and_seal(self, client: HttpClient) -> None:
        length = (await client.info(LIVE)).length
        await client.truncate(LIVE, length // 2)
        expect(await client.seal(LIVE) == length, f"sealed at another length than {length}")
        await self._check_truncated_and_sealed(client)
        say("truncate", f"{LIVE} at {length // 2}: a read below is refused")
        say("seal", f"{LIVE} at {length}: an append is refused")

    async def _check_truncated_and_sealed(self, client: HttpClient) -> None:
        info = await client.info(LIVE)
        expect(
            (info.start_offset, info.sealed) == (info.length // 2, True),
            f"not truncated and sealed as asked: {info}",
        )
        await expect_refusal(client.append(LIVE, b"x"), "an append to a sealed segment")
        await expect_refusal(client.read(LIVE, 0, 1), "a read below the truncation")

    async def _flush(self, client: HttpClient) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await client.flush_all()
        took = f"in {loop.time() - started:.1f} s"
        if self._in_bucket:
            say("flush", f"{megabytes(self._total_bytes)} in Tier 2, {took}")
            return
        tier2 = self._data_directory / "tier2"
        volumes = tier2 / "volumes"  # beside them: the index, and room kept free for a full disk
        stored = directory_bytes((volumes if volumes.is_dir() else tier2).resolve())
        say(
            "flush",
            f"{megabytes(self._total_bytes)} in Tier 2 as {megabytes(stored)} of objects, "
            f"ratio {self._total_bytes / stored:.2f}, {took}",
        )

    async def _check_from_tier2(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        plans = {plan.name: plan for plan in self._plans}
        checked = 0
        async with open_tier2(self._tier2_place) as tier2:
            for container in tier2.containers:
                async with aclosing(container.list_segments("", "")) as records:
                    async for record in records:
                        if record.name not in plans:
                            continue
                        digest = hashlib.sha256()
                        async with aclosing(container.cat(record.name)) as pieces:
                            async for piece in pieces:
                                digest.update(piece)
                        self._compare(plans[record.name], record.length, digest.hexdigest())
                        checked += 1
        expect(checked == len(plans), f"Tier 2 has {checked} of {len(plans)} segments")
        rate = self._total_bytes / (loop.time() - started) / 1e6
        say("verify", f"the same {checked} from Tier 2 with the service off, at {rate:.1f} MB/s")

    def _compare(self, plan: SegmentPlan, length: int, sha256: str) -> None:
        expect(length == plan.length, f"length differs name={plan.name} length={length}")
        expect(sha256 == self._hashes[plan.name], f"SHA-256 differs name={plan.name}")


def say(step: str, sentence: str) -> None:
    """One line of the demonstration."""
    click.echo(f"{step:>8}  {sentence}")


def expect(condition: bool, otherwise: str) -> None:
    """Raises DemoFailedError."""
    if not condition:
        raise DemoFailedError(otherwise)


async def expect_refusal(request: Awaitable[object], what: str) -> None:
    """The server has to answer CONFLICT."""
    try:
        await request
    except ServerError as error:
        expect(error.kind is ErrorKind.CONFLICT, f"{what} ended with {error}")
    else:
        raise DemoFailedError(f"{what} was accepted")


def megabytes(size: int) -> str:
    """For people."""
    return f"{size / 1e6:.1f} MB"


def directory_bytes(path: Path) -> int:
    """Bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def library() -> Path:
    """Where the running interpreter keeps its standard library."""
    return Path(sysconfig.get_path("stdlib"))


async def run_demo(
    directory: Path, plans: Sequence[SegmentPlan], *, tier1: str, tier2: str, processes: int = 1
) -> None:
    """Raises SegmentStoreError."""
    ensemble: LocalEnsemble | None = None
    try:
        if tier1 == _OWN_BOOKKEEPER:
            for part in Part:
                build(part)
            ensemble = LocalEnsemble.opened(directory / "bookkeeper")
            await ensemble.up()
            tier1 = f"{BOOKKEEPER_SCHEME}{ensemble.servers}{LEDGERS_PATH}"
            say("bookies", f"{len(ensemble.bookies)}, with a ZooKeeper at {ensemble.servers}")
        demo = Demo(
            directory, plans, tier1=tier1, tier2=tier2, ensemble=ensemble, processes=processes
        )
        await demo.run()
    finally:
        if ensemble is not None:
            await ensemble.down(number=signal.SIGKILL)


@click.command()
@click.option("--tier1", default="file", metavar="file|bookkeeper[://ZK1,ZK2/LEDGERS]")
@click.option("--tier2", default="volumes", metavar="volumes|filesystem|s3://BUCKET/PREFIX")
@click.option("--processes", default=1, type=click.IntRange(1, 16), show_default=True)
def main(tier1: str, tier2: str, processes: int) -> None:
    """Run in a temporary directory; exit 1 if what was shown is not so.

    With several processes one of them is killed in the middle of the load, and the parent later; at the end the store
    is started with one process and with three.

    `--tier1 bookkeeper` starts a ZooKeeper and four bookies on loopback, and ends them. A bucket is found as the
    service finds it: SEGMENTSTORE_S3_ENDPOINT_URL, and the usual credentials of AWS.
    """
    plans = plan_load([library()], prefix="", by_package=True, include=["*.py"])
    plans = [plan for plan in plans if plan.name != _NOT_LIBRARY]
    with tempfile.TemporaryDirectory(prefix="segmentstore-demo-") as directory:
        try:
            asyncio.run(
                run_demo(Path(directory), plans, tier1=tier1, tier2=tier2, processes=processes)
            )
        except SegmentStoreError as error:
            click.echo(f"demo failed: {error}", err=True)
            sys.exit(1)
    say("done", "every byte that was acknowledged was there")


if __name__ == "__main__":
    main()
