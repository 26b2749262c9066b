"""What a test knows about a log on BookKeeper and its owners, and the judgement of every reading and acknowledgement.

Payloads are unique: each names its owner and its number among that owner's.
"""

from dataclasses import dataclass, field

from segmentstore.contracts.identifiers import LogAddress

Entries = list[tuple[LogAddress, bytes]]


@dataclass(slots=True)
class Owner:
    """What one owner did."""

    name: str
    epoch: int = 0
    submitted: list[bytes] = field(default_factory=list)
    served: Entries | None = None
    """What it read, once it has read all."""
    served_behind: LogAddress = LogAddress(0)  # noqa: RUF009 - a number
    """The truncation that its reading began behind, or may have begun behind."""


class LogBreachError(AssertionError):
    """The log did what no correct log can do."""


@dataclass(slots=True)
class History:
    """Knowledge only grows: what was acknowledged or served stays where it is until it is truncated."""

    owners: dict[str, Owner] = field(default_factory=dict)
    by_address: dict[LogAddress, bytes] = field(default_factory=dict)
    by_payload: dict[bytes, LogAddress] = field(default_factory=dict)
    promised: dict[LogAddress, bytes] = field(default_factory=dict)
    """Acknowledged, or served to an owner that had read all."""
    truncation_asked: LogAddress = LogAddress(0)  # noqa: RUF009 - a number
    highest_epoch: int = 0

    def owner(self, name: str) -> Owner:
        assert name not in self.owners, name
        self.owners[name] = Owner(name)
        return self.owners[name]

    def opened(self, owner: Owner, epoch: int) -> None:
        """Epochs are in the order in which owners claimed, which need not be that in which their openings return."""
        taken = {other.epoch for other in self.owners.values()}
        _require(epoch not in taken and epoch > 0, f"{owner.name} has an epoch of another: {epoch}")
        owner.epoch = epoch
        self.highest_epoch = max(self.highest_epoch, epoch)

    def payload(self, owner: Owner, length: int) -> bytes:
        number = len(owner.submitted)
        payload = f"{owner.name}/{number}/".encode().ljust(length, b".")
        owner.submitted.append(payload)
        return payload

    def acknowledged(self, owner: Owner, address: LogAddress, payload: bytes) -> None:
        self._note(address, payload)
        self.promised[address] = payload
        for other in self.owners.values():
            if other.epoch > owner.epoch and other.served is not None:
                _require(
                    address <= other.served_behind or (address, payload) in other.served,
                    f"{owner.name} was told that {address} is kept, and {other.name}, a later owner, has not read it",
                )

    def served(self, owner: Owner, entries: Entries, *, behind: LogAddress) -> None:
        """All that the owner found, behind the truncation that the record had."""
        addresses = [address for address, _ in entries]
        _require(addresses == sorted(set(addresses)), f"out of order: {addresses}")
        _require(not addresses or addresses[0] > behind, f"{addresses[:1]} was truncated: {behind}")
        for address, payload in entries:
            self._note(address, payload)
        self._require_whole(entries)
        # Others may truncate while it reads, if it was fenced meanwhile; then it must not have read all.
        owner.served_behind = behind
        found = dict(entries)
        for address, payload in self._promised_to(owner):
            _require(
                address <= behind or found.get(address) == payload,
                f"{owner.name} has not found {address}, which was promised: {payload[:20]!r};"
                f" it found {addresses}",
            )
        owner.served = entries
        self.promised.update(found)

    def _promised_to(self, owner: Owner) -> list[tuple[LogAddress, bytes]]:
        """What later owners wrote is no business of one that was fenced."""
        own = [
            (address, payload)
            for address, payload in self.promised.items()
            if self.owners[payload.decode().split("/")[0]].epoch < owner.epoch
        ]
        return sorted(own)

    def _note(self, address: LogAddress, payload: bytes) -> None:
        known = self.by_address.setdefault(address, payload)
        _require(known == payload, f"two entries at {address}: {known[:20]!r}, {payload[:20]!r}")
        place = self.by_payload.setdefault(payload, address)
        _require(place == address, f"{payload[:20]!r} is at {place} and at {address}")

    def _require_whole(self, entries: Entries) -> None:
        """Of each owner a part without a hole, from its first entry unless that is truncated; owners by epoch."""
        numbers: dict[str, list[int]] = {}
        for _, payload in entries:
            name, number, _ = payload.decode().split("/")
            numbers.setdefault(name, []).append(int(number))
            _require(self.owners[name].submitted[int(number)] == payload, f"altered: {payload!r}")
        names = list(numbers)
        _require(
            names == sorted(names, key=lambda name: self.owners[name].epoch),
            f"owners out of order: {names}",
        )
        for place, (name, found) in enumerate(numbers.items()):
            _require(
                found == list(range(found[0], found[0] + len(found))),
                f"of {name} there are {found}",
            )
            _require(not place or not found[0], f"the first of {name} is {found[0]}")


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise LogBreachError(why)
