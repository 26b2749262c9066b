"""Goal: records as JSON lose nothing on the way in and out; what is no record is refused with place and reason."""

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.codec.record_batch import Record
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.http import json_messages, topic_records
from segmentstore.http.topic_records import parse_records, record_as_json

NOW_MS = 1_700_000_000_000
CONTENT = st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode))
RECORDS = st.builds(
    Record,
    offset=st.just(0),
    timestamp_ms=st.integers(0, (1 << 63) - 1),
    key=CONTENT,
    value=CONTENT,
    headers=st.lists(st.tuples(st.text(max_size=8), CONTENT), max_size=3).map(tuple),
)


def parsed(value: object) -> list[Record]:
    return list(parse_records(json.dumps(value).encode(), lines=False, now_ms=NOW_MS))


@given(st.lists(RECORDS, min_size=1, max_size=5), st.booleans())
def test_what_a_consumer_gets_can_be_sent_and_is_the_same_record(
    records: list[Record], lines: bool
) -> None:
    shown = [dict(record_as_json(record)) for record in records]
    for each in shown:
        del each["offset"]
    body = "\n".join(json.dumps(each) for each in shown) if lines else json.dumps(shown)
    assert list(parse_records(body.encode(), lines=lines, now_ms=NOW_MS)) == records


def test_null_is_not_empty_and_left_out_is_null() -> None:
    absent, null, empty = parsed([{"key": "k"}, {"key": "k", "value": None}, {"value": ""}])
    assert (absent.value, null.value, empty.value, empty.key) == (None, None, b"", None)
    assert absent.timestamp_ms == NOW_MS


def test_any_json_is_a_value_and_is_stored_compactly() -> None:
    (record,) = parsed({"records": [{"value_json": {"a": [1, "ü"]}}]})
    assert record.value == '{"a":[1,"ü"]}'.encode()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (7, "it is not an object"),
        ({"vale": "v"}, "unknown fields fields=['vale']"),
        ({"value": 7}, "JSON goes into value_json"),
        ({"value": "a", "value_base64": "YQ=="}, "more than one of"),
        ({"value_base64": "%%"}, "is not in base64"),
        ({"key_base64": 7}, "is not text in base64"),
        ({"key": "\ud800"}, "surrogate"),
        ({"timestamp_ms": -1}, "timestamp_ms"),
        ({"timestamp_ms": True}, "timestamp_ms"),
        ({"timestamp_ms": 1 << 63}, "timestamp_ms"),
        ({"headers": {}}, "not an array"),
        ({"headers": [["only"]]}, "no pair"),
        ({"headers": [["n", {"base64": "YQ==", "more": 1}]]}, "no pair"),
    ],
)
def test_what_is_no_record_is_refused_with_its_place(record: object, why: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parsed([{"value": "v"}, record])
    assert "record 1 " in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"records": 7}', '{"records": [], "x": 1}', "7"])
def test_a_body_without_records_is_refused(body: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_records(body.encode(), lines=False, now_ms=NOW_MS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("form", ["[%s]", ' {"records" : [ %s ] } ', '{"rec\\u006frds":[%s]}'])
def test_the_records_of_a_body_are_the_same_in_every_form(form: str, encoding: str) -> None:
    body = (form % '{"key":"ü"},{"value_json":[1,{}]}').encode(encoding)
    first, second = parse_records(body, lines=False, now_ms=NOW_MS)
    assert (first.key, second.value) == ("ü".encode(), b"[1,{}]")


@pytest.mark.parametrize(
    "body", ["[{}", "[{},]", "[{} {}]", "[{}] x", '{"records":[{}]', '{"records":[{}]}}', '{"records":[{}],}']
)  # fmt: skip
def test_a_body_that_is_no_json_is_refused(body: str) -> None:
    with pytest.raises(InvalidRequestError, match="not JSON"):
        parse_records(body.encode(), lines=False, now_ms=NOW_MS)


@pytest.mark.parametrize("form", ["[%s]", '{"records":[%s]}'])
def test_records_are_parsed_one_by_one(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the parser looks at a value no other thread runs."""
    record = '{"key":"k1","value_json":{"a":1,"b":[1,2,3],"c":{"d":"e"}}}'
    body = (form % ",".join([record] * 1_000)).encode()
    whole: list[bytes] = []
    monkeypatch.setattr(topic_records, "parse_json", whole.append)
    assert len(parse_records(body, lines=False, now_ms=NOW_MS)) == 1_000
    assert whole == []


LONG = {"a": [{"ü": [1, 2.5e300, "\n", None]}, [], {}] * 5_000, "b": {"c": ["x" * 100_000, True]}}


@pytest.mark.parametrize("form", ["[%s]", '{"records":[%s]}', "%s"])
def test_a_long_record_is_parsed_and_stored_in_pieces(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While C code looks at a value, or writes one, no other thread runs."""
    expected = json.dumps(LONG, separators=(",", ":"), ensure_ascii=False).encode()
    body = (form % json.dumps({"key": "k", "value_json": LONG})).encode()
    written: list[int] = []
    given: list[int] = []
    encode, scan = json.JSONEncoder.encode, json_messages._value_at

    def noting_encode(encoder: json.JSONEncoder, value: object) -> str:
        text = encode(encoder, value)
        written.append(len(text))
        return text

    def noting_scan(text: str, position: int) -> tuple[object, int]:
        given.append(len(text))
        return scan(text, position)

    monkeypatch.setattr(json.JSONEncoder, "encode", noting_encode)
    monkeypatch.setattr(json_messages, "_value_at", noting_scan)
    (record,) = parse_records(body, lines=form == "%s", now_ms=NOW_MS)
    assert (record.key, record.value) == (b"k", expected)
    assert given
    assert max([0, *written, *given]) <= json_messages.AT_ONCE_CHARACTERS


@pytest.mark.parametrize("padding", [1, 40_000])
@pytest.mark.parametrize(("depth", "is_taken"), [(200, True), (30_000, False)])
def test_a_record_may_be_deep_but_not_too_deep(padding: int, depth: int, is_taken: bool) -> None:
    deep = "[" * depth + "0," * padding + "0" + "]" * depth
    record = f'{{"value_json":{deep}}}'
    for body in (record, f"[{record}]"):
        parse = partial(parse_records, body.encode(), lines=body == record, now_ms=NOW_MS)
        if is_taken:
            assert [one.value for one in parse()] == [deep.encode()]
        else:
            with pytest.raises(InvalidRequestError):
                parse()
