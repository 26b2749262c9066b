"""Which checksum an upload in parts was announced with, as it is kept with the upload."""

from dataclasses import dataclass

from tier2.volumes.upload_record import Upload

_ALGORITHM, _COMPOSITE = "checksum_algorithm", "checksum_composite"


@dataclass(frozen=True, slots=True)
class ChecksumPlan:
    """What the object will have."""

    algorithm: str
    """In lower case; empty: none was announced."""
    composite: bool
    """Whether the object gets the checksum of its parts' checksums."""

    def notes(self) -> dict[str, str]:
        """To keep with the upload."""
        return {_ALGORITHM: self.algorithm, _COMPOSITE: "yes" if self.composite else "no"}


def checksum_plan_of(upload: Upload) -> ChecksumPlan:
    """As it was announced."""
    notes = upload.record.notes
    return ChecksumPlan(notes.get(_ALGORITHM, ""), notes.get(_COMPOSITE) == "yes")
