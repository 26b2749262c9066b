"""Requests that name very many things: other clients are served in between.

An item takes up to 30 us, and there may be tens of thousands of them, none of which waits for anything: partitions at
their ends, topics that are known, what is refused.
"""

import asyncio
from typing import Final

ITEMS_PER_TURN: Final = 250


async def give_way(item_count: int) -> None:
    """Behind so many items of one request: others run, if it is time."""
    if item_count % ITEMS_PER_TURN == 0:
        await asyncio.sleep(0)
