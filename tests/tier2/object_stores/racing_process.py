"""One process of the races in test_filesystem_processes.py: python racing_process.py <root> <seed> <verb> <count>.

- create: tries to create race/0 .. race/<count - 1>, and says which it created.
- count: adds one to the number in `counter` with put_if_match until it succeeded <count> times.
- put: puts objects forever, saying each key once its put has completed.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from random import Random

from segmentstore.contracts.errors import ObjectChangedError, ObjectExistsError
from segmentstore.runtime.files import SystemFileSystem
from tier2.object_stores.filesystem import FilesystemObjectStore


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def create(store: FilesystemObjectStore, seed: int, count: int) -> None:
    for number in range(count):
        try:
            await store.put_if_absent(f"race/{number}", b"process %d" % seed)
        except ObjectExistsError:
            continue
        say(str(number))


async def add(store: FilesystemObjectStore, seed: int, count: int) -> None:
    won = 0
    while won < count:
        found = await store.get("counter")
        try:
            await store.put_if_match("counter", b"%d" % (int(found.content) + 1), found.tag)
        except ObjectChangedError:
            continue
        won += 1
    say(str(won))


async def put(store: FilesystemObjectStore, seed: int, count: int) -> None:
    for number in range(count):
        key = f"objects/{seed}-{number:06}"
        await store.put(key, [b"%06d" % number * 50_000])
        say(key)


async def main() -> None:
    root, seed, verb, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    with ThreadPoolExecutor(2) as executor:
        store = FilesystemObjectStore(
            root, files=SystemFileSystem(), executor=executor, random=Random(seed)
        )
        await store.start()
        await {"create": create, "count": add, "put": put}[verb](store, seed, count)
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
