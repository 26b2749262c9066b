"""A process that owns a log: `python -m tests.tier1.file_log.log_process DIRECTORY`; one line per acknowledgement."""

import asyncio
import os
import sys
from random import Random

from segmentstore.runtime.files import SystemFileSystem
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.settings import FileLogSettings

SETTINGS = FileLogSettings(
    entry_bytes_max=64 << 10,
    batch_bytes_max=64 << 10,
    journal_bytes_first=1 << 20,
    journal_bytes_max=1 << 20,
    free_bytes_min=0,
)


def open_log(path: str) -> FileDurableDataLog:
    return FileDurableDataLog(
        path,
        files=SystemFileSystem(),
        executor=None,
        random=Random(os.getpid()),
        settings=SETTINGS,
        owner=f"pid {os.getpid()}",
    )


async def main(path: str) -> None:
    log = open_log(path)
    await log.initialize()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for number in range(1_000_000):
        address = await log.append([b"%d" % number])
        sys.stdout.write(f"{address} {number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
