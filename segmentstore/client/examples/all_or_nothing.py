"""A transfer between two accounts: both events, or neither."""

# ruff: noqa: T201 (an example shows what it does)

import asyncio
import sys
from contextlib import suppress

from segmentstore.client import ScalingPolicy, Stream, StreamConfig, connect
from segmentstore.client.errors import AlreadyExistsError


class _InsufficientFundsError(Exception):
    """The second half of a transfer fails."""


async def _transfer(stream: Stream, amount: int, balance: int) -> None:
    async with stream.transaction(lease_seconds=30) as transaction:
        await transaction.write(f"bob +{amount}".encode(), key="bob")
        if amount > balance:
            raise _InsufficientFundsError
        await transaction.write(f"alice -{amount}".encode(), key="alice")


async def main(controller: str) -> None:
    """One transfer that works, one that does not."""
    async with connect(controller) as store:
        stream = store.stream("examples/ledger")
        with suppress(AlreadyExistsError):
            await store.scope("examples").create()
        with suppress(AlreadyExistsError):
            await stream.create(StreamConfig(ScalingPolicy.fixed(2)))
        before = await stream.tail()
        await _transfer(stream, 10, balance=50)
        with suppress(_InsufficientFundsError):
            await _transfer(stream, 100, balance=40)
        async with stream.read(before, stop_at=await stream.tail()) as events:
            print("readable:", sorted([event.data.decode() async for event in events]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:9090"))
