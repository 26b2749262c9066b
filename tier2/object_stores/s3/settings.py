"""Where the bucket is, how much at once, how patient, and what a request costs.

Credentials are not here: they come by the usual chain of AWS (environment, shared files, container and instance roles),
which also renews them.
"""

from dataclasses import dataclass, field

from segmentstore.contracts.errors import InvalidRequestError

PART_BYTES_MIN = 5 << 20
"""Smallest part of a multipart upload but the last; a rule of the protocol."""
PARTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RequestPrices:
    """US dollars per request, for the estimate in `/metrics`. The defaults are those of S3 Standard in us-east-1."""

    write_usd: float = 0.005 / 1000
    """Put, list, and every step of a multipart upload."""
    read_usd: float = 0.0004 / 1000
    delete_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Values of one bucket."""

    bucket: str
    prefix: str = ""
    """Put before every key, with a slash between; several stores may share a bucket under different prefixes."""
    endpoint_url: str = ""
    """Empty: AWS. Otherwise http(s)://HOST:PORT of a server that speaks the protocol."""
    region: str = "us-east-1"
    storage_class: str = ""
    """Empty: the bucket's default. Never one that has to be thawed before it is read."""
    server_side_encryption: str = ""
    """Empty: the bucket's default; AES256 or aws:kms."""
    kms_key_id: str = ""
    sign_payload: bool = False
    """Sign a hash of every body (10 ms of CPU per 8 MB). Bodies are guarded by a CRC32C in either case."""
    rust_reads: bool = False
    """Read by obstore, which has to be installed then: see RustReads."""
    multipart_bytes_min: int = 16 << 20
    """Objects of this size or more are uploaded in parts."""
    part_bytes: int = 8 << 20
    requests_max: int = 16
    """Requests under way at a time; more wait."""
    parts_in_flight_max: int = 4
    """Of one upload."""
    attempts_max: int = 5
    """Of a request that may be repeated. A conditional put is never repeated here."""
    retry_seconds_first: float = 0.1
    retry_seconds_max: float = 5.0
    startup_race_rounds: int = 2
    """Races of conditional puts at start, on keys of their own; 0 trusts the server."""
    connect_seconds_max: float = 5.0
    read_seconds_max: float = 60.0
    renewal_seconds_min: float = 10.0
    """Between two clients that were made because credentials were refused and others were found."""
    prices: RequestPrices = field(default_factory=RequestPrices)

    def __post_init__(self) -> None:
        if not self.bucket:
            raise InvalidRequestError("an S3 store needs the name of a bucket: s3://BUCKET/PREFIX")
        if self.part_bytes < PART_BYTES_MIN:
            raise InvalidRequestError(
                f"parts are at least {PART_BYTES_MIN} bytes part_bytes={self.part_bytes}"
            )


def parse_s3_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of s3://BUCKET[/PREFIX]. Raises InvalidRequestError."""
    scheme, separator, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not separator or not bucket:
        raise InvalidRequestError(f"a bucket is named as s3://BUCKET/PREFIX, not {url!r}")
    return bucket, prefix.strip("/")
