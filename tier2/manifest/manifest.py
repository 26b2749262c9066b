"""The manifest: the one mutable object of a container, and the commit point of everything below it.

- Created once by put-if-absent, never deleted, replaced by compare-and-set only. Versions grow by one.
- Changes are counted apart from versions: a claim changes nothing below the manifest. An older manifest that was
  brought back has fewer of them, however often it was claimed since.
- Every version carries the nonce of the attempt that wrote it, so an attempt whose answer was lost is recognised.
- Store id, log id, container id and container count never change, but for the log id when a log that follows
  a lost one claims (tier2/manifest/claim.py); epoch and highest numbers never shrink.
- SSTs are listed newest first; the parts of an SST lie one behind the other in the order of their keys.
- It stays small: names, layouts, attributes and garbage are in the SSTs, and merging keeps the SSTs few.

In stored keys the manifest is called the root, and SSTs are runs.

Bytes; all numbers are big-endian:

     0  4s   magic "SSRT"
     4  u16  version of the format, 2; in version 1 there are no changes, and there were as many as versions
     6  u16  reserved, zero
     8  u32  CRC32 of everything else: bytes 0..8 and 12..end
    12  16s  store id
    28  u8   log id length, 1..255, then the log id
        u32  container id
        u32  container count
        u64  epoch
        u64  version
        16s  nonce
        u64  highest segment id
        u64  highest sequence number
        u64  changes
        u16  number of SSTs, then per SST: u16 number of parts (at least one), then per part:
             20s  identity
             u64  size of the object
             u32  file CRC32 of the object
             u64  number of entries
             u64  position of the index in the object
             u16  first key length, first key, u16 last key length, last key
"""

import struct
from dataclasses import dataclass, replace

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, NewerFormatError
from segmentstore.contracts.identifiers import ContainerId, Epoch, SegmentId, SequenceNumber
from tier2.container_objects import ObjectIdentity
from tier2.sst.sst_format import Sst, SstPart

_HEAD = struct.Struct(">4sHHI")
_CRC_POSITION = 8
_MAGIC = b"SSRT"
_VERSION = 2
_WITHOUT_CHANGES = 1
_NUMBERS = struct.Struct(">IIQQ16sQQ")
_LONG = struct.Struct(">Q")
_PART = struct.Struct(">20sQIQQ")
_SHORT = struct.Struct(">H")
ID_BYTES = 16

BRING_BACK = (
    "bring it back if a copy or an older version of it is kept somewhere;"
    " `segmentstore recover --from-tier2 --dry-run` says what else can be done"
)
"""What a person can do about a manifest that is damaged or gone: a container has no other one."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a container's manifest."""

    store_id: bytes
    log_id: bytes
    container_id: ContainerId
    container_count: int
    epoch: Epoch
    version: int
    nonce: bytes
    highest_segment_id: SegmentId
    highest_sequence_number: SequenceNumber
    changes: int = 0
    """How many versions before this one, itself included, were more than a claim."""
    ssts: tuple[Sst, ...] = ()

    @property
    def identity(self) -> tuple[bytes, int, int, bytes]:
        """No other version of any container of any store has the same, nor another attempt at this version."""
        return self.store_id, self.container_id, self.version, self.nonce

    def successor(
        self,
        *,
        nonce: bytes,
        ssts: tuple[Sst, ...],
        epoch: Epoch | None = None,
        highest_segment_id: SegmentId | None = None,
        highest_sequence_number: SequenceNumber | None = None,
    ) -> "Manifest":
        """The next version. What is not named stays; with an epoch it is a claim."""
        following = replace(
            self,
            version=self.version + 1,
            nonce=nonce,
            ssts=ssts,
            epoch=self.epoch if epoch is None else epoch,
            changes=self.changes + (epoch is None),
            highest_segment_id=(
                self.highest_segment_id if highest_segment_id is None else highest_segment_id
            ),
            highest_sequence_number=(
                self.highest_sequence_number
                if highest_sequence_number is None
                else highest_sequence_number
            ),
        )
        following.check()
        assert following.epoch >= self.epoch, f"epoch went back {self.epoch} -> {following.epoch}"
        assert following.highest_segment_id >= self.highest_segment_id, (
            f"highest id went back {self.highest_segment_id} -> {following.highest_segment_id}"
        )
        assert following.highest_sequence_number >= self.highest_sequence_number, (
            f"highest sequence number went back {self.highest_sequence_number}"
            f" -> {following.highest_sequence_number}"
        )
        return following

    def check(self) -> None:
        """Proves what a manifest must always be. O(number of parts)."""
        assert len(self.store_id) == ID_BYTES, f"store id bytes={len(self.store_id)}"
        assert len(self.nonce) == ID_BYTES, f"nonce bytes={len(self.nonce)}"
        assert 1 <= len(self.log_id) <= 255, f"log id bytes={len(self.log_id)}"
        assert 0 <= self.changes <= self.version, f"{self.changes} changes by {self.version}"
        assert 0 <= self.container_id < self.container_count, (
            f"container={self.container_id} count={self.container_count}"
        )
        seen: set[ObjectIdentity] = set()
        for sst in self.ssts:
            assert sst, "an SST without parts"
            previous = b""
            for part in sst:
                assert previous < part.first_key <= part.last_key, (
                    f"part out of order identity={part.identity} previous={previous!r}"
                    f" first={part.first_key!r} last={part.last_key!r}"
                )
                assert part.identity not in seen, f"part named twice identity={part.identity}"
                seen.add(part.identity)
                previous = part.last_key

    def encode(self) -> bytes:
        body = bytearray(_HEAD.pack(_MAGIC, _VERSION, 0, 0))
        body += self.store_id
        body += bytes((len(self.log_id),)) + self.log_id
        body += _NUMBERS.pack(
            self.container_id,
            self.container_count,
            self.epoch,
            self.version,
            self.nonce,
            self.highest_segment_id,
            self.highest_sequence_number,
        )
        body += _LONG.pack(self.changes) + _SHORT.pack(len(self.ssts))
        for sst in self.ssts:
            body += _SHORT.pack(len(sst))
            for part in sst:
                body += _encode_part(part)
        struct.pack_into(">I", body, _CRC_POSITION, _checksum(body))
        return bytes(body)


