"""Connections to a server that say nothing: so many are taken, and the others end at once."""

import asyncio


async def check_that_more_are_refused(host: str, port: int, *, connections_max: int) -> None:
    """Opens twice as many; none is left when this returns."""
    silent = [await asyncio.open_connection(host, port) for _ in range(2 * connections_max)]
    waiting = {asyncio.ensure_future(reader.read(1)) for reader, _ in silent}
    refused = 0
    while refused < connections_max:
        ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in ended:
            # Ended or reset; it was told nothing.
            assert isinstance(each.exception(), ConnectionError) or each.result() == b""
        refused += len(ended)
    assert len(waiting) == connections_max
    for each in waiting:
        each.cancel()
    for _, writer in silent:
        writer.transport.abort()
