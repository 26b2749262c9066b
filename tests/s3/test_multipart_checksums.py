"""What a completion says of the whole object: it holds, or nothing is stored."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.s3.checksums import (
    COMPOSABLE,
    JOINABLE,
    checksum_text,
    composite_checksum,
    joined_checksum,
)
from tests.s3.conftest import client_of
from tests.s3.test_multipart import PART, begin, complete
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration

PIECES = (PART, PART, b"the end")
WRONG = b64encode(bytes(4)).decode()


def send_all(client: Any, upload: dict[str, str], algorithm: str) -> list[dict[str, object]]:
    field = f"Checksum{algorithm.upper()}"
    sent: list[dict[str, object]] = []
    for number, piece in enumerate(PIECES, 1):
        value = checksum_text(algorithm, [piece])
        answer = client.upload_part(**upload, PartNumber=number, Body=piece, **{field: value})
        sent.append({"PartNumber": number, "ETag": answer["ETag"], field: value})
    return sent


@given(
    algorithm=st.sampled_from(sorted(JOINABLE)),
    pieces=st.lists(st.binary(max_size=300) | st.just(bytes(70_000)), min_size=1, max_size=6),
)
def test_the_checksum_of_joined_bytes_follows_from_those_of_the_pieces(
    algorithm: str, pieces: list[bytes]
) -> None:
    parts = [(checksum_text(algorithm, [piece]), len(piece)) for piece in pieces]
    assert joined_checksum(algorithm, parts) == checksum_text(algorithm, pieces)


@pytest.mark.parametrize(
    ("name", "value"), [("ChecksumSHA256", "A" * 43 + "="), ("ChecksumCRC32", "AAAAAA==")]
)
@pytest.mark.parametrize("sent", [{}, {"ChecksumCRC32C": "4waSgw=="}], ids=["none", "another"])
def test_a_checksum_of_a_part_that_was_not_proved_is_refused(
    url: str, bucket: str, name: str, value: str, sent: dict[str, str]
) -> None:
    client = client_of(url, request_checksum_calculation="when_required")
    upload = begin(client, bucket)
    etag = client.upload_part(**upload, PartNumber=1, Body=b"123456789", **sent)["ETag"]
    part = {"PartNumber": 1, "ETag": etag, **sent}
    order = {"MultipartUpload": {"Parts": [{**part, name: value}]}}
    refused = code_of(client.complete_multipart_upload, **upload, **order)
    assert refused == (400, "InvalidPart")
    complete(client, upload, part)
    client.close()


@pytest.mark.parametrize("algorithm", sorted(JOINABLE))
def test_a_checksum_of_the_whole_object_is_proved_and_kept(
    client: Any, bucket: str, algorithm: str
) -> None:
    field = f"Checksum{algorithm.upper()}"
    announced = {"ChecksumAlgorithm": algorithm.upper(), "ChecksumType": "FULL_OBJECT"}
    upload = begin(client, bucket, **announced)
    parts = send_all(client, upload, algorithm)
    wrong = code_of(
        client.complete_multipart_upload,
        **upload,
        MultipartUpload={"Parts": parts},
        **{field: WRONG},
    )
    assert wrong == (400, "BadDigest")
    assert code_of(client.head_object, Bucket=bucket, Key="k")[0] == 404
    right = checksum_text(algorithm, PIECES)
    done = complete(client, upload, *parts, **{field: right})
    assert (done[field], done["ChecksumType"]) == (right, "FULL_OBJECT")
    head = client.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (head[field], head["ChecksumType"]) == (right, "FULL_OBJECT")
    assert body_of(client, Bucket=bucket, Key="k") == b"".join(PIECES)


# boto3 may not know SHA-512, and then has no parameter for it.
@pytest.mark.parametrize("algorithm", sorted(COMPOSABLE - {"sha512"}))
@pytest.mark.parametrize("counted", [True, False], ids=["with the count", "without"])
def test_a_checksum_of_checksums_is_proved(
    client: Any, bucket: str, algorithm: str, counted: bool
) -> None:
    field = f"Checksum{algorithm.upper()}"
    upload = begin(client, bucket, ChecksumAlgorithm=algorithm.upper())
    parts = send_all(client, upload, algorithm)
    whole = composite_checksum(algorithm, [str(part[field]) for part in parts])
    wrong = code_of(
        client.complete_multipart_upload,
        **upload,
        MultipartUpload={"Parts": parts},
        **{field: f"{WRONG}-3"},
    )
    assert wrong == (400, "BadDigest")
    given_text = whole if counted else whole.partition("-")[0]
    done = complete(client, upload, *parts, **{field: given_text})
    assert done[field] == whole


def test_a_checksum_that_cannot_be_proved_is_refused(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    parts = send_all(client, upload, "crc32c")
    refused = code_of(
        client.complete_multipart_upload,
        **upload,
        MultipartUpload={"Parts": parts},
        ChecksumCRC32=checksum_text("crc32", PIECES),
    )
    assert refused == (400, "InvalidRequest")
    whole = code_of(
        client.create_multipart_upload,
        Bucket=bucket,
        Key="k",
        ChecksumAlgorithm="SHA256",
        ChecksumType="FULL_OBJECT",
    )
    assert whole == (400, "InvalidRequest")


def test_parts_that_are_copied_have_the_checksum_that_was_announced(
    client: Any, bucket: str
) -> None:
    client.put_object(Bucket=bucket, Key="source", Body=PART)
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    answer = client.upload_part_copy(
        **upload, PartNumber=1, CopySource={"Bucket": bucket, "Key": "source"}
    )
    expected = checksum_text("crc32", [PART])
    assert answer["CopyPartResult"]["ChecksumCRC32"] == expected
    part = {"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]}
    assert complete(client, upload, part, ChecksumCRC32=expected)["ChecksumCRC32"] == expected


def test_an_object_of_another_size_than_announced_is_not_made(client: Any, bucket: str) -> None:
    upload = begin(client, bucket, ChecksumAlgorithm="CRC32")
    parts = send_all(client, upload, "crc32")
    size = sum(len(piece) for piece in PIECES)
    named = {**upload, "MultipartUpload": {"Parts": parts}}
    for wrong in (size - 1, size + 1):
        refused = code_of(client.complete_multipart_upload, **named, MpuObjectSize=wrong)
        assert refused == (400, "InvalidRequest")
    client.complete_multipart_upload(**named, MpuObjectSize=size)
    assert client.head_object(Bucket=bucket, Key="k")["ContentLength"] == size


def test_boto3_uploads_a_file_whose_checksum_is_known(
    client: Any, bucket: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"".join(PIECES))
    client.upload_file(
        str(source),
        bucket,
        "file",
        ExtraArgs={"ChecksumCRC32": checksum_text("crc32", PIECES)},
        Config=TransferConfig(multipart_threshold=len(PART), multipart_chunksize=len(PART)),
    )
    assert body_of(client, Bucket=bucket, Key="file") == source.read_bytes()
