"""One handler for every request: its signature first, then what it asks for, then what every answer has in common.

What a request asks for is told by its method, by whether it names a bucket and a key, and by its sub-resource: a
parameter of the query that changes what the request is about (`?versioning`). `routes` is the table of the endpoint.

Invariants:

- Sub-resources that S3 has and this endpoint has not are refused, so that none is taken for the request without it;
  but where a client asks what nothing here can have, it is told so (`absent_configurations.py`).
- Whatever goes wrong has an answer in S3's form.
- A request whose body was left unread is answered with the end of its connection, so that bytes of a body are never
  taken for the next request. So is one whose client waits for `100 Continue` and gets its answer instead, even if it
  has no body: there are clients (botocore) that wait for ever for the next answer on such a connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from random import Random

from aiohttp import web

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.s3.absent_configurations import (
    ASKED_OF_BUCKETS,
    ASKED_OF_OBJECTS,
    REMOVED_FROM_BUCKETS,
    REMOVED_FROM_OBJECTS,
    AbsentConfigurationHandlers,
)
from segmentstore.s3.authentication import Authenticator
from segmentstore.s3.buckets import BucketHandlers
from segmentstore.s3.errors import S3Error, not_implemented, s3_error_of
from segmentstore.s3.listing import ListingHandlers
from segmentstore.s3.multipart import MultipartHandlers, UploadListingHandlers
from segmentstore.s3.object_copying import ObjectCopyHandlers
from segmentstore.s3.object_lock import ObjectLockHandlers
from segmentstore.s3.object_reading import ObjectReadHandlers
from segmentstore.s3.object_writing import ObjectWriteHandlers
from segmentstore.s3.request import Call, ExpectContinue, NotModified, refuse_unsupported_headers
from segmentstore.s3.request_target import RequestTarget, parse_target
from segmentstore.s3.xml_documents import error_response

_LOGGER = logging.getLogger(__name__)

HEALTH_PATH = "/-/health"
"""No bucket can have that name."""


class Level(Enum):
    """What a request names."""

    SERVICE = auto()
    BUCKET = auto()
    OBJECT = auto()


_FOREIGN_SUB_RESOURCES = frozenset(
    {
        "accelerate", "acl", "analytics", "cors", "encryption", "intelligent-tiering",
        "inventory", "lifecycle", "logging", "metadataTable", "metrics", "notification",
        "ownershipControls", "policy", "policyStatus", "publicAccessBlock", "renameObject",
        "replication", "requestPayment", "restore", "select", "session", "tagging", "torrent",
        "website",
    }
)  # fmt: skip
_SUB_RESOURCES: Mapping[Level, tuple[str, ...]] = {
    Level.SERVICE: (),
    Level.BUCKET: ("location", "versioning", "object-lock", "versions", "uploads", "delete"),
    Level.OBJECT: ("uploads", "uploadId", "retention", "legal-hold", "attributes"),
}
Handler = Callable[[Call], Awaitable[web.StreamResponse]]


class Routes:
    """The verbs by what requests look like."""

    def __init__(self, verbs: Mapping[tuple[Level, str, str], Handler]) -> None:
        """By level, sub-resource and method."""
        self._verbs = verbs

    def handler_of(self, method: str, target: RequestTarget) -> Handler:
        """Raises S3Error: NotImplemented, MethodNotAllowed."""
        level, name = sub_resource(target)
        verb = self._verbs.get((level, name, method))
        if verb is None and name in _FOREIGN_SUB_RESOURCES:
            raise not_implemented(f"The sub-resource {name} with {method}")
        if verb is None:
            raise S3Error(
                "MethodNotAllowed", "The specified method is not allowed against this resource."
            )
        return verb


class Dispatch:
    """Answers requests."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        routes: Routes,
        failure: Callable[[], Exception | None],
        random: Random,
    ) -> None:
        """`failure`: why nothing can be answered any more. `random` numbers requests: it need not be strong."""
        self._failure = failure
        self._authenticator = authenticator
        self._routes = routes
        self._random = random

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but CancelledError and ConnectionError."""
        if request.rel_url.raw_path == HEALTH_PATH and request.method in {"GET", "HEAD"}:
            return self._health()
        loop = asyncio.get_running_loop()
        started = loop.time()
        request_id = self._random.randbytes(8).hex().upper()
        expect_continue = ExpectContinue(request)
        response = await self._answer(request, request_id, expect_continue)
        if not response.prepared:
            response.headers["x-amz-request-id"] = request_id
            response.headers["Server"] = "segmentstore"
            unread = request.can_read_body and not request.content.at_eof()
            if unread or expect_continue.is_due:
                response.force_close()
        level = logging.WARNING if response.status >= 500 else logging.DEBUG
        _LOGGER.log(
            level,
            "request=%s method=%s path=%.200r status=%d seconds=%.3f",
            request_id,
            request.method,
            request.rel_url.raw_path,
            response.status,
            loop.time() - started,
        )
        return response

    def _health(self) -> web.Response:
        failure = self._failure()
        if failure is None:
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "stopped", "cause": repr(failure)}, status=503)

    async def _answer(
        self, request: web.BaseRequest, request_id: str, expect_continue: ExpectContinue
    ) -> web.StreamResponse:
        try:
            target = parse_target(request.rel_url.raw_path, request.rel_url.raw_query_string)
            if _is_form(request, target):
                # Its signature is inside of the form: it would be told that it has none.
                raise not_implemented("An upload by a form (presign a PUT instead)")
            call = Call(
                request=request,
                target=target,
                authenticated=self._authenticator.authenticate(
                    request.method, target, request.headers
                ),
                request_id=request_id,
                expect_continue=expect_continue,
            )
            verb = self._routes.handler_of(request.method, target)
            refuse_unsupported_headers(call)
            return await verb(call)
        except NotModified as answer:
            return web.Response(status=304, headers=answer.headers)
        except S3Error as error:
            failure = error
        except SegmentStoreError as error:
            failure = s3_error_of(error)
        except web.HTTPException as error:
            failure = S3Error("InvalidRequest", error.reason)
        except ConnectionError:
            raise
        except Exception:
            _LOGGER.exception("request failed method=%s path=%r", request.method, request.path)
            failure = S3Error("InternalError", "We encountered an internal error.")
        return error_response(failure, resource=request.rel_url.raw_path, request_id=request_id)


def sub_resource(target: RequestTarget) -> tuple[Level, str]:
    """Of what this endpoint has, or only S3. Raises S3Error (NotImplemented)."""
    foreign = sorted(_FOREIGN_SUB_RESOURCES.intersection(target.query))
    if len(foreign) > 1:
        raise not_implemented(f"The sub-resource {foreign[0]} with another one")
    level = Level.BUCKET if target.bucket else Level.SERVICE
    if target.key:
        level = Level.OBJECT
    if foreign:
        return level, foreign[0]
    for name in _SUB_RESOURCES[level]:
        if name in target.query:
            return level, name
    return level, ""


def routes(
    *,
    buckets: BucketHandlers,
    listing: ListingHandlers,
    reading: ObjectReadHandlers,
    writing: ObjectWriteHandlers,
    copying: ObjectCopyHandlers,
    locks: ObjectLockHandlers,
    multipart: MultipartHandlers,
    uploads: UploadListingHandlers,
    absent: AbsentConfigurationHandlers,
) -> Routes:
    """All of it."""

    async def put(call: Call) -> web.StreamResponse:
        return await (copying.copy if _is_copy_request(call) else writing.put)(call)

    async def put_part(call: Call) -> web.StreamResponse:
        return await (multipart.copy_part if _is_copy_request(call) else multipart.put_part)(call)

    async def list_objects(call: Call) -> web.StreamResponse:
        second = call.query.get("list-type") == "2"
        return await (listing.objects_v2 if second else listing.objects)(call)

    verbs: Mapping[tuple[Level, str, str], Handler] = {
        (Level.SERVICE, "", "GET"): buckets.list_buckets,
        (Level.BUCKET, "", "PUT"): buckets.create,
        (Level.BUCKET, "", "HEAD"): buckets.head,
        (Level.BUCKET, "", "DELETE"): buckets.delete,
        (Level.BUCKET, "", "GET"): list_objects,
        (Level.BUCKET, "location", "GET"): buckets.location,
        (Level.BUCKET, "versioning", "GET"): buckets.get_versioning,
        (Level.BUCKET, "versioning", "PUT"): buckets.put_versioning,
        (Level.BUCKET, "object-lock", "GET"): buckets.get_lock,
        (Level.BUCKET, "object-lock", "PUT"): buckets.put_lock,
        (Level.BUCKET, "versions", "GET"): listing.versions,
        (Level.BUCKET, "uploads", "GET"): uploads.uploads,
        (Level.BUCKET, "delete", "POST"): writing.delete_many,
        (Level.OBJECT, "", "PUT"): put,
        (Level.OBJECT, "", "GET"): reading.get,
        (Level.OBJECT, "", "HEAD"): reading.head,
        (Level.OBJECT, "attributes", "GET"): reading.attributes,
        (Level.OBJECT, "", "DELETE"): writing.delete,
        (Level.OBJECT, "retention", "GET"): locks.get_retention,
        (Level.OBJECT, "retention", "PUT"): locks.put_retention,
        (Level.OBJECT, "legal-hold", "GET"): locks.get_legal_hold,
        (Level.OBJECT, "legal-hold", "PUT"): locks.put_legal_hold,
        (Level.OBJECT, "uploads", "POST"): multipart.create,
        (Level.OBJECT, "uploadId", "PUT"): put_part,
        (Level.OBJECT, "uploadId", "GET"): uploads.parts,
        (Level.OBJECT, "uploadId", "POST"): multipart.complete,
        (Level.OBJECT, "uploadId", "DELETE"): multipart.abort,
    }
    absences: Mapping[tuple[Level, str, str], Handler] = {
        **{(Level.BUCKET, name, "GET"): absent.of_bucket for name in ASKED_OF_BUCKETS},
        **{(Level.OBJECT, name, "GET"): absent.of_object for name in ASKED_OF_OBJECTS},
        **{
            (Level.BUCKET, name, "DELETE"): absent.remove_from_bucket
            for name in REMOVED_FROM_BUCKETS
        },
        **{
            (Level.OBJECT, name, "DELETE"): absent.remove_from_object
            for name in REMOVED_FROM_OBJECTS
        },
    }
    return Routes({**verbs, **absences})


def _is_form(request: web.BaseRequest, target: RequestTarget) -> bool:
    """A form is sent to a bucket; a POST to a key may begin an object of that type."""
    is_of_bucket = request.method == "POST" and not target.key and not target.query
    return is_of_bucket and request.content_type == "multipart/form-data"


def _is_copy_request(call: Call) -> bool:
    return call.header("x-amz-copy-source") is not None
