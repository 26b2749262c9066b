"""What can be asked of every bucket and object of S3, and is the same for all of them here: nothing of it can be set.

Tools ask such things of their own accord, and take a refusal for what suits them: `mc` calls a bucket open to everyone
unless it is told that there is no policy. So what is asked is answered, with the truth: who has access, or that there
is none. So is a removal of what is not there. To set any of it is refused, here as in `routing.py`.
"""

from collections.abc import Mapping

from aiohttp import web

from segmentstore.s3.buckets import Buckets
from segmentstore.s3.errors import S3Error
from segmentstore.s3.object_reading import ObjectReadHandlers
from segmentstore.s3.request import OWNER, OWNER_ID, Call
from segmentstore.s3.xml_documents import branch, document, leaf, xml_response

_OWNER_HAS_EVERYTHING = document(
    "AccessControlPolicy",
    OWNER,
    branch(
        "AccessControlList",
        branch(
            "Grant",
            '<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
            f"{leaf('ID', OWNER_ID)}{leaf('DisplayName', OWNER_ID)}</Grantee>",
            leaf("Permission", "FULL_CONTROL"),
        ),
    ),
)
_ANSWERS_OF_BUCKETS: Mapping[str, bytes] = {
    "accelerate": document("AccelerateConfiguration"),
    "acl": _OWNER_HAS_EVERYTHING,
    "logging": document("BucketLoggingStatus"),
    "notification": document("NotificationConfiguration"),
    "ownershipControls": document(
        "OwnershipControls", branch("Rule", leaf("ObjectOwnership", "BucketOwnerEnforced"))
    ),
    "requestPayment": document("RequestPaymentConfiguration", leaf("Payer", "BucketOwner")),
}
_ANSWERS_OF_OBJECTS: Mapping[str, bytes] = {
    "acl": _OWNER_HAS_EVERYTHING,
    "tagging": document("Tagging", branch("TagSet")),
}
_ABSENCES: Mapping[str, str] = {
    "cors": "NoSuchCORSConfiguration",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "policy": "NoSuchBucketPolicy",
    "policyStatus": "NoSuchBucketPolicy",
    "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
    "replication": "ReplicationConfigurationNotFoundError",
    "tagging": "NoSuchTagSet",
    "website": "NoSuchWebsiteConfiguration",
}
"""The error that says that a bucket has none, by sub-resource."""

ASKED_OF_BUCKETS = (*_ANSWERS_OF_BUCKETS, *_ABSENCES)
ASKED_OF_OBJECTS = tuple(_ANSWERS_OF_OBJECTS)
REMOVED_FROM_BUCKETS = tuple(name for name in _ABSENCES if name != "policyStatus")
REMOVED_FROM_OBJECTS = ("tagging",)


class AbsentConfigurationHandlers:
    """One handler for each verb and level, whatever the sub-resource is."""

    def __init__(self, *, buckets: Buckets, reading: ObjectReadHandlers) -> None:
        self._buckets = buckets
        self._reading = reading

    async def of_bucket(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        for name, answer in _ANSWERS_OF_BUCKETS.items():
            if name in call.query:
                return xml_response(answer)
        name = next(name for name in _ABSENCES if name in call.query)
        raise S3Error(_ABSENCES[name], f"The bucket has no {name}: there is none here.")

    async def of_object(self, call: Call) -> web.StreamResponse:
        await self._reading.find(call)
        name = next(name for name in _ANSWERS_OF_OBJECTS if name in call.query)
        return xml_response(_ANSWERS_OF_OBJECTS[name])

    async def remove_from_bucket(self, call: Call) -> web.StreamResponse:
        self._buckets.get(call.bucket)
        return web.Response(status=204)

    async def remove_from_object(self, call: Call) -> web.StreamResponse:
        await self._reading.find(call)
        return web.Response(status=204)
