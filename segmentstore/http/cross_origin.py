"""Which browsers may use the server: by the name it is addressed by (Host), and by the page that asks (Origin).

A server on the loopback is within reach of every web page that the machine's user looks at. Such a page can send
requests (a form needs no permission), read answers if it is told that it may, and have its own name point to this
address ("DNS rebinding"), by which it counts as the same origin. So, before anything else is looked at:

- The Host must be one that is listened on, or be configured: else 421. Requests without one come from no browser.
- An Origin, which browsers send with all that could change something or be read, must be the server itself, or be
  configured: else 403.
- Answers name the page's origin only if it is configured.

Which Host is listened on:

| listening on | accepted, with any port |
|---|---|
| a loopback address or `localhost` | every loopback address, `localhost` and names below it |
| another address | that address |
| all addresses | every address, `localhost` and names below it, the machine's name |
| another name | that name, every address |

An address in a Host is harmless where it stands above: a page cannot have an address point elsewhere.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from aiohttp import web

from segmentstore.http import header_names
from segmentstore.http.responses import SECURITY_HEADERS, Refusal

ANY = "*"
_METHODS_ALLOWED = "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"
_RESOURCE_POLICY = "Cross-Origin-Resource-Policy"
_KNOWN_HOSTS_MAX = 256
"""Spellings of accepted hosts that are not looked at again."""


class CrossOrigin:
    """check() before a request is looked at, add_to() before its answer is sent."""

    def __init__(
        self, *, listened_host: str, hosts: Sequence[str] = (), origins: Sequence[str] = ()
    ) -> None:
        """`hosts` are accepted besides what is listened on, `origins` may use the server; "*" stands for all."""
        self._any_host = ANY in hosts
        self._any_origin = ANY in origins
        self._origins = frozenset(origin.lower() for origin in origins)
        self._known_hosts: set[str] = set()
        listened = _plain(listened_host)
        self._listened_address = _address_of(listened)
        self._is_loopback = listened == "localhost" or (
            self._listened_address is not None and self._listened_address.is_loopback
        )
        self._is_everywhere = not listened or (
            self._listened_address is not None and self._listened_address.is_unspecified
        )
        self._names = {_plain(host) for host in hosts} | {listened}
        if self._is_everywhere:
            self._names.add(_plain(socket.gethostname()))

    def check(self, request: web.BaseRequest) -> None:
        """Raises Refusal: 421 (another host), 403 (another origin)."""
        headers = request.headers
        host = headers.get(header_names.HOST)
        if host is not None and host not in self._known_hosts:
            self._check_host(host)
        origin = headers.get(header_names.ORIGIN)
        if origin is not None and not self._is_allowed(origin) and not _is_same(origin, host):
            raise Refusal(
                403,
                "pages of other origins may not use this server; http.cors_origins names those"
                f" that may origin={origin[:256]!r}",
                kind="invalid",
            )

    def add_to(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Before the response is prepared."""
        headers = response.headers
        if not self._origins:
            return
        if _RESOURCE_POLICY in headers:
            headers[_RESOURCE_POLICY] = "cross-origin"
        if self._any_origin:
            headers["Access-Control-Allow-Origin"] = ANY
        else:
            # A cached answer serves the next page as well, so each answer says what it depends on.
            headers["Vary"] = "Origin"
            origin = request.headers.get(header_names.ORIGIN, "")
            if not self._is_allowed(origin):
                return
            headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = header_names.RESPONSE_HEADERS_EXPOSED

    def preflight(self, request: web.BaseRequest) -> web.Response:
        """The answer to OPTIONS."""
        response = web.Response(status=204, headers={**SECURITY_HEADERS, "Allow": _METHODS_ALLOWED})
        self.add_to(request, response)
        if "Access-Control-Allow-Origin" in response.headers:
            response.headers["Access-Control-Allow-Methods"] = _METHODS_ALLOWED
            response.headers["Access-Control-Allow-Headers"] = header_names.REQUEST_HEADERS_ALLOWED
            response.headers["Access-Control-Max-Age"] = "86400"
        return response

    def _is_allowed(self, origin: str) -> bool:
        return self._any_origin or origin.lower() in self._origins

    def _check_host(self, host: str) -> None:
        if not (self._any_host or self._is_ours(_plain(_without_port(host)))):
            raise Refusal(
                421,
                "this server does not go by that name; http.hosts names further ones"
                f" host={host[:256]!r}",
                kind="invalid",
            )
        if len(self._known_hosts) < _KNOWN_HOSTS_MAX:
            self._known_hosts.add(host)

    def _is_ours(self, name: str) -> bool:
        if name in self._names:
            return True
        address = _address_of(name)
        if address is None:
            is_localhost = name == "localhost" or name.endswith(".localhost")
            return is_localhost and (self._is_loopback or self._is_everywhere)
        if self._is_loopback:
            return address.is_loopback
        return self._is_everywhere or self._listened_address is None


def _is_same(origin: str, host: str | None) -> bool:
    return host is not None and origin.partition("://")[2].lower() == host.lower()


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and (":" not in name or name.endswith("]")) else host


def _plain(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


def _address_of(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
