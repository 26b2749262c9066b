"""S3ObjectStore: the objects of a container's Tier 2 in a bucket.

start() first, close() last, after every other call has ended.

Invariants:

- A conditional put is sent once per call; "precondition failed" and a lost answer both leave its outcome unknown, and
  the caller reads back. The client library's own repetitions are off.
- An immutable object is put with "if none match", so that a key never takes other bytes; its repetition is
  recognised by comparing the bytes.
- Bodies carry a CRC32C that the server checks, so that they need not be hashed for the signature.
- No request is sent unless a verb needs it: an idle store costs nothing.
- Reads may go by obstore, if the settings say so; puts never do.
- A client that others have followed is closed with the last of its requests: there are no more clients than requests
  under way, and one, however often credentials are others.
"""

import asyncio
import functools
import math
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from random import Random
from typing import Any, TypedDict, TypeVar

import aioboto3
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.loaders import Loader
from crc32c import crc32c

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.runtime.clock import SystemWallClock
from tier2.conditional_puts import require_compare_and_set
from tier2.object_stores.object_key import check_key, check_prefix, check_range
from tier2.object_stores.s3.requests import (
    ConditionFailedError,
    OneAttemptSession,
    RequestSender,
    RequestStatistics,
)
from tier2.object_stores.s3.settings import PARTS_MAX, S3Settings

_PROBE_KEY = "probe"
_RACERS = 8
_PARTIAL_CONTENT = 206
_SUMMED_ON_LOOP_BYTES_MAX = 64 << 10
"""Smaller bodies are put together faster than a thread is reached."""
_OBSTORE_CREDENTIAL_LIFE = timedelta(minutes=5)
_OBSTORE_CODE = re.compile(r"<Code>(\w+)</Code>")
_OBSTORE_STATUS = re.compile(r"\b([345]\d\d) [A-Z]")
_RANGE_REFUSED_STATUS = 416
_Answer = TypeVar("_Answer")


