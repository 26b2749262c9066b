"""What a kind of server process is started with, written down once for every place in which it may run.

Words of a command, values of variables and of settings, and directories are templates: `{name}` stands for what a
place says of it, of `sizes` unless the place says otherwise. A word that is one name alone may become several words.

Invariants:

- Nothing is added to what stands here, nor left out: a place fills in names only.
- A name that neither a place nor `sizes` knows is an error, not an empty word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Place = Mapping[str, str | Sequence[str]]
"""What the names of templates stand for in one place."""


@dataclass(frozen=True, slots=True)
class ProcessRole:
    """One kind of process. Its methods raise KeyError for a name that nothing is known of."""

    name: str
    count: int
    command: Sequence[str]
    ports: Mapping[str, int] = field(default_factory=dict)
    """By what they are for; the numbers count where each process has a network address of its own."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the file that the command names as `{settings}`."""
    directories: Sequence[str] = field(default_factory=tuple)
    """Made before the process starts."""

    def command_at(self, place: Place) -> list[str]:
        """The command's words."""
        words: list[str] = []
        for template in self.command:
            whole = place.get(template[1:-1]) if template.startswith("{") else None
            if whole is None or isinstance(whole, str):
                words.append(self._filled(template, place))
            else:
                words += whole
        return words

    def environment_at(self, place: Place) -> dict[str, str]:
        """Variables that the process gets."""
        return {name: self._filled(value, place) for name, value in self.environment.items()}

    def settings_at(self, place: Place) -> str:
        """The content of its file of settings: a line NAME=VALUE for each."""
        return "".join(
            f"{name}={self._filled(value, place)}\n" for name, value in self.settings.items()
        )

    def directories_at(self, place: Place) -> list[str]:
        """Their paths."""
        return [self._filled(each, place) for each in self.directories]

    def _filled(self, template: str, place: Place) -> str:
        return template.format_map({**self.sizes, **place})
