"""Headers that every answer carries, and the shapes of small answers.

Content is foreign: browsers must neither guess its type (nosniff) nor run it in this server's origin (CSP sandbox), or
a stored text/html would be stored cross-site scripting.
"""

import json
from collections.abc import Mapping

from aiohttp import web

from segmentstore.http import header_names
from segmentstore.http.refusals import Refusal

SECURITY_HEADERS: Mapping[str, str] = {
    "Server": "segmentstore",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
CONTENT_HEADERS: Mapping[str, str] = {
    **SECURITY_HEADERS,
    "Content-Security-Policy": "sandbox; default-src 'none'",
}
_METHODS = "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"


class CrossOrigin:
    """What browsers of other origins may do (CORS)."""

    def __init__(self, allow_origin: str) -> None:
        self._headers: Mapping[str, str] = {}
        self._preflight: Mapping[str, str] = {}
        if allow_origin:
            self._headers = {
                "Access-Control-Allow-Origin": allow_origin,
                "Access-Control-Expose-Headers": header_names.RESPONSE_HEADERS_EXPOSED,
            }
            self._preflight = {
                **self._headers,
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": header_names.REQUEST_HEADERS_ALLOWED,
                "Access-Control-Max-Age": "86400",
            }

    def add_to(self, response: web.StreamResponse) -> None:
        """Before the response is prepared."""
        response.headers.update(self._headers)

    def preflight(self) -> web.Response:
        """The answer to OPTIONS."""
        return web.Response(
            status=204, headers={**SECURITY_HEADERS, **self._preflight, "Allow": _METHODS}
        )


def json_response(status: int, value: object) -> web.Response:
    """An answer of this server's own making."""
    headers = {**SECURITY_HEADERS, "Content-Type": "application/json", "Cache-Control": "no-store"}
    return web.Response(status=status, headers=headers, body=json.dumps(value).encode())


def refusal_response(refusal: Refusal) -> web.Response:
    """The one shape of an answer that is not a success."""
    headers = {
        **SECURITY_HEADERS,
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        **refusal.headers,
    }
    return web.Response(status=refusal.status, headers=headers, body=refusal.body())
