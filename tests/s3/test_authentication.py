"""Who may, and when: wrong keys, wrong signatures, wrong clocks, presigned addresses."""

import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from segmentstore.s3.authentication import (
    Authenticator,
    Scope,
    canonical_request,
    fold_all_spaces,
    fold_spaces,
    request_signature,
    signing_key,
)
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request_target import RequestTarget, parse_target
from segmentstore.s3.settings import EndpointSettings
from tests.s3.conftest import KEYS, client_of
from tests.s3.raw_request import send, signed_headers, timestamp_of
from tests.s3.test_objects import code_of

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SIGNED = ["host", "x-amz-content-sha256", "x-amz-date"]


class StoppedClock:
    def now_ms(self) -> int:
        return int(NOW.timestamp()) * 1000


def authenticator() -> Authenticator:
    return Authenticator(
        secrets={KEYS.access_key: KEYS.secret_key},
        wall_clock=StoppedClock(),
        settings=EndpointSettings(),
    )


def signed(
    moment: datetime,
    *,
    path: str = "/b/k",
    secret: str = KEYS.secret_key,
    note: str | None = None,
    fold: Callable[[str], str] = fold_spaces,
    **changed: str,
) -> tuple[RequestTarget, CIMultiDict[str]]:
    """A request as a client at that time would sign it, which folds spaces so; `note` is metadata of an object;
    `changed` headers are changed afterwards."""
    timestamp = timestamp_of(moment)
    scope = Scope(timestamp[:8], "us-east-1", "s3")
    headers = CIMultiDict(
        {"Host": "h", "x-amz-date": timestamp, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    )
    names = SIGNED
    if note is not None:
        headers["x-amz-meta-note"] = note
        names = [*SIGNED, "x-amz-meta-note"]
    signature = request_signature(
        signing_key(secret, scope),
        timestamp=timestamp,
        scope=scope,
        canonical=canonical_request(
            method="GET",
            raw_path=path,
            parameters=[],
            headers=[(name, headers[name]) for name in names],
            payload_hash="UNSIGNED-PAYLOAD",
            fold=fold,
        ),
    )
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={KEYS.access_key}/{scope.text()}, "
        f"SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    headers.update({name.replace("_", "-"): value for name, value in changed.items()})
    return parse_target(path, ""), headers


def outcome(target: RequestTarget, headers: CIMultiDict[str], method: str = "GET") -> str:
    try:
        authenticator().authenticate(method, target, CIMultiDictProxy(headers))
    except S3Error as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (0, "ok"),
        (14.9, "ok"),
        (-14.9, "ok"),
        (15.1, "RequestTimeTooSkewed"),
        (-15.1, "RequestTimeTooSkewed"),
    ],
)
def test_a_request_counts_for_fifteen_minutes_around_its_time(
    minutes: float, expected: str
) -> None:
    assert outcome(*signed(NOW + timedelta(minutes=minutes))) == expected


def test_another_secret_another_path_or_another_method_do_not_match() -> None:
    target, headers = signed(NOW)
    assert outcome(*signed(NOW, secret="another")) == "SignatureDoesNotMatch"
    assert outcome(parse_target("/b/other", ""), headers) == "SignatureDoesNotMatch"
    assert outcome(parse_target("/b/k", "versionId=1"), headers) == "SignatureDoesNotMatch"
    assert outcome(target, headers, "DELETE") == "SignatureDoesNotMatch"
    assert outcome(*signed(NOW, Host="other")) == "SignatureDoesNotMatch"
    assert outcome(*signed(NOW, x_amz_content_sha256="0" * 64)) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("fold", [fold_spaces, fold_all_spaces])
@pytest.mark.parametrize("note", [" two  words ", "\u3000wide\u3000\u3000space\u00a0", "n\u0085l"])
def test_spaces_that_are_not_of_ascii_are_signed_in_the_way_of_each_client(
    note: str, fold: Callable[[str], str]
) -> None:
    target, headers = signed(NOW, note=note, fold=fold)
    assert outcome(target, headers) == "ok"
    headers["x-amz-meta-note"] = note.replace("w", "v").replace("n", "m")
    assert outcome(target, headers) == "SignatureDoesNotMatch"


