"""Gives out the identities of one claim: each once, in growing order (H2)."""

from tier2.storage.object_names import ObjectIdentity


class IdentitySource:
    """Serials within (epoch, claim), from 1."""

    def __init__(self, *, epoch: int, claim: int) -> None:
        self._epoch = epoch
        self._claim = claim
        self._serial = 0

    def take(self) -> ObjectIdentity:
        self._serial += 1
        return ObjectIdentity(self._epoch, self._claim, self._serial)
