"""One handler for every request: its signature first, then its verb, then what every answer has in common.

Invariants: whatever goes wrong has an answer in S3's form; a request whose body was left unread is answered with the
end of its connection, so that bytes of a body are never taken for the next request. So is one whose client waits for
`100 Continue` and gets its answer instead, even if it has no body: there are clients (botocore) that wait for ever for
the next answer on such a connection.
"""

import asyncio
import logging
from random import Random

from aiohttp import web

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.s3.authentication import Authenticator
from segmentstore.s3.call import Call, Invitation
from segmentstore.s3.conditions import NotModified
from segmentstore.s3.failures import S3Failure, failure_of
from segmentstore.s3.foreign_headers import refuse_foreign_headers
from segmentstore.s3.request_target import parse_target
from segmentstore.s3.responses import failure_response
from segmentstore.s3.routing import Routes

HEALTH_PATH = "/-/health"
"""No bucket can have that name."""

_LOGGER = logging.getLogger(__name__)


class Dispatch:
    """Answers requests."""

    def __init__(self, *, authenticator: Authenticator, routes: Routes, random: Random) -> None:
        """`random` numbers requests: it need not be strong."""
        self._authenticator = authenticator
        self._routes = routes
        self._random = random

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but CancelledError and ConnectionError."""
        if request.rel_url.raw_path == HEALTH_PATH and request.method in {"GET", "HEAD"}:
            return web.json_response({"status": "ok"})
        loop = asyncio.get_running_loop()
        started = loop.time()
        request_id = self._random.randbytes(8).hex().upper()
        invitation = Invitation(request)
        response = await self._answer(request, request_id, invitation)
        if not response.prepared:
            response.headers["x-amz-request-id"] = request_id
            response.headers["Server"] = "segmentstore"
            unread = request.can_read_body and not request.content.at_eof()
            if unread or invitation.is_due:
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

    async def _answer(
        self, request: web.BaseRequest, request_id: str, invitation: Invitation
    ) -> web.StreamResponse:
        try:
            target = parse_target(request.rel_url.raw_path, request.rel_url.raw_query_string)
            call = Call(
                request=request,
                target=target,
                authenticated=self._authenticator.authenticate(
                    request.method, target, request.headers
                ),
                request_id=request_id,
                invitation=invitation,
            )
            verb = self._routes.verb_of(request.method, target)
            refuse_foreign_headers(call)
            return await verb(call)
        except NotModified as answer:
            return web.Response(status=304, headers=answer.headers)
        except S3Failure as error:
            failure = error
        except SegmentStoreError as error:
            failure = failure_of(error)
        except web.HTTPException as error:
            failure = S3Failure("InvalidRequest", error.reason)
        except ConnectionError:
            raise
        except Exception:
            _LOGGER.exception("request failed method=%s path=%r", request.method, request.path)
            failure = S3Failure("InternalError", "We encountered an internal error.")
        return failure_response(failure, resource=request.rel_url.raw_path, request_id=request_id)
