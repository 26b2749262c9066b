"""Every message that is spoken has, in every version that is advertised, the fields that Kafka 4.2 says it has.

Method: Kafka's own descriptions of its messages lie in the archive of its clients, as JSON with comments. Field by
field both are written down as paths and types, and compared: order, type, presence by version, what lies in what, and
from which version on a message is flexible. Of null the rule is that of a server: a request may be read where Kafka
has no null, and an answer need not be able to say it.

Outside of this truth are versions that Kafka gave up (those below `validVersions`: clients of other makers send them),
and tagged fields, which are not read and not written here. How a field of some type looks is held elsewhere, by another
implementation (tests/codec/kafka_protocol).
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints
from uuid import UUID
from zipfile import ZipFile

import pytest

from segmentstore.codec.kafka_protocol.api_table import APIS, Api
from segmentstore.codec.kafka_protocol.fields import INT8, INT16, INT32, INT64, RECORDS, Form
from segmentstore.codec.kafka_protocol.structure import (
    Structure,
    Versions,
    is_flexible,
    may_be_null,
)
from tests.integration.java_libraries import require_maven
from tests.integration.kafka.java_tools import tools_class_path

pytestmark = pytest.mark.integration

OTHER_NAMES: Final = {
    "DeleteGroupsRequest.groups_names": "group_ids",
    "DescribeAclsRequest.host_filter": "host",
    "DescribeAclsRequest.pattern_type_filter": "pattern_type",
    "DescribeAclsRequest.principal_filter": "principal",
    "DescribeAclsRequest.resource_name_filter": "resource_name",
    "DescribeAclsRequest.resource_type_filter": "resource_type",
    "FetchRequest.forgotten_topics_data": "forgotten_topics",
    "FetchResponse.responses": "topics",
    "OffsetCommitRequest.generation_id_or_member_epoch": "generation_id",
    "ProduceRequest.topic_data": "topics",
    "ProduceRequest.topics.partition_data": "partitions",
    "ProduceResponse.responses": "topics",
    "ProduceResponse.topics.partition_responses": "partitions",
}
"""Kafka's names, within what has our names, and ours, where they differ by more than their style."""

NUMBERS: Final = {id(INT8): "int8", id(INT16): "int16", id(INT32): "int32", id(INT64): "int64"}

Description = dict[str, Any]  # of a message or a field, as JSON has it


@dataclass(frozen=True)
class Field:
    """One of a message, or of what it contains."""

    path: str
    kind: str
    may_be_null: bool

    @property
    def place(self) -> str:
        return f"{self.path}: {self.kind}"


@pytest.fixture(scope="module")
def descriptions() -> dict[tuple[int, str], Description]:
    """By API and direction."""
    require_maven("the layouts of messages were not held against those of Kafka")
    paths = map(Path, tools_class_path().split(os.pathsep))
    (archive,) = (path for path in paths if path.name.startswith("kafka-clients-"))
    found: dict[tuple[int, str], Description] = {}
    with ZipFile(archive) as content:
        for name in content.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = content.read(name).decode()
                described = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
                if described["type"] in ("request", "response"):
                    found[described["apiKey"], described["type"]] = described
    return found


@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_a_message_has_the_fields_that_kafka_says(
    api: Api, direction: str, descriptions: dict[tuple[int, str], Description]
) -> None:
    described = descriptions[api.key, direction]
    kind = api.request if direction == "request" else api.response
    compared = 0
    for version in range(api.oldest, api.newest + 1):
        if not _contain(described["validVersions"], version):
            assert version < _oldest(described), f"Kafka has no version {version} yet"
            continue
        compared += 1
        theirs = list(_fields_there(described, version))
        ours = list(_fields_here(kind, version, kind.__name__))
        places = [each.place for each in ours]
        assert places == [each.place for each in theirs], f"{version=}"
        for here, there in zip(ours, theirs, strict=True):
            if direction == "request":
                assert here.may_be_null or not there.may_be_null, f"{here.path} {version=}"
            else:
                assert there.may_be_null or not here.may_be_null, f"{here.path} {version=}"
        flexible = _contain(described["flexibleVersions"], version)
        assert is_flexible(kind, version) == flexible, f"{version=}"
    assert compared > 0, "no version of it is one of Kafka's"


def _fields_there(described: Description, version: int) -> Iterator[Field]:
    structures = {each["name"]: each["fields"] for each in described.get("commonStructs", ())}
    yield from _of_description(described["fields"], structures, version, described["name"])


def _of_description(
    described: list[Description], structures: Description, version: int, path: str
) -> Iterator[Field]:
    for each in described:
        is_tagged = _contain(each.get("taggedVersions", "none"), version)
        if is_tagged or not _contain(each["versions"], version):
            continue
        kind = each["type"].removeprefix("[]")
        inner = each.get("fields") or structures.get(kind)
        found = _path_of(path, each["name"])
        yield Field(
            path=found,
            kind=("[]" if each["type"].startswith("[]") else "") + ("struct" if inner else kind),
            may_be_null=_contain(each.get("nullableVersions", "none"), version),
        )
        if inner:
            yield from _of_description(inner, structures, version, found)


def _fields_here(kind: type[Structure], version: int, path: str) -> Iterator[Field]:
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):  # type: ignore[arg-type]  # every message is a dataclass
        hint = hints[each.name]
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        versions = next((note for note in notes if isinstance(note, Versions)), None)
        if versions is None or versions.contain(version):
            yield from _of_hint(hint, version, f"{path}.{each.name}")


def _of_hint(hint: object, version: int, path: str) -> Iterator[Field]:
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    hint, form = _without_notes(hint)
    is_nullable = form is RECORDS
    if form is None and get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
        hint, form = _without_notes(hint)
        is_nullable = may_be_null(notes, version)
    is_list = get_origin(hint) is tuple
    if is_list:
        hint, form = _without_notes(get_args(hint)[0])
    is_structure = isinstance(hint, type) and issubclass(hint, Structure)
    kind = "struct" if is_structure else _kind_of(hint, form)
    yield Field(path=path, kind=("[]" if is_list else "") + kind, may_be_null=is_nullable)
    if isinstance(hint, type) and issubclass(hint, Structure):
        yield from _fields_here(hint, version, path)


def _without_notes(hint: object) -> tuple[object, Form | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    bare, *notes = get_args(hint)
    return bare, next((note for note in notes if isinstance(note, Form)), None)


def _kind_of(hint: object, form: Form | None) -> str:
    if form is RECORDS:
        return "records"
    if form is not None:
        return NUMBERS[id(form)]
    words: dict[object, str] = {str: "string", bytes: "bytes", bool: "bool", UUID: "uuid"}
    return words[hint]


def _path_of(path: str, name: str) -> str:
    """With our name for it."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    found = f"{path}.{words}"
    return f"{path}.{OTHER_NAMES.get(found, words)}"


def _contain(versions: str, version: int) -> bool:
    """Versions as Kafka writes them: "none", "3", "3+" or "3-5"."""
    if versions == "none":
        return False
    since, to, until = versions.partition("-")
    if since.endswith("+"):
        return version >= int(since[:-1])
    return int(since) <= version <= int(until if to else since)


def _oldest(described: Description) -> int:
    return int(re.split(r"[-+]", described["validVersions"])[0])