def _checksum(content: bytes | bytearray) -> int:
    view = memoryview(content)
    return crc32_of(view[_HEAD.size :], crc32_of(view[:_CRC_POSITION]))


def _encode_part(part: SstPart) -> bytes:
    return b"".join(
        (
            _PART.pack(
                part.identity.encode(),
                part.size,
                part.file_crc32,
                part.entry_count,
                part.index_position,
            ),
            _SHORT.pack(len(part.first_key)),
            part.first_key,
            _SHORT.pack(len(part.last_key)),
            part.last_key,
        )
    )


def decode_manifest(content: bytes) -> Manifest:
    """Raises NewerFormatError for one of a later version, CorruptedDataError for what no version can have written.

    A later one begins as this one does, up to the checksum: else it would be taken for a damaged one.
    """
    try:
        magic, version, reserved, checksum = _HEAD.unpack_from(content)
        if magic == _MAGIC and version > _VERSION and checksum == _checksum(content):
            raise NewerFormatError(
                "a later version of the program wrote the manifest: nothing is damaged, use that version again"
                f" format={version} known={_VERSION}"
            )
        if magic != _MAGIC or version not in (_WITHOUT_CHANGES, _VERSION) or reserved != 0:
            raise CorruptedDataError(
                f"not a manifest of a known version magic={magic!r} version={version} reserved={reserved}"
            )
        if checksum != _checksum(content):
            raise CorruptedDataError(f"manifest fails its checksum bytes={len(content)}")
        manifest, position = _decode_body(content, has_changes=version == _VERSION)
        manifest.check()
    except (struct.error, IndexError, AssertionError) as error:
        raise CorruptedDataError(f"manifest is damaged: {error} bytes={len(content)}") from error
    if position != len(content):
        raise CorruptedDataError(f"manifest has a tail end={position} bytes={len(content)}")
    return manifest


def _decode_body(content: bytes, *, has_changes: bool) -> tuple[Manifest, int]:
    position = _HEAD.size + ID_BYTES
    log_id_end = position + 1 + content[position]
    log_id = content[position + 1 : log_id_end]
    container_id, count, epoch, version, nonce, segment_id, sequence_number = _NUMBERS.unpack_from(
        content, log_id_end
    )
    position = log_id_end + _NUMBERS.size
    changes = version
    if has_changes:
        (changes,) = _LONG.unpack_from(content, position)
        position += _LONG.size
    (run_count,) = _SHORT.unpack_from(content, position)
    position += _SHORT.size
    ssts: list[Sst] = []
    for _ in range(run_count):
        (part_count,) = _SHORT.unpack_from(content, position)
        position += _SHORT.size
        parts: list[SstPart] = []
        for _ in range(part_count):
            part, position = _decode_part(content, position)
            parts.append(part)
        ssts.append(tuple(parts))
    manifest = Manifest(
        store_id=content[_HEAD.size : _HEAD.size + ID_BYTES],
        log_id=log_id,
        container_id=ContainerId(container_id),
        container_count=count,
        epoch=Epoch(epoch),
        version=version,
        nonce=nonce,
        highest_segment_id=SegmentId(segment_id),
        highest_sequence_number=SequenceNumber(sequence_number),
        changes=changes,
        ssts=tuple(ssts),
    )
    return manifest, position


def _decode_part(content: bytes, position: int) -> tuple[SstPart, int]:
    identity, size, file_crc32, entry_count, index_position = _PART.unpack_from(content, position)
    first_key, position = _decode_key(content, position + _PART.size)
    last_key, position = _decode_key(content, position)
    part = SstPart(
        ObjectIdentity.decode(identity),
        size,
        file_crc32,
        entry_count,
        index_position,
        first_key,
        last_key,
    )
    return part, position


def _decode_key(content: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _SHORT.unpack_from(content, position)
    position += _SHORT.size
    key = content[position : position + length]
    if len(key) != length:
        raise CorruptedDataError(f"manifest ends inside a key position={position}")
    return key, position + length
