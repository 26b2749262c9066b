"""Which verb answers what: the table of the endpoint."""

from collections.abc import Mapping

from aiohttp import web

from segmentstore.s3.bucket_verbs import BucketVerbs
from segmentstore.s3.call import Call
from segmentstore.s3.listing_verbs import ListingVerbs
from segmentstore.s3.lock_verbs import LockVerbs
from segmentstore.s3.multipart_verbs import MultipartVerbs
from segmentstore.s3.object_copying import ObjectCopying
from segmentstore.s3.object_reading import ObjectReading
from segmentstore.s3.object_writing import ObjectWriting
from segmentstore.s3.routing import Level, Routes, Verb
from segmentstore.s3.upload_listing import UploadListing


def routes(
    *,
    buckets: BucketVerbs,
    listing: ListingVerbs,
    reading: ObjectReading,
    writing: ObjectWriting,
    copying: ObjectCopying,
    locks: LockVerbs,
    multipart: MultipartVerbs,
    uploads: UploadListing,
) -> Routes:
    """All of it."""

    async def put(call: Call) -> web.StreamResponse:
        return await (copying.copy if _is_copy(call) else writing.put)(call)

    async def put_part(call: Call) -> web.StreamResponse:
        return await (multipart.copy_part if _is_copy(call) else multipart.put_part)(call)

    async def list_objects(call: Call) -> web.StreamResponse:
        second = call.query.get("list-type") == "2"
        return await (listing.objects_v2 if second else listing.objects)(call)

    verbs: Mapping[tuple[Level, str, str], Verb] = {
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
    return Routes(verbs)


def _is_copy(call: Call) -> bool:
    return call.header("x-amz-copy-source") is not None
