"""What the endpoint answers instead of a result: S3's error codes, their statuses, and where they come from.

Errors of the store are translated here and nowhere else.
"""

from collections.abc import Mapping

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
    ObjectNotFoundError,
    SegmentStoreError,
    StoreFullError,
)
from tier2.volumes.objects import UploadNotFoundError

_STATUSES: Mapping[str, int] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IncompleteBody": 400,
    "InsufficientStorage": 507,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidBucketState": 409,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidStorageClass": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "MissingSecurityHeader": 400,
    "NoSuchBucket": 404,
    "NoSuchBucketPolicy": 404,
    "NoSuchCORSConfiguration": 404,
    "NoSuchKey": 404,
    "NoSuchLifecycleConfiguration": 404,
    "NoSuchObjectLockConfiguration": 404,
    "NoSuchPublicAccessBlockConfiguration": 404,
    "NoSuchTagSet": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NoSuchWebsiteConfiguration": 404,
    "NotImplemented": 501,
    "ObjectLockConfigurationNotFoundError": 404,
    "OperationAborted": 409,
    "PreconditionFailed": 412,
    "ReplicationConfigurationNotFoundError": 404,
    "RequestTimeout": 400,
    "RequestTimeTooSkewed": 403,
    "ServerSideEncryptionConfigurationNotFoundError": 404,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "TooManyBuckets": 400,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """A request is refused, or could not be done."""

    def __init__(self, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        return _STATUSES[self.code]


def not_implemented(what: str) -> S3Error:
    """For parts of the protocol that this endpoint does not have."""
    return S3Error("NotImplemented", f"{what} is not implemented here.")


def s3_error_of(error: SegmentStoreError) -> S3Error:
    """The answer to an error of the store."""
    match error:
        case UploadNotFoundError():
            return S3Error(
                "NoSuchUpload",
                "The specified upload does not exist. It may have been aborted or completed.",
            )
        case ObjectNotFoundError():
            return S3Error("NoSuchKey", "The specified key does not exist.")
        case ObjectExistsError() | ObjectChangedError():
            return S3Error("PreconditionFailed", "A condition of the request does not hold.")
        case ObjectLockedError():
            return S3Error("AccessDenied", "The object is protected by retention or legal hold.")
        case InvalidRequestError():
            return S3Error("InvalidArgument", str(error))
        case StoreFullError():
            return S3Error("InsufficientStorage", "No space is left; nothing was stored.")
        case CorruptedDataError():
            return S3Error("InternalError", f"Stored bytes are damaged: {error}")
        case _:
            return S3Error("SlowDown", f"The store cannot do this now: {error}")
