"""S3ObjectStore: the objects of a container's Tier 2 in a bucket.

Invariants:

- A conditional put is sent once per call; "precondition failed" and a lost answer both leave its outcome unknown, and
  the caller reads back (H4). The client library's own repetitions are off.
- An immutable object is put with "if none match", so that a key never takes other bytes (H2); its repetition is
  recognised by comparing the bytes.
- Bodies carry a CRC32C that the server checks, so that they need not be hashed for the signature.
- No request is sent unless a verb needs it: an idle store costs nothing.

start() first, close() last, after every other call has ended.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig

from segmentstore.contracts.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from tier2.object_stores.object_key import check_key, check_prefix, check_range
from tier2.object_stores.s3.multipart_upload import MultipartUpload, summed
from tier2.object_stores.s3.one_attempt_session import OneAttemptSession
from tier2.object_stores.s3.request_line import ConditionFailedError, RequestLine
from tier2.object_stores.s3.request_statistics import RequestStatistics
from tier2.object_stores.s3.rust_reads import RustReads
from tier2.object_stores.s3.settings import S3Settings
from tier2.object_stores.s3.startup_race import require_compare_and_set

_PROBE_KEY = "probe"
_PARTIAL_CONTENT = 206
_SUMMED_ON_LOOP_BYTES_MAX = 64 << 10
"""Smaller bodies are put together faster than a thread is reached."""


class S3ObjectStore:
    """An ObjectStore over one bucket; one object serves all containers of a process."""

    def __init__(
        self, *, settings: S3Settings, random: Random, executor: Executor | None = None
    ) -> None:
        """`random` names the keys of the start-up race and spreads repetitions: system_random() in production.

        `executor`: threads in which large bodies are put together and summed; None: those of the loop.
        """
        self._settings = settings
        self._executor = executor
        self._random = random
        self._line = RequestLine(settings=settings, random=random, renew=self._renew)
        self._stack = AsyncExitStack()
        self._client: Any = None  # the client library makes its classes at run time
        self._credentials: object = None
        """Those that the client was made with."""
        self._reads: RustReads | None = None
        self._creation = _creation_parameters(settings)

    @property
    def statistics(self) -> RequestStatistics:
        return self._line.statistics

    async def start(self) -> int:
        """Connect, and prove that conditional puts work. Raises StorageError, InvalidRequestError."""
        assert self._client is None, "the store is started already"
        session = aioboto3.Session()
        await self._connect(session, None)
        try:
            await require_compare_and_set(
                self,
                f"{_PROBE_KEY}/{self._random.randbytes(12).hex()}",
                rounds=self._settings.startup_race_rounds,
            )
        except BaseException:
            await self.close()
            raise
        return 0

    async def _connect(self, session: aioboto3.Session, credentials: object) -> None:
        settings = self._settings
        if settings.rust_reads:
            self._reads = RustReads(settings=settings, session=session)
        self._client = await self._stack.enter_async_context(
            session.client(
                "s3",
                region_name=settings.region,
                endpoint_url=settings.endpoint_url or None,
                config=_client_config(settings),
            )
        )
        self._credentials = credentials

    async def _renew(self) -> None:
        """Go on with the credentials that are to be found now, if they are others: a person has put them there.

        The client library looks for them once. The former client stays open for what is under way with it.
        """
        session = aioboto3.Session()
        found = await session.get_credentials()
        credentials = None if found is None else await found.get_frozen_credentials()
        if credentials is not None and credentials != self._credentials:
            await self._connect(session, credentials)

    async def close(self) -> None:
        """Idempotent."""
        if self._client is not None:
            self._client = None
            await self._stack.aclose()

    # --- puts ------------------------------------------------------------------------------------

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        size = sum(len(buffer) for buffer in content)
        try:
            if size >= self._settings.multipart_bytes_min:
                await self._put_parts(key, content, size)
            else:
                body, checksum = await self._summed(content, size)
                request = self._put_request(key, body, checksum, IfNoneMatch="*")
                await self._line.repeatable("put_object", key, request)
                self._line.statistics.sent_bytes += size
        except (ConditionFailedError, ObjectNotFoundError) as error:
            await self._require_same(key, b"".join(content), error)

    async def _summed(self, content: Sequence[BufferView], size: int) -> tuple[bytes, str]:
        if size <= _SUMMED_ON_LOOP_BYTES_MAX:
            return summed(content)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, summed, content)

    async def _put_parts(self, key: str, content: Sequence[BufferView], size: int) -> None:
        upload = MultipartUpload(
            client=self._client,
            line=self._line,
            settings=self._settings,
            key=self._full_key(key),
            creation=self._creation,
            executor=self._executor,
        )
        await upload.run(content, size)

    async def _require_same(self, key: str, body: bytes, cause: Exception) -> None:
        """The key is taken: fine if by these bytes, as an earlier attempt would have left it."""
        try:
            found = await self.get(key)
        except ObjectNotFoundError:
            raise StorageUnavailableError(
                f"s3: the outcome of a put is unknown key={key}", state="unavailable"
            ) from cause
        if found.content != body:
            raise ObjectExistsError(f"the key holds other bytes key={key}") from cause

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        try:
            return await self._put_once(key, bytes(content), IfNoneMatch="*")
        except ConditionFailedError as error:
            raise ObjectExistsError(f"object exists already key={key}") from error

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        try:
            return await self._put_once(key, bytes(content), IfMatch=tag)
        except (ConditionFailedError, ObjectNotFoundError) as error:
            raise ObjectChangedError(f"object has another version {key=!s} {tag=!s}") from error

    async def _put_once(self, key: str, body: bytes, **condition: str) -> str:
        body, checksum = summed([body])
        request = self._put_request(key, body, checksum, **condition)
        answer = await self._line.once("put_object", key, request)
        self._line.statistics.sent_bytes += len(body)
        return _tag_of(answer, key)

    def _put_request(
        self, key: str, body: bytes, checksum: str, **condition: str
    ) -> "Callable[[], Awaitable[Any]]":
        parameters = {
            "Bucket": self._settings.bucket,
            "Key": self._full_key(key),
            "Body": body,
            "ChecksumCRC32C": checksum,
            **self._creation,
            **condition,
        }
        return lambda: self._client.put_object(**parameters)

    # --- reading ---------------------------------------------------------------------------------

    async def get(self, key: str) -> VersionedObject:
        check_key(key)

        async def request() -> VersionedObject:
            if self._reads is not None:
                return await self._reads.get(self._full_key(key))
            answer = await self._client.get_object(**self._address(key))
            async with answer["Body"] as stream:
                content = await stream.read()
            return VersionedObject(content=content, tag=_tag_of(answer, key))

        found = await self._line.repeatable("get_object", key, request)
        self._line.statistics.received_bytes += len(found.content)
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        if length == 0:
            await self.size(key)
            return b""

        async def request() -> bytes:
            if self._reads is not None:
                return await self._reads.get_range(self._full_key(key), start, length)
            try:
                answer = await self._client.get_object(
                    **self._address(key), Range=f"bytes={start}-{start + length - 1}"
                )
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("InvalidRange", "416"):
                    return b""
                raise
            async with answer["Body"] as stream:
                content: bytes = await stream.read()
            if answer["ResponseMetadata"]["HTTPStatusCode"] != _PARTIAL_CONTENT:
                # The range was not heeded: this is the whole object, and not its part from `start` on.
                return content[start : start + length]
            return content

        content = await self._line.repeatable("get_object", key, request)
        self._line.statistics.received_bytes += len(content)
        if len(content) > length:
            raise StorageError(
                f"s3 sent more than was asked for key={key} start={start} length={length} got={len(content)}"
            )
        return content

    async def size(self, key: str) -> int:
        check_key(key)
        answer = await self._line.repeatable(
            "head_object", key, lambda: self._client.head_object(**self._address(key))
        )
        return int(answer["ContentLength"])

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._line.repeatable(
            "delete_object", key, lambda: self._client.delete_object(**self._address(key))
        )

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        cut = len(self._full_key(""))
        parameters = {"Bucket": self._settings.bucket, "Prefix": self._full_key(prefix)}
        while True:
            page = await self._line.repeatable(
                "list_objects_v2", prefix, lambda: self._client.list_objects_v2(**parameters)
            )
            for item in page.get("Contents", ()):
                yield ObjectInfo(key=str(item["Key"])[cut:], size=int(item["Size"]))
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = str(page["NextContinuationToken"])

    def _full_key(self, key: str) -> str:
        return f"{self._settings.prefix}/{key}" if self._settings.prefix else key

    def _address(self, key: str) -> dict[str, str]:
        return {"Bucket": self._settings.bucket, "Key": self._full_key(key)}


def _client_config(settings: S3Settings) -> AioConfig:
    return AioConfig(
        retries={"total_max_attempts": 1},
        connect_timeout=settings.connect_seconds_max,
        read_timeout=settings.read_seconds_max,
        max_pool_connections=settings.requests_max,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "path" if settings.endpoint_url else "auto",
            "payload_signing_enabled": settings.sign_payload,
        },
        tcp_keepalive=True,
        http_session_cls=OneAttemptSession,
    )


def _tag_of(answer: Any, key: str) -> str:
    """Raises StorageUnavailableError: of a put, it is not known then what became of it (H4)."""
    tag = answer.get("ETag")
    if not tag:
        raise StorageUnavailableError(
            f"s3 answered without an ETag: is that an S3 server? key={key}", state="unavailable"
        )
    return str(tag)


def _creation_parameters(settings: S3Settings) -> dict[str, str]:
    given = {
        "StorageClass": settings.storage_class,
        "ServerSideEncryption": settings.server_side_encryption,
        "SSEKMSKeyId": settings.kms_key_id,
    }
    return {name: value for name, value in given.items() if value}
