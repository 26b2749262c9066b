"""Which checksum an upload in parts was announced with, as it is kept with the upload, and what the object gets of it.

Invariant: a checksum that a completion names of its object is proved by those of the parts, or it is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.s3.call import Call
from segmentstore.s3.checksums import (
    ALGORITHMS,
    COMPOSABLE,
    HEADER_PREFIX,
    JOINABLE,
    composite_checksum,
    joined_checksum,
)
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.object_description import checksum_type
from tier2.volumes.part_files import Part
from tier2.volumes.upload_record import Upload

_TYPE = "x-amz-checksum-type"
_OF_CHECKSUMS, _OF_BYTES = "COMPOSITE", "FULL_OBJECT"
_ALGORITHM, _COMPOSITE = "checksum_algorithm", "checksum_composite"


@dataclass(frozen=True, slots=True)
class ChecksumPlan:
    """What the object will have."""

    algorithm: str
    """In lower case; empty: none was announced."""
    composite: bool
    """Whether the object gets the checksum of its parts' checksums, or that of all its bytes."""

    def notes(self) -> dict[str, str]:
        """To keep with the upload."""
        return {_ALGORITHM: self.algorithm, _COMPOSITE: "yes" if self.composite else "no"}


def checksum_plan_of(upload: Upload) -> ChecksumPlan:
    """As it was announced."""
    notes = upload.record.notes
    return ChecksumPlan(notes.get(_ALGORITHM, ""), notes.get(_COMPOSITE) == "yes")


def announced_plan(call: Call) -> ChecksumPlan:
    """Of the request that begins an upload. Raises S3Failure (InvalidRequest)."""
    algorithm = announced_algorithm(call)
    kind = call.header(_TYPE)
    if not algorithm:
        if kind:
            raise S3Failure("InvalidRequest", f"{_TYPE} needs a checksum algorithm.")
        return ChecksumPlan("", composite=True)
    kind = kind or (_OF_CHECKSUMS if algorithm in COMPOSABLE else _OF_BYTES)
    if algorithm not in {_OF_CHECKSUMS: COMPOSABLE, _OF_BYTES: JOINABLE}.get(kind, ()):
        raise S3Failure(
            "InvalidRequest",
            f"The checksum type cannot be used with the {algorithm} checksum algorithm.",
        )
    return ChecksumPlan(algorithm, composite=kind == _OF_CHECKSUMS)


def announced_algorithm(call: Call) -> str:
    """In lower case; empty: none. Raises S3Failure (InvalidRequest)."""
    algorithm = (call.header("x-amz-checksum-algorithm") or "").lower()
    if algorithm and algorithm not in ALGORITHMS:
        raise S3Failure("InvalidRequest", "The checksum algorithm is none that is known here.")
    return algorithm


def object_checksums(plan: ChecksumPlan, parts: Sequence[Part]) -> dict[str, str]:
    """By algorithm: what follows from the parts, if all of them have a checksum of the announced kind. O(parts)."""
    algorithm = plan.algorithm
    known = [
        (part.checksum[1], part.length)
        for part in parts
        if part.checksum is not None and part.checksum[0] == algorithm
    ]
    if algorithm not in ALGORITHMS or len(known) < len(parts):
        return {}
    if plan.composite:
        return {algorithm: composite_checksum(algorithm, [value for value, _ in known])}
    return {algorithm: joined_checksum(algorithm, known)} if algorithm in JOINABLE else {}


def require_object_checksums(call: Call, found: dict[str, str], count: int) -> None:
    """What the completion of `count` parts says of the object has to be what was found. Raises S3Failure."""
    kind = call.header(_TYPE)
    if kind and found and kind != checksum_type(found):
        raise S3Failure("InvalidRequest", "The checksum of the object is of another type.")
    for algorithm in ALGORITHMS:
        claimed = call.header(HEADER_PREFIX + algorithm)
        if claimed is None:
            continue
        if algorithm not in found:
            raise S3Failure(
                "InvalidRequest",
                f"The {algorithm} checksum of the object cannot be proved: the upload has to be begun with "
                f"x-amz-checksum-algorithm {algorithm.upper()}, and every part sent with its own.",
            )
        # The count may be left out.
        if found[algorithm] not in {claimed, f"{claimed}-{count}"}:
            raise S3Failure(
                "BadDigest", f"The {algorithm} checksum is not that of the parts put together."
            )
