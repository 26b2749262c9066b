"""What the value of a setting must respect, kept beside the field that holds it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SettingRule:
    """What a value must respect, and what it is for."""

    sentence: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


def number(default: float, sentence: str, *, minimum: float, maximum: float) -> float:
    """A field with a number."""
    rule = SettingRule(sentence, minimum, maximum)
    return field(default=default, metadata={"rule": rule})


def count(default: int, sentence: str, *, minimum: int, maximum: int) -> int:
    """A field with a whole number."""
    rule = SettingRule(sentence, minimum, maximum)
    return field(default=default, metadata={"rule": rule})


def text(default: str, sentence: str, *choices: str) -> str:
    """A field with text; one of the choices, if there are any."""
    rule = SettingRule(sentence, choices=choices)
    return field(default=default, metadata={"rule": rule})
