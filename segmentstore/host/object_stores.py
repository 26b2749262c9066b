"""The object stores of Tier 2, by what the settings call its place.

    volumes      the embedded engine under DIR/tier2: the default
    filesystem   one file per object under DIR/tier2
    s3://...     a bucket
    memory       forgotten with the process

Invariants:

- A directory keeps the kind of store that it has: another one is refused, since its segments would seem to be gone;
  and what is flushed to one in memory leaves the log.
  It has it from the first thing that a start makes in it, so one that is killed half-way goes on as it meant.
- A store need not answer when the process starts: all but that in memory are behind a LazyObjectStore, which
  starts them by the first call that reaches it. Until that succeeds every call raises StorageError, which containers
  understand as "Tier 2 does not answer": they recover from their logs, serve what they have, try again.
- What outlives a container object is made once, here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import Random

from segmentstore.contracts.errors import InvalidRequestError, ObjectNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.host.data_directory import DataDirectory, DataDirectoryError
from segmentstore.host.setting_sources import ResolvedSettings
from segmentstore.host.settings import S3StoreSettings, ServiceSettings
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from segmentstore.runtime.thread_pool import FairThreadPool, Lane
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.lazy_object_store import LazyObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.object_stores.shared_object_store import SharedObjectStore
from tier2.object_stores.volumes import LateVolumes
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import is_engine_directory

S3_SCHEME = "s3://"

_ASKED_KEY = "probe/asked"
"""There is no such object: that it is not there is an answer."""


def tier2_place(
    resolved: ResolvedSettings, directory: DataDirectory | None, files: FileSystem
) -> str:
    """The place to use: what was asked for, or what the directory has. Raises DataDirectoryError if they differ."""
    asked = resolved.settings.tier2.place
    if directory is None or asked.startswith(S3_SCHEME):
        return asked
    path = directory.tier2_path
    if not files.is_directory(path) or not files.list(path):
        return asked
    found = _kind_of(path, files)
    if asked != found and resolved.source_of("tier2.place") != "default":
        raise DataDirectoryError(
            f"Tier 2 of this data directory is kept as {found}, not as {asked}: leave --tier2 out, or name {found} "
            f"path={path}"
        )
    return found


def _kind_of(path: str, files: FileSystem) -> str:
    """Of the store in a directory that is not empty; of one whose first start was cut off, what that start meant."""
    if is_engine_directory(path, files):
        return "volumes"
    if not files.is_directory(f"{path}/volumes"):
        return "filesystem"
    # Volumes make this directory first and their identity last. Objects beside it are files of a store that went on in
    # what was half made: they stay in sight.
    objects = f"{path}/objects"
    has_objects = files.is_directory(objects) and bool(files.list(objects))
    return "filesystem" if has_objects else "volumes"


class Tier2Stores:
    """One object store per container, or one for all of them."""

    def __init__(
        self,
        *,
        place: str,
        settings: ServiceSettings,
        directory: DataDirectory | None,
        files: FileSystem,
        wall_clock: WallClock,
        random: Random,
        threads: FairThreadPool,
        lanes: Sequence[Lane],
        readers: FairThreadPool,
        volumes_socket: str = "",
    ) -> None:
        """`volumes_socket`: where another process of this store answers for its volumes; empty: this one has them."""
        self._stores: list[ObjectStore]
        self._metrics: Callable[[], Mapping[str, float]] = dict
        self._complaints: Callable[[], Sequence[str]] = list
        self._answers: Callable[[], int] = int
        if place == "memory":
            self._stores = [MemoryObjectStore()] * len(lanes)
        elif place.startswith(S3_SCHEME):
            bucket, self._metrics, self._answers = _open_bucket(
                place, settings.s3, random, executor=threads.lane()
            )
            self._stores = [bucket] * len(lanes)
        else:
            assert directory is not None, "tier 2 in files without a data directory"
            path = directory.tier2_path
            if place == "volumes" and volumes_socket:
                self._stores = [SharedObjectStore(volumes_socket)] * len(lanes)
            elif place == "volumes":
                volumes = LateVolumes(
                    path,
                    files=files,
                    executor=threads.lane(),
                    readers=readers.lane(),
                    wall_clock=wall_clock,
                    random=random,
                    settings=VolumeSettings(
                        scrub_bytes_per_second=settings.tier2.volume_scrub_byte_rate
                    ),
                )
                self._metrics, self._complaints = volumes.metrics, volumes.complaints
                self._stores = [LazyObjectStore(volumes)] * len(lanes)
            else:
                self._stores = [
                    LazyObjectStore(
                        FilesystemObjectStore(path, files=files, executor=lane, random=random)
                    )
                    for lane in lanes
                ]

    def of(self, container_id: ContainerId) -> ObjectStore:
        return self._stores[container_id]

    def metrics(self) -> Mapping[str, float]:
        """Numbers for `/metrics` of no single container: of a bucket its requests, of volumes their scrubs."""
        return self._metrics()

    def complaints(self) -> Sequence[str]:
        """What `/health` says of them: damage that was found in volumes."""
        return self._complaints()

    def answers(self) -> int:
        """How many requests of this process a bucket has answered; 0 for every other place."""
        return self._answers()

    async def ask(self) -> None:
        """One request that reads nothing. Raises StorageError if it is not answered."""
        with suppress(ObjectNotFoundError):
            await self._stores[0].size(_ASKED_KEY)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


def _open_bucket(
    place: str, settings: S3StoreSettings, random: Random, *, executor: Lane
) -> tuple[ObjectStore, Callable[[], Mapping[str, float]], Callable[[], int]]:
    # Only a store in S3 needs its client library.
    try:
        from tier2.object_stores.s3.s3_object_store import S3ObjectStore
        from tier2.object_stores.s3.settings import S3Settings, parse_s3_url
    except ImportError as error:
        raise InvalidRequestError(
            f"Tier 2 in S3 needs the package {error.name}: pip install 'segmentstore[s3]'"
        ) from error

    bucket, prefix = parse_s3_url(place)
    store = S3ObjectStore(
        settings=S3Settings(
            bucket=bucket,
            prefix=prefix,
            endpoint_url=settings.endpoint_url,
            region=settings.region,
            storage_class=settings.storage_class,
            server_side_encryption=settings.server_side_encryption,
            kms_key_id=settings.kms_key_id,
            sign_payload=settings.sign_payload == "true",
            rust_reads=settings.read_client == "obstore",
        ),
        random=random,
        executor=executor,
    )

    def metrics() -> Mapping[str, float]:
        numbers = store.statistics
        requests = {f"s3_{name}_requests_total": count for name, count in numbers.requests.items()}
        failures = {f"s3_{name}_failures_total": count for name, count in numbers.failures.items()}
        return {
            **requests,
            **failures,
            "s3_retries_total": numbers.retries,
            "s3_sent_bytes_total": numbers.sent_bytes,
            "s3_received_bytes_total": numbers.received_bytes,
            "s3_estimated_cost_usd_total": numbers.total_cost_usd(),
        }

    return LazyObjectStore(store), metrics, lambda: store.statistics.answers
