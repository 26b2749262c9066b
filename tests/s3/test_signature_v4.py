"""Signatures against the worked examples that AWS publishes: their key, time and requests, and what they must give."""

import pytest

from segmentstore.s3.authentication import (
    Scope,
    canonical_request,
    chunk_signature,
    request_signature,
    signing_key,
    trailer_signature,
)

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TIMESTAMP = "20130524T000000Z"
SCOPE = Scope("20130524", "us-east-1", "s3")
KEY = signing_key(SECRET, SCOPE)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = ("host", "examplebucket.s3.amazonaws.com")
EMPTY_AND_DATE = [("x-amz-content-sha256", EMPTY), ("x-amz-date", TIMESTAMP)]
KILOBYTE_CHUNKS = (
    "bf718b6f653bebc184e1479f1935b8da974d701b893afcf49e701f3e2f9f9c5a",
    "2edc986847e209b4016e141a6dc8716d3207350f416969382d431539bf292e4a",
    EMPTY,
)
"""SHA-256 of 64 KB and of 1 KB of the letter a, and of nothing."""


@pytest.mark.parametrize(
    ("method", "path", "parameters", "headers", "payload", "expected"),
    [
        (
            "GET",
            "/test.txt",
            [],
            [HOST, ("range", "bytes=0-9"), *EMPTY_AND_DATE],
            EMPTY,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            [],
            [
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                HOST,
                (
                    "x-amz-content-sha256",
                    "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
                ),
                ("x-amz-date", TIMESTAMP),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/",
            [("lifecycle", "")],
            [HOST, *EMPTY_AND_DATE],
            EMPTY,
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/",
            [("prefix", "J"), ("max-keys", "2")],
            [HOST, *EMPTY_AND_DATE],
            EMPTY,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
        (
            "GET",
            "/test.txt",
            [
                ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
                ("X-Amz-Credential", "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"),
                ("X-Amz-Date", TIMESTAMP),
                ("X-Amz-Expires", "86400"),
                ("X-Amz-SignedHeaders", "host"),
                ("X-Amz-Signature", "left out of what is signed"),
            ],
            [HOST],
            "UNSIGNED-PAYLOAD",
            "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
        ),
    ],
    ids=["get", "put", "subresource", "list", "presigned"],
)
def test_a_request_has_the_signature_of_the_example(
    method: str,
    path: str,
    parameters: list[tuple[str, str]],
    headers: list[tuple[str, str]],
    payload: str,
    expected: str,
) -> None:
    canonical = canonical_request(
        method=method,
        raw_path=path,
        parameters=parameters,
        headers=headers,
        payload_hash=payload,
    )
    signature = request_signature(KEY, timestamp=TIMESTAMP, scope=SCOPE, canonical=canonical)
    assert signature == expected


@pytest.mark.parametrize(
    ("value", "signed"),
    [
        ("  two   words\t and a tab ", "two words and a tab"),
        ("\u3000wide\u3000\u3000space\u00a0", "\u3000wide\u3000\u3000space\u00a0"),
        ("next\u0085line \u2028 end", "next\u0085line \u2028 end"),
    ],
)
def test_only_the_spaces_of_ascii_are_folded_before_a_header_is_signed(
    value: str, signed: str
) -> None:
    canonical = canonical_request(
        method="PUT",
        raw_path="/k",
        parameters=[],
        headers=[("x-amz-meta-name", value)],
        payload_hash=EMPTY,
    )
    assert canonical.split("\n")[3] == f"x-amz-meta-name:{signed}"


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
            (
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ),
        ),
        (
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
            (
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
            ),
        ),
    ],
    ids=["without a trailer", "with a trailer"],
)
def test_the_chunks_of_a_streamed_body_have_the_signatures_of_the_example(
    seed: str, expected: tuple[str, ...]
) -> None:
    previous, found = seed, []
    for chunk_sha256 in KILOBYTE_CHUNKS:
        previous = chunk_signature(
            KEY, timestamp=TIMESTAMP, scope=SCOPE, previous=previous, chunk_sha256=chunk_sha256
        )
        found.append(previous)
    assert tuple(found) == expected


def test_a_trailer_has_the_signature_of_the_example() -> None:
    signature = trailer_signature(
        KEY,
        timestamp=TIMESTAMP,
        scope=SCOPE,
        previous="2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        trailer=b"x-amz-checksum-crc32c:sOO8/Q==\n",
    )
    assert signature == "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
