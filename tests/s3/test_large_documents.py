"""Goal: a large document holds up no other request.

Method: an endpoint in this loop. What Python calls in the loop's own thread between two of its steps is counted.
"""

import asyncio
import sys
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from botocore.exceptions import ClientError

from segmentstore.s3.errors import S3Error
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import parse
from tests.s3.conftest import client_of, endpoint
from tests.s3.test_multipart import begin, complete, send
from tier2.volumes.multipart import MultipartUploads, Part, Upload

pytestmark = pytest.mark.integration

SETTINGS = EndpointSettings(port=0, part_bytes_min=1)
PARTS = [{"PartNumber": number, "ETag": f'"{number:032x}"'} for number in range(1, 10_001)]


class Calls:
    """Of functions, by this thread."""

    def __init__(self) -> None:
        self.in_this_step = 0
        self.most_in_a_step = 0

    def count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event in {"call", "c_call"}:
            self.in_this_step = 0 if frame.f_code is Handle._run.__code__ else self.in_this_step + 1
            self.most_in_a_step = max(self.most_in_a_step, self.in_this_step)


@contextmanager
def counted_calls() -> Iterator[Calls]:
    calls = Calls()
    sys.setprofile(calls.count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def refusal_of(call: Any) -> tuple[str, int]:
    """Its code; and how many calls the loop made in one step, at most."""
    with counted_calls() as calls:
        try:
            await asyncio.to_thread(call)
        except ClientError as error:
            return error.response["Error"]["Code"], calls.most_in_a_step
    raise AssertionError("it was not refused")


@pytest.mark.slow
async def test_a_completion_of_ten_thousand_parts_is_looked_at_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Upload] = []
    get = MultipartUploads.get

    def kept(self: MultipartUploads, upload_id: str) -> Upload:
        found.append(get(self, upload_id))
        return found[-1]

    monkeypatch.setattr(MultipartUploads, "get", kept)
    async with endpoint(tmp_path, SETTINGS) as url:
        client = client_of(url)
        await asyncio.to_thread(client.create_bucket, Bucket="bucket")
        upload = await asyncio.to_thread(begin, client, "bucket")
        part = await asyncio.to_thread(send, client, upload, 1, b"x")
        # All but the last are there, as far as one can see.
        known = found[-1].parts
        (real,) = known.values()
        known |= {number: Part(number, 1, f"{number:032x}", 0, 0) for number in range(1, 10_000)}
        code, most = await refusal_of(partial(complete, client, upload, *PARTS))
        assert (code, most < 10_000) == ("InvalidPart", True), most
        known.clear()
        known[1] = real
        await asyncio.to_thread(complete, client, upload, part)
        code, most = await refusal_of(partial(complete, client, upload, *PARTS))
        assert (code, most < 10_000) == ("InvalidPart", True), most
        client.close()


@pytest.mark.parametrize("attribute", [' a%d=""', ' xmlns:a%d="u"', " a%d='>'"])
def test_a_tag_of_very_many_attributes_is_refused(attribute: str) -> None:
    """They are one call of the parser, in which no other thread runs."""
    text = "<A" + "".join(attribute % number for number in range(20_000)) + "/>"
    with pytest.raises(S3Error, match="too long") as refused:
        parse(text.encode(), "A")
    assert refused.value.code == "MalformedXML"


@pytest.mark.parametrize("length", [1, 65_535, 65_536, 65_537, 200_000])
def test_text_may_be_long(length: int) -> None:
    text = "é" * length
    assert parse(f"<A><B>{text}</B></A>".encode(), "A").text_of("B") == text
