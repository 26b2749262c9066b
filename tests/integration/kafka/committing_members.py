"""Two members of one group, processes that commit what they have told: who has which partitions, what was read."""

import asyncio
import json
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.integration.kafka.numbered_records import offsets_of

SECONDS_MAX = 300.0
"""No promise, only an end: a killed node of a cluster is followed behind the end of its session."""
_LOOK_SECONDS = 0.1


class Member:
    """What one of them has told."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.partitions: Sequence[int] = ()
        self.changes: list[Sequence[int]] = []
        """Every assignment and every revocation."""
        self.failed = ""
        """Why it has ended by itself."""
        self.found: set[tuple[int, int]] = set()
        """Partition and offset."""

    async def kill(self) -> None:
        """It has ended when this returns."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def follow(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said: Mapping[str, Any] = json.loads(line)
            if "assigned" in said:
                self.partitions = said["assigned"]
                self.changes.append(self.partitions)
            elif "revoked" in said:
                self.changes.append(())
            elif "failed" in said:
                self.failed = said["failed"]
            else:
                self.found.add((said["partition"], said["offset"]))


class Members:
    """Both of them."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    async def until_shared(self, partitions: int) -> None:
        """Each has some of so many partitions."""
        async with asyncio.timeout(SECONDS_MAX):
            while not all(each.partitions for each in self._members) or sorted(
                chain(*(each.partitions for each in self._members))
            ) != list(range(partitions)):
                await asyncio.sleep(_LOOK_SECONDS)

    async def until_found(self, count: int) -> None:
        """Together they have read so many records; one that was read twice counts once."""
        async with asyncio.timeout(SECONDS_MAX):
            while len(set().union(*(each.found for each in self._members))) < count:
                await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def committing_members(bootstrap: str, group: str, topic: str) -> AsyncIterator[Members]:
    """They are killed at the end."""
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.kafka.group_member"),
            *(bootstrap, group, topic, "commits"),
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    members = [Member(each) for each in started]
    try:
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(each.follow()) for each in members]
            yield Members(members)
            for each in following:
                each.cancel()
    finally:
        for member in members:
            await member.kill()


def are_at_the_end(bootstrap: str, group: str, topic: str, partitions: int) -> bool:
    """Whether the group has committed the end of every partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, each) for each in range(partitions)]
        ends = [offsets_of(consumer, each)[1] for each in places]
        committed = consumer.committed(places, timeout=SECONDS_MAX)
        return [each.offset for each in committed] == ends
    finally:
        consumer.close()
