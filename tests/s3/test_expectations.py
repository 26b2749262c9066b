"""`Expect: 100-continue`: what was refused without asking for the body ends its connection.

Some clients (botocore) keep the status of a final answer that comes in the place of 100 for the next answer on the
connection, and wait for ever for that one.
"""

import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.s3.conftest import client_of
from tests.s3.raw_request import signed_headers
from tests.s3.test_objects import body_of, code_of

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("body", [b"", b"x"], ids=["empty", "one byte"])
def test_a_client_that_was_refused_before_it_sent_goes_on(
    url: str, bucket: str, body: bytes
) -> None:
    client = client_of(url, read_timeout=60)
    refused = code_of(client.put_object, Bucket="no-such-bucket", Key="k", Body=body)
    assert refused == (404, "NoSuchBucket")
    client.put_object(Bucket=bucket, Key="k", Body=b"next")
    assert body_of(client, Bucket=bucket, Key="k") == b"next"
    client.close()


@pytest.mark.parametrize(
    ("bucket_there", "status", "closes"), [(False, 404, True), (True, 200, False)]
)
def test_a_connection_lives_on_only_if_the_body_was_asked_for(
    client: Any, url: str, bucket: str, bucket_there: bool, status: int, closes: bool
) -> None:
    target = f"{url}/{bucket if bucket_there else 'no-such-bucket'}/k"
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    headers = {**signed_headers("PUT", target), "Expect": "100-continue", "Content-Length": "0"}
    connection.request("PUT", urlsplit(target).path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    assert (answer.status, answer.getheader("Connection") == "close") == (status, closes)
    connection.close()
