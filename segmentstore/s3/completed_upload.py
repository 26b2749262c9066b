"""What is kept with an object of how its upload was completed, so that the same completion can be answered again.

    metadata["upload_id"]    by the engine: which upload it was
    metadata["u:order"]      SHA-256 of what the completion said of its parts, in hexadecimal digits

Invariant: a completion gets the answer of an earlier one only if it says the same of every part.
"""

import hashlib

from segmentstore.s3.failures import S3Failure
from segmentstore.s3.xml_reading import Element
from tier2.volumes.index_record import IndexRecord

_ORDER = "u:order"


def note_of_order(order: Element) -> dict[str, str]:
    """For the metadata of the object."""
    return {_ORDER: _digest(order)}


def require_same_order(record: IndexRecord, order: Element) -> None:
    """Raises S3Failure (InvalidPart) unless this is what the object was made of."""
    if record.metadata.get(_ORDER) != _digest(order):
        raise S3Failure("InvalidPart", "The upload is completed already, of other parts.")


def _digest(order: Element) -> str:
    hasher = hashlib.sha256()
    for part in order.all("Part"):
        facts = sorted((fact.name, fact.text.strip().strip('"')) for fact in part.children)
        hasher.update(repr(facts).encode())
    return hasher.hexdigest()
