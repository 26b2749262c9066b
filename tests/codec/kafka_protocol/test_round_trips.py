"""What is written is read again, in every version, and another implementation of the protocol reads and writes the same
bytes (kafka-python has its layouts from Kafka's own descriptions of the messages)."""

import importlib
import warnings
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.kafka_protocol.api_table import APIS
from segmentstore.codec.kafka_protocol.cluster import ApiVersionsResponse, MetadataRequest
from segmentstore.codec.kafka_protocol.frames import (
    FrameCutter,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from segmentstore.codec.kafka_protocol.structure import (
    Structure,
    decode_structure,
    encode_structure,
)
from tests.codec.kafka_protocol.any_message import SPOKEN, TEXTS, messages


def _spoken_id(case: object) -> str:
    return case.__name__ if isinstance(case, type) else f"v{case}"


@pytest.mark.parametrize(("kind", "version"), SPOKEN, ids=_spoken_id)
@settings(max_examples=5)
@given(data=st.data())
def test_a_message_is_read_as_it_was_written(
    kind: type[Structure], version: int, data: st.DataObject
) -> None:
    message = data.draw(messages(kind, version))

    content = b"".join(encode_structure(message, version))

    assert decode_structure(kind, content, version) == message


with warnings.catch_warnings():
    # It reads its descriptions in a way that Python gives up.
    warnings.simplefilter("ignore", DeprecationWarning)
    _MODULES: list[ModuleType] = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in (
            "admin.acl",
            "admin.groups",
            "admin.topics",
            "admin.configs",
            "metadata",
            "consumer",
            "producer",
        )
    ]


def _other_class(kind: type[Structure]) -> type:
    for module in _MODULES:
        found = getattr(module, kind.__name__, None)
        if isinstance(found, type):
            return found
    raise AssertionError(f"kafka-python has no {kind.__name__}")


@pytest.mark.parametrize(("kind", "version"), SPOKEN, ids=_spoken_id)
@settings(max_examples=5)
@given(data=st.data())
def test_another_implementation_has_the_same_layout(
    kind: type[Structure], version: int, data: st.DataObject
) -> None:
    other = _other_class(kind)
    message = data.draw(messages(kind, version))
    if isinstance(message, ApiVersionsResponse):
        # It takes every answer with an error for one in version 0.
        message = replace(message, error_code=0)
    if isinstance(message, MetadataRequest) and version == 0:
        # All topics are an empty list there; it has no null.
        message = replace(message, topics=message.topics or ())
    content = b"".join(encode_structure(message, version))

    there = other.decode(content, version=version)  # type: ignore[attr-defined]  # has no types
    there._header = None  # its decoder leaves that out, and its encoder asks for it
    back = there.encode(version=version)

    assert bytes(back) == content


@given(data=st.data(), correlation_id=st.integers(0, (1 << 31) - 1))
def test_a_request_and_its_answer_travel_in_frames(
    data: st.DataObject, correlation_id: int
) -> None:
    api = data.draw(st.sampled_from(sorted(APIS.values(), key=lambda each: each.key)))
    version = data.draw(st.integers(api.oldest, api.newest))
    client_id = data.draw(st.one_of(st.none(), TEXTS))
    request = data.draw(messages(api.request, version))
    response = data.draw(messages(api.response, version))

    sent = b"".join(
        encode_request(request, version, correlation_id=correlation_id, client_id=client_id)
    )
    answered = b"".join(encode_response(correlation_id, response, version))
    (request_frame,) = FrameCutter().feed(sent)
    header = read_request_header(request_frame)
    (response_frame,) = FrameCutter().feed(answered)

    assert (header.api_key, header.api_version) == (api.key, version)
    assert (header.correlation_id, header.client_id) == (correlation_id, client_id)
    assert decode_request(header, request_frame) == request
    assert (
        decode_response(api.response, response_frame, version, correlation_id=correlation_id)
        == response
    )


@given(
    contents=st.lists(st.binary(max_size=300), max_size=8),
    cuts=st.lists(st.integers(1, 40), min_size=1),
)
def test_frames_do_not_depend_on_how_their_bytes_arrive(
    contents: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(len(each).to_bytes(4, "big") + each for each in contents)
    cutter = FrameCutter()
    found: list[bytes] = []
    at = 0
    turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += map(bytes, cutter.feed(stream[at : at + step]))
        at += step
        turn += 1

    assert found == contents
    assert cutter.gathered_bytes == 0
