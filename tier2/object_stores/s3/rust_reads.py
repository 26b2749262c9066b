"""Reads by obstore, a client in Rust: a setting, since a small read takes a tenth of the time and of the CPU.

Only reads: they have no outcome that could be in doubt. Every put goes by the other client, whose answers to
conditional requests are what the commit rests on (H4).

Invariants:

- It repeats nothing by itself, and every attempt is counted, as with the other client (request_line).
- Its errors become those of the other client, so that there is one place that says what they mean (failures).
- Credentials are those that the other client found; they are asked for again before they are five minutes old.
"""

import re
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, TypedDict

import aioboto3
from botocore.exceptions import ClientError, NoCredentialsError

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.object_store import VersionedObject
from segmentstore.runtime.clock import SystemWallClock
from tier2.object_stores.s3.settings import S3Settings

_CREDENTIALS_LIFE = timedelta(minutes=5)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"\b([345]\d\d) [A-Z]")
_RANGE_REFUSED = 416


class _Credential(TypedDict):
    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


class RustReads:
    """Get and ranged get of one bucket. Raises what the other client raises."""

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

    async def _credential(self) -> _Credential:
        credentials = await self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        frozen = await credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            # The client compares it with the system's clock, whatever clock we run on.
            "expires_at": _instant(SystemWallClock().now_ms()) + _CREDENTIALS_LIFE,
        }

    def _translated(self, error: Exception) -> Exception:
        """What the other client would have raised: the code of the answer, or a broken connection."""
        text = str(error)
        if isinstance(error, FileNotFoundError):
            return _client_error("NoSuchBucket" if "NoSuchBucket" in text else "NoSuchKey", 404, "")
        code, status = _CODE.search(text), _STATUS.search(text)
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
    return bool(code == "InvalidRange" or status == _RANGE_REFUSED)