class S3Client:
    """A client of the library, the credentials that it was made with, and how many requests it has under way."""

    def __init__(
        self,
        client: Any,  # the client library makes its classes at run time
        stack: AsyncExitStack,
        credentials: object,
    ) -> None:
        """`stack` closes the client."""
        self.client = client
        self.credentials = credentials
        self.requests = 0
        self._stack = stack

    async def close(self) -> None:
        """Idempotent."""
        await self._stack.aclose()


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
        self._sender = RequestSender(settings=settings, random=random, renew=self._renew)
        self._client: S3Client | None = None
        self._former: list[S3Client] = []
        """Those that still have requests."""
        self._renewing = asyncio.Lock()
        self._renewed_at = -math.inf
        """Loop time at which a client was last made because credentials were others."""
        self._reads: RustReads | None = None
        self._creation = _creation_parameters(settings)

    @property
    def statistics(self) -> RequestStatistics:
        return self._sender.statistics

    async def start(self) -> int:
        """Connect, and prove that conditional puts work. Raises StorageError, InvalidRequestError."""
        assert self._client is None, "the store is started already"
        session = _new_session()
        await self._connect(session, None)
        try:
            prefix = f"{_PROBE_KEY}/{self._random.randbytes(12).hex()}"
            for number in range(self._settings.startup_race_rounds):
                await self._probe(f"{prefix}-{number}")
        except BaseException:
            await self.close()
            raise
        return 0

    async def _probe(self, key: str) -> None:
        try:
            await require_compare_and_set(self, key, racers=_RACERS)
        finally:
            await self.delete(key)

    async def _connect(self, session: aioboto3.Session, credentials: object) -> None:
        settings = self._settings
        if settings.rust_reads:
            self._reads = RustReads(settings=settings, session=session)
        stack = AsyncExitStack()
        client = await stack.enter_async_context(
            session.client(
                "s3",
                region_name=settings.region,
                endpoint_url=settings.endpoint_url or None,
                config=_client_config(settings),
            )
        )
        former, self._client = self._client, S3Client(client, stack, credentials)
        if former is not None:
            self._former.append(former)
            await self._close_if_idle(former)

    async def _renew(self) -> None:
        """Go on with the credentials that are to be found now, if they are others: a person has put them there.

        The client library looks for them once. The former client stays open for what is under way with it. To make one
        keeps the loop for some 0.1 s, and a role gives others to each that asks: so there is a time between two.
        """
        now = asyncio.get_running_loop().time
        async with self._renewing:
            if now() < self._renewed_at + self._settings.renewal_seconds_min:
                return
            session = _new_session()
            found = await session.get_credentials()
            credentials = None if found is None else await found.get_frozen_credentials()
            client = self._client
            if credentials is None or client is None or credentials == client.credentials:
                return
            if client.credentials is not None:  # else those that it began with were not looked at
                self._renewed_at = now()
            await self._connect(session, credentials)

    async def close(self) -> None:
        """Idempotent."""
        clients, self._client, self._former = [self._client, *self._former], None, []
        for client in clients:
            if client is not None:
                await client.close()

    async def _close_if_idle(self, former: S3Client) -> None:
        if not former.requests:
            await former.close()
            with suppress(ValueError):
                self._former.remove(former)

    async def _by_client(self, call: Callable[[Any], Awaitable[_Answer]]) -> _Answer:
        """What `call` makes of the client that is the newest now; it is not closed before the end of the call."""
        used = self._client
        assert used is not None, "the store is not started, or closed"
        used.requests += 1
        try:
            return await call(used.client)
        finally:
            used.requests -= 1
            if used is not self._client:
                await self._close_if_idle(used)

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
                await self._sender.repeatable("put_object", key, request)
                self._sender.statistics.sent_bytes += size
        except (ConditionFailedError, ObjectNotFoundError) as error:
            await self._require_same(key, b"".join(content), error)

    async def _summed(self, content: Sequence[BufferView], size: int) -> tuple[bytes, str]:
        if size <= _SUMMED_ON_LOOP_BYTES_MAX:
            return summed(content)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, summed, content)

    async def _put_parts(self, key: str, content: Sequence[BufferView], size: int) -> None:
        upload = MultipartUpload(
            by_client=self._by_client,
            sender=self._sender,
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
        body, checksum = await self._summed([body], len(body))
        request = self._put_request(key, body, checksum, **condition)
        answer = await self._sender.once("put_object", key, request)
        self._sender.statistics.sent_bytes += len(body)
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
        return lambda: self._by_client(lambda client: client.put_object(**parameters))

    # --- reading ---------------------------------------------------------------------------------

    async def get(self, key: str) -> VersionedObject:
        check_key(key)

        async def request() -> VersionedObject:
            if self._reads is not None:
                return await self._reads.get(self._full_key(key))
            return await self._by_client(get_by)

        async def get_by(client: Any) -> VersionedObject:
            answer = await client.get_object(**self._address(key))
            async with answer["Body"] as stream:
                content = await stream.read()
            return VersionedObject(content=content, tag=_tag_of(answer, key))

        found = await self._sender.repeatable("get_object", key, request)
        self._sender.statistics.received_bytes += len(found.content)
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
            return await self._by_client(get_by)

        async def get_by(client: Any) -> bytes:
            try:
                answer = await client.get_object(
                    **self._address(key), Range=f"bytes={start}-{start + length - 1}"
                )
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("InvalidRange", "416"):
                    return b""
                raise
            async with answer["Body"] as stream:
                content: bytes = await stream.read()
            if answer["ResponseMetadata"]["HTTPStatusCode"] != _PARTIAL_CONTENT:
                # The range was not heeded: this is the whole object, and not its part from `start` on.
                return content[start : start + length]
            return content

        content = await self._sender.repeatable("get_object", key, request)
        self._sender.statistics.received_bytes += len(content)
        if len(content) > length:
            raise StorageError(
                f"s3 sent more than was asked for key={key} start={start} length={length} got={len(content)}"
            )
        return content

    async def size(self, key: str) -> int:
        check_key(key)
        answer = await self._sender.repeatable(
            "head_object",
            key,
            lambda: self._by_client(lambda client: client.head_object(**self._address(key))),
        )
        return int(answer["ContentLength"])

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._sender.repeatable(
            "delete_object",
            key,
            lambda: self._by_client(lambda client: client.delete_object(**self._address(key))),
        )

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        cut = len(self._full_key(""))
        parameters = {"Bucket": self._settings.bucket, "Prefix": self._full_key(prefix)}
        while True:
            page = await self._sender.repeatable(
                "list_objects_v2",
                prefix,
                lambda: self._by_client(lambda client: client.list_objects_v2(**parameters)),
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


def _new_session() -> aioboto3.Session:
    """It looks for credentials anew. The descriptions of AWS's services, megabytes to be parsed, are read once."""
    session = get_session()
    session.register_component("data_loader", _service_descriptions())
    return aioboto3.Session(botocore_session=session)


@functools.cache
def _service_descriptions() -> Loader:
    return get_session().get_component("data_loader")


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
    """Raises StorageUnavailableError: of a put, it is not known then what became of it."""
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


def checksum_text(body: bytes | memoryview) -> str:
    """The CRC32C as the protocol writes it: big-endian, base64."""
    return b64encode(crc32c(body).to_bytes(4, "big")).decode()


def summed(content: Sequence[BufferView]) -> tuple[bytes, str]:
    """One body of all, as the client library wants it, and its checksum. Blocking: two passes over the bytes."""
    body = b"".join(content)
    return body, checksum_text(body)


class MultipartUpload:
    """A large object in parts under one key: sent side by side, each guarded by its CRC32C, visible at once at the end.

    - Nothing is visible before `complete`; a failed upload is aborted, so that its parts are not billed for ever. An
      upload whose process died is left to the bucket's lifecycle rule (AbortIncompleteMultipartUpload).
    - At most `parts_in_flight_max` parts are under way, so memory beside the caller's buffers is bounded. A part is
      made from them in a thread, once, when it is its turn: the loop that sends them does nothing else.
    - `complete` may be answered "no such upload" for its own earlier success: the caller compares the object then.
    """

    def __init__(
        self,
        *,
        by_client: Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]],
        sender: RequestSender,
        settings: S3Settings,
        key: str,
        creation: dict[str, str],
        executor: Executor | None,
    ) -> None:
        """`by_client`: makes one call of the client library. `creation`: storage class and encryption, as parameters of
        the request."""
        self._by_client = by_client
        self._sender = sender
        self._settings = settings
        self._address = {"Bucket": settings.bucket, "Key": key}
        self._key = key
        self._creation = creation
        self._executor = executor

    async def run(self, content: Sequence[BufferView], size: int) -> None:
        """Upload and complete. Raises ConditionFailedError if the key is taken, ObjectNotFoundError if the upload is
        gone (perhaps completed by an earlier attempt), StorageError."""
        created = await self._sender.repeatable(
            "create_multipart_upload",
            self._key,
            lambda: self._by_client(
                lambda client: client.create_multipart_upload(
                    **self._address, **self._creation, ChecksumAlgorithm="CRC32C"
                )
            ),
        )
        upload = {**self._address, "UploadId": str(created["UploadId"])}
        try:
            parts = await self._send_parts(upload, content, size)
            await self._sender.repeatable(
                "complete_multipart_upload",
                self._key,
                lambda: self._by_client(
                    lambda client: client.complete_multipart_upload(
                        **upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
                    )
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
                answer = await self._sender.repeatable(
                    "upload_part",
                    self._key,
                    lambda: self._by_client(
                        lambda client: client.upload_part(
                            **upload, PartNumber=number, Body=part, ChecksumCRC32C=checksum
                        )
                    ),
                )
            self._sender.statistics.sent_bytes += len(part)
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": checksum}

        try:
            async with asyncio.TaskGroup() as tasks:
                sending = [
                    tasks.create_task(send(number, buffers))
                    for number, buffers in enumerate(cut_into_parts(content, part_bytes), start=1)
                ]
        except BaseExceptionGroup as group:
            raise _first_error_of(group) from None
        return [task.result() for task in sending]

    async def _abort(self, upload: dict[str, str]) -> None:
        try:
            await self._sender.repeatable(
                "abort_multipart_upload",
                self._key,
                lambda: self._by_client(lambda client: client.abort_multipart_upload(**upload)),
            )
        except SegmentStoreError:
            return  # the lifecycle rule of the bucket is the second broom; the first error is what matters


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


def _first_error_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class _ObstoreCredential(TypedDict):
    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


class RustReads:
    """Get and ranged get by obstore, a client in Rust: a setting, since a small read takes a tenth of the time and CPU.

    Only reads: they have no outcome that could be in doubt. Every put goes by the other client, whose answers to
    conditional requests are what the commit rests on.

    - It repeats nothing by itself, and every attempt is counted, as with the other client (RequestSender).
    - It raises the errors of the other client, so that there is one place that says what they mean (classify()).
    - Credentials are those that the other client found; they are asked for again before they are five minutes old.
    """

    def __init__(self, *, settings: S3Settings, session: aioboto3.Session) -> None:
        """Raises InvalidRequestError if obstore is not installed."""
        try:
            # Optional: its types are not known where it is not installed.
            self._obstore: Any = import_module("obstore")
            stores: Any = import_module("obstore.store")
            errors: Any = import_module("obstore.exceptions")
        except ImportError as error:
            raise InvalidRequestError(
                "reads by obstore need the package obstore: pip install obstore"
            ) from error
        self._session = session
        self._refusals: tuple[type[Exception], ...] = (
            FileNotFoundError,
            ValueError,
            errors.BaseError,
        )
        self._denials: tuple[type[Exception], ...] = (
            errors.PermissionDeniedError,
            errors.UnauthenticatedError,
        )
        endpoint = settings.endpoint_url
        seconds = timedelta(seconds=settings.read_seconds_max)
        self._store: Any = stores.S3Store(
            settings.bucket,
            region=settings.region,
            endpoint=endpoint or None,
            virtual_hosted_style_request=not endpoint,
            credential_provider=self._credential,
            retry_config={"max_retries": 0},
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=settings.connect_seconds_max),
                "timeout": seconds,
            },
        )

    async def get(self, key: str) -> VersionedObject:
        """The whole object."""
        try:
            answer = await self._obstore.get_async(self._store, key)
            content = bytes(await answer.bytes_async())
        except self._refusals as error:
            raise self._translated(error) from error
        return VersionedObject(content=content, tag=str(answer.meta["e_tag"]))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """The bytes [start, start + length), or fewer at the end."""
        options = {"range": (start, start + length)}
        try:
            answer = await self._obstore.get_async(self._store, key, options=options)
            return bytes(await answer.bytes_async())
        except self._refusals as error:
            translated = self._translated(error)
            if _is_behind_the_end(translated):
                return b""
            raise translated from error

    async def _credential(self) -> _ObstoreCredential:
        credentials = await self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        frozen = await credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # The client compares it with the system's clock, whatever clock we run on.
            "expires_at": _instant(SystemWallClock().now_ms()) + _OBSTORE_CREDENTIAL_LIFE,
        }

    def _translated(self, error: Exception) -> Exception:
        """What the other client would have raised: the code of the answer, or a broken connection."""
        text = str(error)
        if isinstance(error, FileNotFoundError):
            return _client_error("NoSuchBucket" if "NoSuchBucket" in text else "NoSuchKey", 404, "")
        code, status = _OBSTORE_CODE.search(text), _OBSTORE_STATUS.search(text)
        if code is not None:
            return _client_error(code[1], int(status[1]) if status else 0, text)
        if isinstance(error, self._denials):
            return _client_error("AccessDenied", 403, text)
        if status is not None:
            return _client_error(status[1], int(status[1]), text)
        if "NoCredentialsError" in text:
            missing: Exception = NoCredentialsError()
            return missing
        return ConnectionError(text)


def _instant(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)


def _client_error(code: str, status: int, text: str) -> Exception:
    error: Exception = ClientError(
        {
            "Error": {"Code": code, "Message": text[:500]},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "GetObject",
    )
    return error


def _is_behind_the_end(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return False
    code = error.response["Error"]["Code"]
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return bool(code == "InvalidRange" or status == _RANGE_REFUSED_STATUS)
