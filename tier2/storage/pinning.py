"""Making and dropping pins: each is one version of the root, published by the owner under its lock."""

import re

from segmentstore.contracts.errors import InvalidRequestError
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.pins import Pin
from tier2.storage.root_publisher import Attempt
from tier2.storage.run_keys import pin_key

PINS_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


async def pin_root(name: str, *, owned: OwnedRoot, now_ms: int) -> Pin:
    """Keep the root as it is. Pinning again under a name that is taken gives what is pinned there already.

    Raises InvalidRequestError, and what Storage.publish() raises.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"a backup is named with 1 to 100 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    async with owned.lock:
        await owned.settle()
        pins = await owned.pins()
        for pin in pins:
            if pin.name == name:
                return pin
        if len(pins) >= PINS_MAX:
            raise InvalidRequestError(f"there are {PINS_MAX} backups already: drop one first")
        mark = owned.take_identity()
        pin = Pin(name, now_ms, mark.epoch, mark.serial, owned.root)
        await _publish(name, pin.encode(), owned)
        return pin


async def unpin_root(name: str, *, owned: OwnedRoot) -> bool:
    """False if there is no such pin. Raises what Storage.publish() raises."""
    async with owned.lock:
        await owned.settle()
        if all(pin.name != name for pin in await owned.pins()):
            return False
        await _publish(name, None, owned)
        return True


async def _publish(name: str, value: bytes | None, owned: OwnedRoot) -> None:
    uploader = owned.uploader()
    try:
        run = await owned.upload_run({pin_key(name): value}, uploader)
    except BaseException:
        owned.publisher.abandon(uploader.uploaded)
        raise
    await owned.commit(Attempt(root=owned.next_root((run, *owned.root.runs)), changes_pins=True))
