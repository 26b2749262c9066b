"""The record of a store whose logs are in BookKeeper: which store it is, in ZooKeeper, below the root of its logs.

    <root>/store               what never changes in the store, format below
    <root>/containers/0003     the record of container 3's log; its bytes are the log's own

Invariants:

- The record is created once, if there is none, and never changes. Of several processes that begin a store at once one
  creates it, and the others take what it created.
- It is there before the data directory has an identity: a directory with one and a root without a record do not
  belong together. Whatever a beginning was cut off at, the next start takes the record that is there.
- A root with logs and without a record is refused: the record was lost, or the root is not one of this store.
- The data directory, the root and Tier 2 are those of one store, or nothing is opened: the first two are compared here,
  Tier 2 when a container takes its manifest.
- A password other than that of the first start is refused here, before a log could take its ledgers for damaged.

Format of the record, version 1: two lines as in the identity of a data directory, with these keys:

    format_version    1
    store_id          32 hex digits
    container_count   1 to 1024
    created_ms        Unix time in milliseconds
    ledgers           the path of the ledgers in the same ZooKeeper
    password_check    64 hex digits: HMAC-SHA256 of the store id with the ledgers' password as its key. BookKeeper keeps
                      the password itself with each ledger, in the same ZooKeeper
"""

import hashlib
import hmac
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.host.data_directory import (
    FORMAT_VERSION,
    DataDirectoryCorruptedError,
    DirectoryIdentity,
    decode_fields,
    encode_fields,
)
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.entropy import random_id
from tier1.bookkeeper.metadata_store import MetadataChangedError, MetadataStore

STORE_PATH = "/store"
CONTAINERS_PATH = "/containers"
_READS_MAX = 3
"""A record that is not there, that cannot be created since it is there, and that is not there again."""


class StoreRecordError(InvalidRequestError):
    """The root in ZooKeeper does not belong to what is to be opened with it; the message says what to do instead."""


class StoreRecordCorruptedError(SegmentStoreError):
    """The record does not read back as it was written."""

    kind = ErrorKind.CORRUPT


@dataclass(frozen=True, slots=True)
class LogCluster:
    """Where a store's ledgers and records are, as a person named it."""

    servers: str
    root: str
    ledgers_path: str
    password: bytes

    @property
    def facts(self) -> str:
        """For the end of a message."""
        return f"root={self.root} zookeeper={self.servers}"


def log_record_path(container_id: int) -> str:
    """Of one container's log, below the root."""
    return f"{CONTAINERS_PATH}/{container_id:04d}"


async def open_store_record(
    metadata: MetadataStore,
    cluster: LogCluster,
    *,
    directory: DirectoryIdentity | None,
    has_tier2: bool,
    container_count: int | None,
    default_count: int,
    random: Random,
    wall_clock: WallClock,
) -> DirectoryIdentity:
    """The identity below the root, which begins a store if there is none and the data directory has none either.

    `directory`: what the data directory says; `has_tier2`: there is a Tier 2 in it; `container_count`: what the user
    asked for, or None. Raises StoreRecordError, StoreRecordCorruptedError, MetadataUnavailableError: then call again.
    """
    for _ in range(_READS_MAX):
        found = await find_store_record(metadata, cluster)
        if found is not None:
            require_same_store(found, directory, cluster)
            _require_count(found, container_count, cluster)
            return found
        if directory is not None:
            raise StoreRecordError(
                "the data directory has a store, and there is none below the root in ZooKeeper: name the servers"
                " and the root of this store; if ZooKeeper has lost it, `segmentstore recover --from-tier2` makes logs"
                f" anew store_id={directory.store_id.hex()} {cluster.facts}"
            )
        if has_tier2:
            raise StoreRecordError(
                "the data directory has the Tier 2 of a store, and there is none below the root in ZooKeeper: name the"
                " servers and the root of its store; if its logs are lost, `segmentstore recover --from-tier2` makes"
                f" them anew {cluster.facts}"
            )
        identity = DirectoryIdentity(
            store_id=random_id(random),
            container_count=container_count or default_count,
            created_ms=wall_clock.now_ms(),
        )
        await _create(metadata, cluster, identity)
    raise StoreRecordError(f"the record of the store comes and goes in ZooKeeper {cluster.facts}")


