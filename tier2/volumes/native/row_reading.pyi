from collections.abc import Sequence

from tier2.volumes.objects import IndexRecord, StoredObject

def small_objects(
    contents: Sequence[bytes | Exception | None],
    record_type: type[IndexRecord],
    stored_type: type[StoredObject],
    /,
) -> list[StoredObject | None]: ...
