"""CRC64NVME: the native function and its twin are one function, and what it says of bytes is held."""

from base64 import b64encode
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from segmentstore.s3 import checksums
from segmentstore.s3.checksums import checksum_text
from tests.s3.test_multipart import PART, begin, complete
from tests.s3.test_objects import body_of, code_of
from tests.s3.test_streamed_bodies import CHUNKS, SIGNED_TRAILER, UNSIGNED_TRAILER, put_in_chunks

NATIVE = native_module("segmentstore.runtime.native.digests")
KINDS: tuple[Callable[[bytes], BufferView], ...] = (
    bytes,
    memoryview,
    lambda content: memoryview(bytearray(content)),
    lambda content: memoryview(b"x" + content)[1:],
)
BUFFERS = st.builds(
    lambda kind, content: kind(content), st.sampled_from(KINDS), st.binary(max_size=200)
)
WRONG = b64encode(bytes(8)).decode()


def twin(buffers: list[BufferView], value: int = 0) -> int:
    return checksums._crc64_in_python(buffers, value)


def test_the_check_value_of_the_standard() -> None:
    assert twin([b"123456789"]) == 0xAE8B14860A799888
    assert checksums.crc64_of([b"1234", memoryview(b"56789")]) == 0xAE8B14860A799888
    assert checksums.crc64_of([]) == twin([]) == 0


@pytest.mark.skipif(NATIVE is None, reason="built without native pieces")
@settings(deadline=None)
@given(st.lists(st.lists(BUFFERS, max_size=6), max_size=6), st.integers(0, (1 << 64) - 1))
def test_the_native_function_is_its_twin(contents: list[list[BufferView]], value: int) -> None:
    assert NATIVE is not None
    assert NATIVE.crc64_all(contents, value) == [twin(buffers, value) for buffers in contents]


@pytest.mark.skipif(NATIVE is None, reason="built without native pieces")
def test_the_native_function_without_the_interpreter_is_its_twin_too() -> None:
    assert NATIVE is not None
    content = Random(1).randbytes(100_003)
    for cut in (0, 1, 15, 16, 17, 50_001):
        buffers = [memoryview(content)[:cut], memoryview(content)[cut:]]
        assert NATIVE.crc64_all([buffers], 7) == [twin([content], 7)]


@pytest.mark.skipif(NATIVE is None, reason="built without native pieces")
def test_what_is_no_buffer_is_refused() -> None:
    assert NATIVE is not None
    for wrong in (["text"], [None], [memoryview(b"abcdef")[::2]], 7):
        with pytest.raises((TypeError, BufferError)):
            NATIVE.crc64_all([wrong], 0)


@pytest.mark.integration
def test_it_is_kept_and_shown(client: Any, bucket: str) -> None:
    value = checksum_text("crc64nvme", [b"body"])
    put = client.put_object(Bucket=bucket, Key="k", Body=b"body", ChecksumCRC64NVME=value)
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert put["ChecksumCRC64NVME"] == head["ChecksumCRC64NVME"] == value


@pytest.mark.integration
def test_a_body_that_is_another_than_its_checksum_stores_nothing(client: Any, bucket: str) -> None:
    refused = code_of(
        client.put_object, Bucket=bucket, Key="k", Body=b"body", ChecksumCRC64NVME=WRONG
    )
    assert refused == (400, "BadDigest")
    upload = begin(client, bucket, ChecksumAlgorithm="CRC64NVME")
    refused = code_of(
        client.upload_part, **upload, PartNumber=1, Body=b"part", ChecksumCRC64NVME=WRONG
    )
    assert refused == (400, "BadDigest")
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    assert "Parts" not in client.list_parts(**upload)


@pytest.mark.integration
@pytest.mark.parametrize("payload", [SIGNED_TRAILER, UNSIGNED_TRAILER])
def test_a_trailing_one_is_verified_and_kept(
    client: Any, url: str, bucket: str, payload: str
) -> None:
    right = checksum_text("crc64nvme", CHUNKS)
    for trailer, expected in ((WRONG, (400, "BadDigest")), (right, (200, ""))):
        answer = put_in_chunks(f"{url}/{bucket}/k", payload, trailer=trailer, algorithm="crc64nvme")
        assert (answer.status, answer.code) == expected
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC64NVME"], head["ChecksumType"]) == (right, "FULL_OBJECT")


@pytest.mark.integration
def test_a_trailing_one_that_nobody_can_verify_stores_nothing(
    client: Any, url: str, bucket: str
) -> None:
    answer = put_in_chunks(
        f"{url}/{bucket}/k", UNSIGNED_TRAILER, trailer="AAAA", algorithm="xxhash3"
    )
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.integration
def test_an_object_of_parts_has_that_of_all_its_bytes(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC64NVME")
    parts = []
    for number, piece in enumerate((PART, b"the end"), 1):
        value = checksum_text("crc64nvme", [piece])
        answer = client.upload_part(
            **upload, PartNumber=number, Body=piece, ChecksumCRC64NVME=value
        )
        parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC64NVME": value})
    done = complete(client, upload, *parts)
    whole = checksum_text("crc64nvme", [PART, b"the end"])
    assert (done["ChecksumCRC64NVME"], done["ChecksumType"]) == (whole, "FULL_OBJECT")
    assert body_of(client, Bucket=bucket, Key="k") == PART + b"the end"


@pytest.mark.integration
@pytest.mark.parametrize(
    "parameters",
    [
        {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "COMPOSITE"},
        {"ChecksumAlgorithm": "SHA256", "ChecksumType": "FULL_OBJECT"},
        {"ChecksumAlgorithm": "CRC32", "ChecksumType": "OTHER"},
        {"ChecksumAlgorithm": "XXHASH3"},
        {"ChecksumType": "FULL_OBJECT"},
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_kept_is_refused(
    client: Any, bucket: str, parameters: dict[str, str]
) -> None:
    refused = code_of(client.create_multipart_upload, Bucket=bucket, Key="k", **parameters)
    assert refused == (400, "InvalidRequest")


@pytest.mark.integration
def test_a_completion_of_another_type_than_announced_is_refused(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32")
    value = checksum_text("crc32", [b"x"])
    answer = client.upload_part(**upload, PartNumber=1, Body=b"x", ChecksumCRC32=value)
    part = {"PartNumber": 1, "ETag": answer["ETag"], "ChecksumCRC32": value}
    order = {"MultipartUpload": {"Parts": [part]}}
    refused = code_of(
        client.complete_multipart_upload, **upload, **order, ChecksumType="FULL_OBJECT"
    )
    assert refused == (400, "InvalidRequest")
    complete(client, upload, part, ChecksumType="COMPOSITE")


@pytest.mark.integration
def test_a_copy_has_the_checksum_that_is_asked_for(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key="k", Body=b"123456789")
    source = {"Bucket": bucket, "Key": "k"}
    copied = client.copy_object(
        Bucket=bucket, Key="c", CopySource=source, ChecksumAlgorithm="CRC64NVME"
    )["CopyObjectResult"]
    expected = checksum_text("crc64nvme", [b"123456789"])
    assert (copied["ChecksumCRC64NVME"], copied["ChecksumType"]) == (expected, "FULL_OBJECT")
    head = client.head_object(Bucket=bucket, Key="c", ChecksumMode="ENABLED")
    assert head["ChecksumCRC64NVME"] == expected
    refused = code_of(
        client.copy_object, Bucket=bucket, Key="d", CopySource=source, ChecksumAlgorithm="XXHASH3"
    )
    assert refused == (400, "InvalidRequest")
