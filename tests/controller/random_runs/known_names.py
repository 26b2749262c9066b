"""Which names are there, by what their keepers were told."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Presence:
    """Whether a name is there; None while a change is not answered. `since`: the tick of the last change of this."""

    there: bool | None = False
    since: int = 0

    def say(self, there: bool | None, tick: int) -> None:
        self.there, self.since = there, tick


@dataclass(slots=True)
class KnownNames:
    """Names of one kind, by name."""

    names: dict[str, Presence] = field(default_factory=dict)

    def of(self, name: str) -> Presence:
        return self.names.setdefault(name, Presence())

    def present(self) -> list[str]:
        """Those that are surely there."""
        return [name for name, presence in self.names.items() if presence.there]

    def wrong(self, listed: Sequence[str], began: int) -> str:
        """What a listing that began then says wrongly; "" if nothing."""
        if list(listed) != sorted(set(listed)):
            return f"names are not in order {listed}"
        for name, presence in self.names.items():
            if (
                presence.since < began
                and presence.there is not None
                and (presence.there != (name in listed))
            ):
                return f"{name} there={presence.there} listed={listed}"
        strange = [name for name in listed if name not in self.names]
        return f"nobody made {strange}" if strange else ""
