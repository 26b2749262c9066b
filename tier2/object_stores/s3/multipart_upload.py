"""A large object in parts: sent side by side, each guarded by its CRC32C, visible all at once at the end.

Invariants:

- Nothing is visible before `complete`; a failed upload is aborted, so that its parts are not billed for ever. An upload
  whose process died is left to the bucket's lifecycle rule (AbortIncompleteMultipartUpload).
- At most `parts_in_flight_max` parts are under way, so memory beside the caller's buffers is bounded. A part is made
  from them in a thread, once, when it is its turn: the loop that sends them does nothing else.
- `complete` may be answered "no such upload" for its own earlier success: the caller compares the object then.
"""

import asyncio
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

from crc32c import crc32c

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import BufferView
from tier2.object_stores.s3.request_line import RequestLine
from tier2.object_stores.s3.settings import PARTS_MAX, S3Settings


def checksum_text(body: bytes | memoryview) -> str:
    """The CRC32C as the protocol writes it: big-endian, base64."""
    return b64encode(crc32c(body).to_bytes(4, "big")).decode()


def summed(content: Sequence[BufferView]) -> tuple[bytes, str]:
    """One body of all, as the client library wants it, and its checksum. Blocking: two passes over the bytes."""
    body = b"".join(content)
    return body, checksum_text(body)


def cut_into_parts(content: Sequence[BufferView], part_bytes: int) -> Iterator[list[BufferView]]:
    """The same bytes, uncopied, by `part_bytes`; the last part may be shorter."""
    part: list[BufferView] = []
    room = part_bytes
    for buffer in content:
        view = memoryview(buffer)
        while len(view) >= room:
            yield [*part, view[:room]]
            part, view, room = [], view[room:], part_bytes
        if view:
            part.append(view)
            room -= len(view)
    if part:
        yield part


class MultipartUpload:
    """One upload under one key."""

    def __init__(
        self,
        *,
        client: Any,  # the client library makes its classes at run time
        line: RequestLine,
        settings: S3Settings,
        key: str,
        creation: dict[str, str],
        executor: Executor | None,
    ) -> None:
        """`creation`: storage class and encryption, as parameters of the request."""
        self._client = client
        self._line = line
        self._settings = settings
        self._address = {"Bucket": settings.bucket, "Key": key}
        self._key = key
        self._creation = creation
        self._executor = executor

    async def run(self, content: Sequence[BufferView], size: int) -> None:
        """Upload and complete. Raises ConditionFailedError if the key is taken, ObjectNotFoundError if the upload is
        gone (perhaps completed by an earlier attempt), StorageError."""
        created = await self._line.repeatable(
            "create_multipart_upload",
            self._key,
            lambda: self._client.create_multipart_upload(
                **self._address, **self._creation, ChecksumAlgorithm="CRC32C"
            ),
        )
        upload = {**self._address, "UploadId": str(created["UploadId"])}
        try:
            parts = await self._send_parts(upload, content, size)
            await self._line.repeatable(
                "complete_multipart_upload",
                self._key,
                lambda: self._client.complete_multipart_upload(
                    **upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
                ),
            )
        except BaseException:
            await asyncio.shield(self._abort(upload))
            raise

    async def _send_parts(
        self, upload: dict[str, str], content: Sequence[BufferView], size: int
    ) -> list[dict[str, object]]:
        part_bytes = max(self._settings.part_bytes, -(-size // PARTS_MAX))
        places = asyncio.Semaphore(self._settings.parts_in_flight_max)
        loop = asyncio.get_running_loop()

        async def send(number: int, buffers: Sequence[BufferView]) -> dict[str, object]:
            async with places:
                part, checksum = await loop.run_in_executor(self._executor, summed, buffers)
                answer = await self._line.repeatable(
                    "upload_part",
                    self._key,
                    lambda: self._client.upload_part(
                        **upload, PartNumber=number, Body=part, ChecksumCRC32C=checksum
                    ),
                )
            self._line.statistics.sent_bytes += len(part)
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": checksum}

        try:
            async with asyncio.TaskGroup() as tasks:
                sending = [
                    tasks.create_task(send(number, buffers))
                    for number, buffers in enumerate(cut_into_parts(content, part_bytes), start=1)
                ]
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return [task.result() for task in sending]

    async def _abort(self, upload: dict[str, str]) -> None:
        try:
            await self._line.repeatable(
                "abort_multipart_upload",
                self._key,
                lambda: self._client.abort_multipart_upload(**upload),
            )
        except SegmentStoreError:
            return  # the lifecycle rule of the bucket is the second broom; the first error is what matters


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
