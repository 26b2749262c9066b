"""Waiting for what was submitted, so that whoever stops waiting does not cancel it."""

from asyncio import Future


async def outcome(submitted: "Future[int]") -> int:
    """The submission's result or exception. Cancelling the wait leaves it alone, and nobody misses its error then.

    What asyncio.shield() does, with one callback less per append.
    """
    if not submitted.done():
        waiter: Future[None] = submitted.get_loop().create_future()

        def wake(ended: "Future[int]") -> None:
            if not waiter.done():
                waiter.set_result(None)
            elif not ended.cancelled():
                ended.exception()

        submitted.add_done_callback(wake)
        await waiter
    return submitted.result()
