"""Errors travel as themselves: the class, the message and every fact that a caller may decide by."""

import inspect

import pytest

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.frames import COMMANDS, decode_command
from segmentstore.codec.wire_protocol.store_calls import (
    FACTS,
    STORE_CALL_TYPES,
    AnswerRefused,
    CarriedError,
)
from segmentstore.contracts import errors
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentStoreError,
)

CLASSES = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, SegmentStoreError)
]


def sample_of(kind: type[SegmentStoreError]) -> SegmentStoreError:
    """With a value for each argument of the constructor."""
    values: dict[str, object] = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is not parameter.VAR_KEYWORD:
            form = str(parameter.annotation)
            values[name] = b"\0bytes" if "bytes" in form else 7 if "int" in form else "words"
    return kind(**values) if values else kind("it went wrong; why=ü")


def carried(error: SegmentStoreError) -> SegmentStoreError:
    sent = AnswerRefused(4, CarriedError.of(error))
    received = decode_command(sent.type, sent.encode()[8:])
    assert isinstance(received, AnswerRefused)
    return received.error.error()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_of_the_contracts_arrives_as_it_was(kind: type[SegmentStoreError]) -> None:
    error = sample_of(kind)
    arrived = carried(error)
    assert type(arrived) is type(error)
    assert (str(arrived), arrived.args, arrived.kind) == (str(error), error.args, error.kind)
    assert vars(arrived) == vars(error)
    assert set(FACTS.get(kind, ())) == set(vars(error)), "a fact that is not carried"


def test_an_error_of_one_room_arrives_as_the_class_that_says_the_same() -> None:
    class RoomError(SegmentNotFoundError):
        """Of no contract."""

    assert type(carried(RoomError("a"))) is SegmentNotFoundError
    assert type(carried(ProtocolError("too long"))) is InvalidRequestError


def test_a_message_that_no_frame_holds_is_cut() -> None:
    assert len(str(carried(InvalidRequestError("ü\ud800" * 100_000)))) < 40_000


@pytest.mark.parametrize(
    "wrong",
    [
        CarriedError("Exception", "", ()),
        CarriedError("SegmentNotFoundError", "", ()),
        CarriedError("SegmentNotFoundError", "", (7,)),
        CarriedError("InvalidRequestError", "", ("name",)),
        CarriedError("BadAttributeUpdateError", "", ("name", b"key", "current")),
    ],
)
def test_an_error_that_is_none_is_refused(wrong: CarriedError) -> None:
    with pytest.raises(ProtocolError):
        decode_command(AnswerRefused.type, AnswerRefused(4, wrong).encode()[8:])


def test_the_present_value_of_an_attribute_is_of_any_kind() -> None:
    for current in (None, -5, b"bytes"):
        error = carried(BadAttributeUpdateError("name", key=b"k", current=current))
        assert isinstance(error, BadAttributeUpdateError)
        assert error.current == current


def test_calls_have_numbers_that_no_client_of_pravega_sends() -> None:
    own: list[type[Command]] = [
        command for command in COMMANDS.values() if command.__module__.endswith("store_calls")
    ]
    assert all(command.type <= -1000 for command in own)
    calls = {command.type for command in own if not command.__name__.startswith("Answer")}
    assert calls == STORE_CALL_TYPES
