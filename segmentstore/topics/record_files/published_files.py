"""The registered files of a partition as Tier 2 shows them, for readers that are not its owner.

Invariants: files come in the order of their numbers; one that was unregistered meanwhile is left out.
"""

from collections.abc import AsyncGenerator
from typing import Final

from segmentstore.codec.topic_files import RegisteredFile, decode_file, file_key, file_number_of
from segmentstore.contracts.identifiers import AttributeKey, SegmentId
from segmentstore.contracts.storage import ReadOnlyStorage

_PAGE_KEYS: Final = 512


async def published_files(
    container: ReadOnlyStorage, segment_id: SegmentId, *, first: int, last: int
) -> AsyncGenerator[tuple[int, RegisteredFile], None]:
    """Those with numbers from `first` to `last`, each with its number. Hold it in `aclosing`.

    Raises CorruptedDataError, StorageError.
    """
    following: AttributeKey | None = file_key(first)
    while first <= last and following is not None:
        page = await container.scan_attributes(
            segment_id, start=following, end=file_key(last + 1), count=_PAGE_KEYS
        )
        for key, value in page.values:
            yield file_number_of(key), decode_file(value)
        following = page.following
