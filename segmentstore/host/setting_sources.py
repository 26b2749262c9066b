"""Where settings come from, and which source wins.

Flags win over environment variables, those over the TOML file, that over the defaults.

Invariants:

- A key that names no setting is an error in every source, and the error names the nearest setting there is.
- All problems of all sources are reported at once.
- Text (flags, environment, strings in TOML) may carry units; a bare number counts in the unit of the setting's name.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from segmentstore.codec.quantities import format_bytes, format_seconds, parse_bytes, parse_seconds
from segmentstore.host.settings import (
    SECTIONS,
    ServiceSettings,
    SettingDefinition,
    SettingsError,
    SettingValue,
    check_relations,
    check_setting,
    setting_definitions,
)

ENVIRONMENT_PREFIX = "SEGMENTSTORE_"
NOT_SETTINGS = frozenset(
    {
        "SEGMENTSTORE_BOOKKEEPER_JARS",
        "SEGMENTSTORE_BOOKKEEPER_PASSWORD",
        "SEGMENTSTORE_CONFIG",
        "SEGMENTSTORE_CONTROLLER",
        "SEGMENTSTORE_KAFKA",
        "SEGMENTSTORE_NATIVE",
        "SEGMENTSTORE_S3_ACCESS_KEY",
        "SEGMENTSTORE_S3_SECRET_KEY",
        "SEGMENTSTORE_SERVER",
    }
)
"""Variables that name no setting: secrets, which no listing of settings may show, and what concerns the command line,
its clients and the S3 endpoint alone."""


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One setting, its value, and the source that gave it."""

    definition: SettingDefinition
    value: SettingValue
    source: str

    @property
    def shown(self) -> str:
        """The value as text that can be written back into any source."""
        if self.definition.is_size:
            return format_bytes(cast("int", self.value))
        if self.definition.is_duration:
            return format_seconds(cast("float", self.value))
        return str(self.value)


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """All settings together, and one by one with their sources."""

    settings: ServiceSettings
    each: tuple[ResolvedSetting, ...]

    def source_of(self, full_name: str) -> str:
        """Which source gave a setting its value."""
        return next(each.source for each in self.each if each.definition.full_name == full_name)


def resolve_settings(
    *,
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    toml_text: str | None = None,
    toml_name: str = "the TOML file",
) -> ResolvedSettings:
    """Merge the sources. `flags` are full names to text. Raises SettingsError with every problem found."""
    definitions = {definition.full_name: definition for definition in setting_definitions()}
    problems: list[str] = []
    chosen: dict[str, ResolvedSetting] = {
        name: ResolvedSetting(definition, definition.default, "default")
        for name, definition in definitions.items()
    }

    def take(given: Mapping[str, object], source_of: Mapping[str, str]) -> None:
        for name, raw in given.items():
            definition = definitions.get(name)
            source = source_of[name]
            if definition is None:
                problems.append(f"{source}: {_unknown(name, definitions)}")
                continue
            try:
                value = _convert(definition, raw)
            except ValueError as error:
                problems.append(f"{source}: {name}: {error}")
                continue
            wrong = check_setting(definition, value)
            if wrong is not None:
                problems.append(f"{source}: {wrong}")
                continue
            chosen[name] = ResolvedSetting(definition, value, source)

    from_file = _read_toml(toml_text, toml_name, problems)
    take(from_file, dict.fromkeys(from_file, toml_name))
    from_environment, variables = _read_environment(environment, definitions)
    take(from_environment, variables)
    take(flags, {name: f"flag for {name}" for name in flags})

    settings = _assemble(chosen)
    problems += check_relations(settings)
    if problems:
        raise SettingsError(problems)
    return ResolvedSettings(settings, tuple(chosen.values()))


def _read_toml(text: str | None, name: str, problems: list[str]) -> dict[str, object]:
    if text is None:
        return {}
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{name}: not valid TOML: {error}")
        return {}
    flat: dict[str, object] = {}
    for section, content in document.items():
        if isinstance(content, dict):
            flat.update({f"{section}.{key}": value for key, value in content.items()})
        else:
            flat[section] = content
    return flat


def _read_environment(
    environment: Mapping[str, str], definitions: Mapping[str, SettingDefinition]
) -> tuple[dict[str, str], dict[str, str]]:
    by_variable = {definition.environment_name: name for name, definition in definitions.items()}
    values: dict[str, str] = {}
    sources: dict[str, str] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        # An unknown variable keeps its own spelling, so that the message can be searched for.
        name = by_variable.get(variable, variable)
        values[name] = environment[variable]
        sources[name] = f"environment {variable}"
    return values, sources


def _unknown(name: str, definitions: Mapping[str, SettingDefinition]) -> str:
    spellings = {full_name.lower(): full_name for full_name in definitions}
    if name.startswith(ENVIRONMENT_PREFIX):
        spellings = {
            definition.environment_name.lower(): definition.environment_name
            for definition in definitions.values()
        }
    nearest = difflib.get_close_matches(name.lower(), list(spellings), n=1, cutoff=0.0)
    return f"there is no setting {name}; the nearest is {spellings[nearest[0]]}"


def _convert(definition: SettingDefinition, raw: object) -> SettingValue:
    if definition.type is str:
        if not isinstance(raw, str):
            raise ValueError(f"wants text, not {raw!r}")
        return raw
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError(f"wants a number, not {raw!r}")
    if isinstance(raw, str):
        return _convert_text(definition, raw)
    if definition.type is int and isinstance(raw, float):
        raise ValueError(f"wants a whole number, not {raw!r}")
    return float(raw) if definition.type is float else raw


def _convert_text(definition: SettingDefinition, text: str) -> SettingValue:
    if definition.is_size:
        return parse_bytes(text)
    if definition.is_duration:
        return parse_seconds(text)
    try:
        return int(text) if definition.type is int else float(text)
    except ValueError:
        raise ValueError(f"wants a number, not {text!r}") from None


def _assemble(chosen: Mapping[str, ResolvedSetting]) -> ServiceSettings:
    sections: dict[str, dict[str, SettingValue]] = {}
    for setting in chosen.values():
        section = sections.setdefault(setting.definition.section, {})
        section[setting.definition.name] = setting.value
    built = {
        name: section_type(**values)
        for (name, values), section_type in zip(sections.items(), SECTIONS, strict=True)
    }
    return ServiceSettings(**built)
