"""Which checksum an upload in parts was announced with, as it is kept with the upload, and what the object gets of it.

Invariant: a checksum that a completion names of its object is proved by those of the parts, or it is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.s3.call import Call
from segmentstore.s3.checksums import (
    ALGORITHMS,
    HEADER_PREFIX,
    JOINABLE,
    composite_checksum,
    joined_checksum,
)
from segmentstore.s3.failures import S3Failure
from tier2.volumes.part_files import Part
from tier2.volumes.upload_record import Upload

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
    algorithm = (call.header("x-amz-checksum-algorithm") or "").lower()
    composite = call.header("x-amz-checksum-type") != "FULL_OBJECT"
    if not composite and algorithm in ALGORITHMS and algorithm not in JOINABLE:
        raise S3Failure(
            "InvalidRequest",
            f"The FULL_OBJECT checksum type cannot be used with the {algorithm} checksum algorithm.",
        )
    return ChecksumPlan(algorithm, composite)


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