async def restore_store_record(
    metadata: MetadataStore, cluster: LogCluster, identity: DirectoryIdentity
) -> None:
    """Give the root the identity that Tier 2 has, unless it has that one already. Raises as open_store_record()."""
    for _ in range(_READS_MAX):
        found = await find_store_record(metadata, cluster, may_lack_record=True)
        if found is not None:
            require_same_store(found, identity, cluster)
            return
        await _create(metadata, cluster, identity)
    raise StoreRecordError(f"the record of the store comes and goes in ZooKeeper {cluster.facts}")


async def find_store_record(
    metadata: MetadataStore, cluster: LogCluster, *, may_lack_record: bool = False
) -> DirectoryIdentity | None:
    """None if nothing of a store is below the root; with `may_lack_record` also if there are logs, and no record.

    Raises StoreRecordError for another path of ledgers, another password, or a root that lacks its record,
    StoreRecordCorruptedError, MetadataUnavailableError.
    """
    found = await metadata.get(STORE_PATH)
    if found is not None:
        return _decode(found.value, cluster)
    logs = [] if may_lack_record else await metadata.children(CONTAINERS_PATH)
    if logs:
        raise StoreRecordError(
            "there are logs below the root in ZooKeeper, and the record of their store is gone: name another root, or"
            f" bring it back with `segmentstore recover --from-tier2` found={len(logs)} {cluster.facts}"
        )
    return None


async def _create(
    metadata: MetadataStore, cluster: LogCluster, identity: DirectoryIdentity
) -> None:
    """It is there afterwards: this one, or that of another process."""
    try:
        await metadata.create(STORE_PATH, _encode(identity, cluster))
    except MetadataChangedError:
        return


def require_same_store(
    found: DirectoryIdentity, wanted: DirectoryIdentity | None, cluster: LogCluster
) -> None:
    """`found`: of the record; `wanted`: of whatever is to be used with it. Raises StoreRecordError."""
    if wanted is not None and (found.store_id, found.container_count) != (
        wanted.store_id,
        wanted.container_count,
    ):
        raise StoreRecordError(
            "the root in ZooKeeper belongs to another store: name the root of this one, or another data directory"
            f" store_id={wanted.store_id.hex()} found={found.store_id.hex()} {cluster.facts}"
        )


def _require_count(found: DirectoryIdentity, asked: int | None, cluster: LogCluster) -> None:
    if asked is not None and asked != found.container_count:
        raise StoreRecordError(
            "the container count of a store is fixed when it is created, because segments are placed by it: leave the"
            f" setting out, or name another root container_count={found.container_count} given={asked} {cluster.facts}"
        )


def _encode(identity: DirectoryIdentity, cluster: LogCluster) -> bytes:
    return encode_fields(
        {
            "format_version": FORMAT_VERSION,
            "store_id": identity.store_id.hex(),
            "container_count": identity.container_count,
            "created_ms": identity.created_ms,
            "ledgers": cluster.ledgers_path,
            "password_check": _password_check(identity.store_id, cluster.password),
        }
    )


def _decode(value: bytes, cluster: LogCluster) -> DirectoryIdentity:
    path = f"{cluster.root}{STORE_PATH}"
    try:
        fields = decode_fields(value, what="the record of the store in ZooKeeper", path=path)
    except DataDirectoryCorruptedError as error:
        raise StoreRecordCorruptedError(str(error)) from error
    identity = DirectoryIdentity(
        store_id=bytes.fromhex(str(fields["store_id"])),
        container_count=int(fields["container_count"]),
        created_ms=int(fields["created_ms"]),
    )
    if fields["ledgers"] != cluster.ledgers_path:
        raise StoreRecordError(
            f"the ledgers of this store are below another path: end the URL in {fields['ledgers']}"
            f" given={cluster.ledgers_path} {cluster.facts}"
        )
    check = _password_check(identity.store_id, cluster.password)
    if not hmac.compare_digest(check, str(fields["password_check"])):
        raise StoreRecordError(
            "the password is not the one with which the store was begun: set bookkeeper.password_file or"
            f" SEGMENTSTORE_BOOKKEEPER_PASSWORD {cluster.facts}"
        )
    return identity


def controller_token(identity: DirectoryIdentity, cluster: LogCluster) -> str:
    """What a controller shows to the nodes of its cluster; it follows from the ledgers' password and the store id."""
    message = b"controller" + identity.store_id
    return hmac.new(cluster.password, message, hashlib.sha256).hexdigest()


def _password_check(store_id: bytes, password: bytes) -> str:
    return hmac.new(password, store_id, hashlib.sha256).hexdigest()
