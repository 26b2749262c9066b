"""Where the bytes of objects lie, for a reader that knows nothing of object stores:

    /PATH            a file: an object of its own, or a volume
    http(s)://...    an object in a bucket, with the permission to read it
    data:BASE64      an object so small that it lies in the index of the volumes

- A location is where the object is now. Compaction may move it at any time, so a reader that finds nothing there, or
  other bytes than the checksum wants, asks again.
- Nothing is written, and no object is read.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from segmentstore.contracts.errors import ObjectNotFoundError
from segmentstore.runtime.files import FileSystem
from tier2.object_stores.filesystem import path_of_key
from tier2.object_stores.places import is_remote, object_directory
from tier2.object_stores.volumes import OBJECT_PREFIX
from tier2.volumes.index import blob_key, current_key, decode_blob_row, decode_object_row
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.volume_files import VolumeFiles, is_engine_directory

URL_SECONDS: Final = 12 * 3600
"""How long a URL may be used; then its reader asks for another."""


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """Where the first byte of an object is."""

    name: str
    position: int = 0


def locate_objects(
    place: str, keys: Iterable[str], *, files: FileSystem, endpoint_url: str, region: str
) -> Mapping[str, ObjectLocation]:
    """The objects of these keys; those that are gone are left out. The place must not be open in this process.

    Raises CorruptedDataError, OSError.
    """
    if is_remote(place):
        return _locations_in_bucket(place, keys, endpoint_url=endpoint_url, region=region)
    directory = object_directory(place)
    if is_engine_directory(directory, files):
        return _locations_in_volumes(directory, keys, files)
    return {key: ObjectLocation(path_of_key(f"{directory}/objects", key)) for key in keys}


def _locations_in_volumes(
    directory: str, keys: Iterable[str], files: FileSystem
) -> Mapping[str, ObjectLocation]:
    # Only names of files are asked for, so neither randomness nor the identity matters.
    volumes = VolumeFiles(f"{directory}/volumes", files=files, random=Random(0), engine_id=b"")
    found: dict[str, ObjectLocation] = {}
    index = LmdbIndex(f"{directory}/index", read_only=True)
    try:
        for key in keys:
            try:
                found[key] = _location_in_index(index, volumes, key)
            except ObjectNotFoundError:
                continue
    finally:
        index.close()
    return found


def _location_in_index(index: LmdbIndex, volumes: VolumeFiles, key: str) -> ObjectLocation:
    content = index.get(current_key((OBJECT_PREFIX + key).encode()))
    if content is None:
        raise ObjectNotFoundError(f"object does not exist key={key}")
    row = decode_object_row(content)
    if row.inline is not None:
        return ObjectLocation("data:" + base64.b64encode(row.inline).decode())
    blob = index.get(blob_key(row.record.content_hash))
    if blob is None:
        raise ObjectNotFoundError(f"object has no bytes key={key}")
    place = decode_blob_row(blob)
    return ObjectLocation(volumes.path(place.volume), place.blob_offset)


def _locations_in_bucket(
    place: str, keys: Iterable[str], *, endpoint_url: str, region: str
) -> Mapping[str, ObjectLocation]:
    # Only a process that uses S3 needs its client library.
    import botocore.session
    from botocore.config import Config

    from tier2.object_stores.s3.settings import parse_s3_url

    bucket, prefix = parse_s3_url(place)
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=region,
        endpoint_url=endpoint_url or None,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if endpoint_url else "auto"},
        ),
    )
    found: dict[str, ObjectLocation] = {}
    for key in keys:
        address = {"Bucket": bucket, "Key": f"{prefix}/{key}" if prefix else key}
        url = client.generate_presigned_url("get_object", Params=address, ExpiresIn=URL_SECONDS)
        found[key] = ObjectLocation(str(url))
    return found
