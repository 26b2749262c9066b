"""A demonstration of a cluster that checks itself: `make demo CLUSTER=1 DATA=DIR`.

Starts the cluster of DIR, or goes on with it: three nodes, two controllers, BookKeeper, an S3 server. Loads the running
interpreter's standard library through one node, each of its packages into a segment; kills another node with -9 in the
middle, whose containers are at the others some seconds later; brings it back by its `start`; compares the SHA-256 of
every segment with the files, each read through each node; and ends the cluster, unless it ran before. Every run has
segments of its own. Ends with 1 if anything differs.
"""

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.load import LoadedSegment, Loader, SegmentPlan, plan_load
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.demo.local_cluster import LocalCluster
from segmentstore.demo.store import KILL_AT_SHARE, expect, library, megabytes, say
from segmentstore.runtime.entropy import random_id, system_random

_READ_BYTES = 4 << 20
_SEGMENTS_AT_ONCE = 8
_RETRY_SECONDS = 60.0
_NOT_LIBRARY = "site-packages"


class ClusterDemo:
    """The steps, in order."""

    def __init__(self, cluster: LocalCluster, plans: Sequence[SegmentPlan]) -> None:
        self._cluster = cluster
        self._plans = plans
        self._total_bytes = sum(plan.length for plan in plans)
        self._entry, self._killed, *_ = cluster.with_role("node")
        self._has_killed = False

    async def run(self) -> None:
        """All steps. Raises DemoFailedError."""
        loaded = await self._load()
        await asyncio.to_thread(self._bring_back)
        for node in self._cluster.with_role("node"):
            await self._compare(f"http://{node.http}", node.name, loaded)

    async def _load(self) -> list[LoadedSegment]:
        written = 0

        def progress(count: int) -> None:
            nonlocal written
            written += count
            if written >= KILL_AT_SHARE * self._total_bytes and not self._has_killed:
                self._has_killed = True
                self._cluster.kill(self._killed.name)
                say("kill -9", f"{self._killed.name}, after {megabytes(written)}: the load goes on")

        say("load", f"{len(self._plans)} segments, {megabytes(self._total_bytes)} from {library()}")
        async with HttpClient(f"http://{self._entry.http}") as client:
            loader = Loader(
                client=client,
                piece_bytes=256 << 10,
                segments_at_once=_SEGMENTS_AT_ONCE,
                seal=False,
                retry_seconds=_RETRY_SECONDS,
                progress=progress,
            )
            loaded = await loader.load(self._plans)
        expect(self._has_killed, "the load ended before a node was killed")
        say("load", f"done through {self._entry.name}, with two nodes of three")
        return loaded

    def _bring_back(self) -> None:
        done = subprocess.run(self._cluster.of(self._killed.name).start, shell=True, check=False)
        expect(done.returncode == 0, f"{self._killed.name} was not started")
        say(
            "start",
            f"{self._killed.name} is back, by its command in {self._cluster.processes_path}",
        )

    async def _compare(self, server: str, name: str, loaded: Sequence[LoadedSegment]) -> None:
        hashes = {each.name: each.sha256 for each in loaded}
        await self._cluster.up()
        async with HttpClient(server) as client:
            for plan in self._plans:
                digest = hashlib.sha256()
                position = 0
                while position < plan.length:
                    piece = await client.read(plan.name, position, _READ_BYTES)
                    expect(piece.content != b"", f"no bytes name={plan.name} offset={position}")
                    digest.update(piece.content)
                    position = piece.end_offset
                expect(position == plan.length, f"length differs name={plan.name}")
                expect(digest.hexdigest() == hashes[plan.name], f"SHA-256 differs name={plan.name}")
        say("verify", f"SHA-256 of {len(self._plans)} segments equal, read through {name}")


async def _run(directory: Path, plans: Sequence[SegmentPlan]) -> None:
    cluster = LocalCluster(directory)
    ran_before = cluster.has_begun()
    try:
        await cluster.up()
        say("cluster", f"{cluster.place} {cluster.controllers}")
        await ClusterDemo(cluster, plans).run()
    finally:
        if not ran_before:
            await cluster.down()


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def main(directory: Path) -> None:
    """Run on the cluster of a directory, which is made if it is not there; exit 1 if what was shown is not so."""
    prefix = f"demo/{random_id(system_random()).hex()[:8]}/"
    plans = plan_load([library()], prefix=prefix, by_package=True, include=["*.py"])
    plans = [plan for plan in plans if plan.name != prefix + _NOT_LIBRARY]
    try:
        asyncio.run(_run(directory, plans))
    except SegmentStoreError as error:
        click.echo(f"demo failed: {error}", err=True)
        sys.exit(1)
    say("done", "every byte that was acknowledged was there")


if __name__ == "__main__":
    main()
