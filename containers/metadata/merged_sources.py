"""What a segment remembers of the segments merged into it, so that a retry is told from a loss (H74).

One extended attribute of the target per merge, changed in the merge's own operation and dropped by
`SegmentApi.forget_merged`:

    key     0x00, b"merged", 0x00, then the 20-byte BLAKE2b hash of the source's name in UTF-8
    value   the target's length behind that merge

Listings of attributes leave these out. Without them, "the source does not exist" could mean that the merge has been
done or that the source was lost.
"""

from collections.abc import Iterable
from hashlib import blake2b

from segmentstore.contracts.identifiers import AttributeKey

_PREFIX = b"\x00merged\x00"
_HASH_BYTES = 20


def merged_source_key(source_name: str) -> AttributeKey:
    """The target's attribute that says where the merge of this source ended."""
    return AttributeKey(_PREFIX + blake2b(source_name.encode(), digest_size=_HASH_BYTES).digest())


def merged_source_keys(source_names: Iterable[str]) -> list[AttributeKey]:
    """The same for several sources, each once, in the order given."""
    return list(dict.fromkeys(merged_source_key(name) for name in source_names))


def is_merged_source_key(key: AttributeKey) -> bool:
    """Whether the attribute is a memory of a merge, which is nobody's but ours."""
    return len(key) == len(_PREFIX) + _HASH_BYTES and key.startswith(_PREFIX)
