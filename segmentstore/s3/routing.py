"""Which verb a request is: by its method, by whether it names a bucket and a key, and by its sub-resource.

A sub-resource is a parameter of the query that changes what the request is about (`?versioning`). Those that S3 has and
this endpoint has not are refused, so that none is taken for the verb without it.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto

from aiohttp import web

from segmentstore.s3.call import Call
from segmentstore.s3.failures import S3Failure, not_implemented
from segmentstore.s3.request_target import RequestTarget

Verb = Callable[[Call], Awaitable[web.StreamResponse]]

_FOREIGN = frozenset(
    {
        "accelerate", "acl", "analytics", "attributes", "cors", "encryption", "intelligent-tiering",
        "inventory", "lifecycle", "logging", "metadataTable", "metrics", "notification",
        "ownershipControls", "policy", "policyStatus", "publicAccessBlock", "renameObject",
        "replication", "requestPayment", "restore", "select", "session", "tagging", "torrent",
        "website",
    }
)  # fmt: skip


class Level(Enum):
    """What a request names."""

    SERVICE = auto()
    BUCKET = auto()
    OBJECT = auto()


_SUB_RESOURCES: Mapping[Level, tuple[str, ...]] = {
    Level.SERVICE: (),
    Level.BUCKET: ("location", "versioning", "object-lock", "versions", "uploads", "delete"),
    Level.OBJECT: ("uploads", "uploadId", "retention", "legal-hold"),
}


def sub_resource(target: RequestTarget) -> tuple[Level, str]:
    """Raises S3Failure (NotImplemented)."""
    foreign = _FOREIGN.intersection(target.query)
    if foreign:
        raise not_implemented(f"The sub-resource {min(foreign)}")
    level = Level.BUCKET if target.bucket else Level.SERVICE
    if target.key:
        level = Level.OBJECT
    for name in _SUB_RESOURCES[level]:
        if name in target.query:
            return level, name
    return level, ""


class Routes:
    """The verbs by what requests look like."""

    def __init__(self, verbs: Mapping[tuple[Level, str, str], Verb]) -> None:
        """By level, sub-resource and method."""
        self._verbs = verbs

    def verb_of(self, method: str, target: RequestTarget) -> Verb:
        """Raises S3Failure: NotImplemented, MethodNotAllowed."""
        level, name = sub_resource(target)
        verb = self._verbs.get((level, name, method))
        if verb is None:
            raise S3Failure(
                "MethodNotAllowed", "The specified method is not allowed against this resource."
            )
        return verb
