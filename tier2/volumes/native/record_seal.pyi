from collections.abc import Sequence

from tier2.volumes.mutations import NewObject
from tier2.volumes.write_batch import Sealed

def seal(
    objects: Sequence[NewObject],
    sequence: int,
    volume: int,
    offset: int,
    seed: int,
    timestamp_ms: int,
    piece_bytes: int,
    /,
) -> Sealed: ...
