"""Where every part of the storage suite starts."""

from segmentstore.contracts.identifiers import (
    Epoch,
)
from segmentstore.contracts.storage import (
    Storage,
)
from tests.contracts.storage_publications import LOG_ID, StorageBacking


class ClaimedStorage:
    """Gives a storage that was claimed."""

    async def claimed(self, backing: StorageBacking, epoch: int = 1) -> Storage:
        storage = backing.new_owner()
        await storage.claim(epoch=Epoch(epoch), log_id=LOG_ID)
        return storage
