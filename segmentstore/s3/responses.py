"""Answers: XML documents, failures, and what all of them carry."""

from aiohttp import web

from segmentstore.s3.failures import S3Failure
from segmentstore.s3.xml_writing import document, leaf

_XML = "application/xml"


def xml_response(
    content: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A document."""
    return web.Response(
        status=status, body=content, headers={"Content-Type": _XML, **(headers or {})}
    )


def failure_response(failure: S3Failure, *, resource: str, request_id: str) -> web.Response:
    """The document that says what was wrong."""
    content = document(
        "Error",
        leaf("Code", failure.code),
        leaf("Message", failure.message),
        leaf("Resource", resource),
        leaf("RequestId", request_id),
        namespace=False,
    )
    return xml_response(content, failure.status, failure.headers)