def test_a_meaningful_header_that_is_not_signed_is_refused() -> None:
    assert outcome(*signed(NOW, x_amz_meta_a="1")) == "AccessDenied"


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        ("AWS key:signature", "InvalidRequest"),
        ("AWS4-HMAC-SHA256 nonsense", "AuthorizationHeaderMalformed"),
        (
            "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=x",
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=testkey/20261121/r/ec2/aws4_request, SignedHeaders=host, Signature=x",
            "AuthorizationHeaderMalformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=nobody/20261121/r/s3/aws4_request, SignedHeaders=host, Signature=x",
            "InvalidAccessKeyId",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=testkey/20261120/r/s3/aws4_request, SignedHeaders=host, Signature=x",
            "AccessDenied",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=testkey/20261121/r/s3/aws4_request, SignedHeaders="
            + ";".join(SIGNED)
            + ", Signature=ü",
            "SignatureDoesNotMatch",
        ),
    ],
)
def test_an_authorization_that_is_none_is_refused_by_name(
    authorization: str, expected: str
) -> None:
    assert outcome(*signed(NOW, Authorization=authorization)) == expected


def test_a_request_without_a_signature_or_a_date_is_refused() -> None:
    target, headers = signed(NOW)
    del headers["x-amz-date"]
    assert outcome(target, headers) == "AccessDenied"
    del headers["Authorization"]
    assert outcome(target, headers) == "AccessDenied"


# --- over the network ----------------------------------------------------------------------------


@pytest.mark.integration
def test_wrong_keys_are_told_apart_from_wrong_signatures(url: str, bucket: str) -> None:
    client = client_of(url, secret="not the secret")
    assert code_of(client.list_objects_v2, Bucket=bucket) == (403, "SignatureDoesNotMatch")
    client.close()
    headers = signed_headers("GET", f"{url}/{bucket}", access_key="nobody")
    answer = send("GET", f"{url}/{bucket}", headers)
    assert (answer.status, answer.code) == (403, "InvalidAccessKeyId")
    assert send("GET", f"{url}/{bucket}", {"Host": "x"}).code == "AccessDenied"


@pytest.mark.integration
def test_presigned_addresses_work_for_whoever_has_them(client: Any, url: str, bucket: str) -> None:
    named = {"Bucket": bucket, "Key": "a b/ü"}
    old = client.generate_presigned_url("get_object", named, ExpiresIn=60)
    assert send("GET", old, {}).code == "InvalidRequest"
    client = client_of(url, signature_version="s3v4")
    put = client.generate_presigned_url("put_object", named, ExpiresIn=60)
    with urllib.request.urlopen(
        urllib.request.Request(put, data=b"content", method="PUT")
    ) as answer:
        assert answer.status == 200
    get = client.generate_presigned_url("get_object", named, ExpiresIn=60)
    with urllib.request.urlopen(get) as answer:
        assert answer.read() == b"content"
    for changed in (
        get.replace("X-Amz-Expires=60", "X-Amz-Expires=61"),
        get.replace(bucket, "other-bucket"),
        get + "&versionId=null",
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(changed)
        assert b"SignatureDoesNotMatch" in caught.value.read()
        caught.value.close()


@pytest.mark.integration
def test_presigned_addresses_end(url: str, bucket: str) -> None:
    named = {"Bucket": bucket, "Key": "k"}
    client = client_of(url, signature_version="s3v4")
    get = client.generate_presigned_url("get_object", named, ExpiresIn=60)
    assert "X-Amz-Date=" in get
    for changed, expected in (
        (
            get.replace("X-Amz-Expires=60", "X-Amz-Expires=604801"),
            b"AuthorizationQueryParametersError",
        ),
        (get.replace("X-Amz-Expires=60", "X-Amz-Expires=0"), b"AuthorizationQueryParametersError"),
        (get.replace("X-Amz-Date=20", "X-Amz-Date=19"), b"AuthorizationQueryParametersError"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(changed)
        assert expected in caught.value.read()
        caught.value.close()


def test_a_presigned_request_that_has_ended_is_refused() -> None:
    timestamp = timestamp_of(NOW - timedelta(seconds=61))
    scope = Scope(timestamp[:8], "us-east-1", "s3")
    query = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEYS.access_key}/{scope.text()}".replace("/", "%2F"),
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": "60",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": "0" * 64,
    }
    target = parse_target("/b/k", "&".join(f"{name}={value}" for name, value in query.items()))
    with pytest.raises(S3Error, match="expired"):
        authenticator().authenticate("GET", target, CIMultiDictProxy(CIMultiDict({"Host": "h"})))
