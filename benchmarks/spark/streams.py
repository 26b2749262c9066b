"""Streams of 1 KB events in Tier 2 for the Spark benchmarks: written through the service, then read without it."""

from contextlib import suppress
from random import Random

from segmentstore.client import ScalingPolicy, Store, StreamConfig
from segmentstore.client.errors import AlreadyExistsError
from tests.spark.live_store import LiveStore

SCOPE = "bench"
SEGMENTS = 4
VALUE_BYTES = 1024
_NOISE_BYTES = 16 << 20
_KEYS = 1000


def fill(store: LiveStore, stream: str, events: int) -> None:
    """Write a stream of so many events that do not compress, and wait until Tier 2 has all of them."""

    async def write(client: Store) -> None:
        noise = Random(7).randbytes(_NOISE_BYTES)
        starts = Random(8)
        with suppress(AlreadyExistsError):
            await client.scope(SCOPE).create()
        made = client.stream(f"{SCOPE}/{stream}")
        await made.create(StreamConfig(ScalingPolicy.fixed(SEGMENTS)))
        async with made.writer() as writer:
            for number in range(events):
                # A slice at a random place: bytes that repeat are farther apart than any compressor of blocks looks.
                start = starts.randrange(_NOISE_BYTES - VALUE_BYTES)
                await writer.write(noise[start : start + VALUE_BYTES], key=str(number % _KEYS))

    store.do(write)
    store.flush_stream(f"{SCOPE}/{stream}", range(SEGMENTS))
