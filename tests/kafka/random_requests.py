"""What a client of Kafka's protocol may send: valid frames with odd values, drawn by field, and any batches."""

import struct
from collections.abc import Mapping
from dataclasses import fields
from random import Random
from types import UnionType
from typing import Annotated, Final, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from crc32c import crc32c

from segmentstore.codec.kafka_protocol.api_table import APIS, ApiKey
from segmentstore.codec.kafka_protocol.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    NO_UUID,
    RECORDS,
    Form,
)
from segmentstore.codec.kafka_protocol.frames import encode_request
from segmentstore.codec.kafka_protocol.produce import ProduceRequest
from segmentstore.codec.kafka_protocol.structure import Structure, Versions, may_be_null
from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    Compression,
    Record,
    encode_batch,
    stamp_producer,
)

CLIENT_ID: Final = "test"
KEPT_TOPICS: Final = ("t", "u")
"""Never deleted, so that all that is stored in them can be looked at."""
_BITS: Final[Mapping[int, int]] = {id(INT8): 8, id(INT16): 16, id(INT32): 32, id(INT64): 64}
_LONG: Final = "x" * 300
_PARTITIONS: Final = (*(0, 1) * 6, 2, -1, (1 << 31) - 1, -(1 << 31))
_TOPICS: Final = (*KEPT_TOPICS * 8, "made", "made", "other", "none", "", ".", "a b", _LONG)
_OTHERS: Final = ("made", "made", "other", "none", "", ".", "..", "a b", "é", "T", _LONG)
_GROUPS: Final = (*("g",) * 9, "h", "", _LONG)
_WORDS: Final = (
    "retention.ms",
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.type",
    "no",
    "",
)
_VALUES: Final = ("1", "-1", "", "compact", "delete", "LogAppendTime", "x", str(1 << 70), _LONG)
_CHOSEN: Final[Mapping[str, tuple[object, ...]]] = {
    "acks": (*(-1, 1) * 8, 0, 0, 2, -2),
    "transactional_id": (*(None,) * 20, "", "tx"),
    "index": _PARTITIONS,
    "partition": _PARTITIONS,
    "partitions": _PARTITIONS,
    "partition_index": _PARTITIONS,
    "partition_indexes": _PARTITIONS,
    "fetch_offset": (*range(8), 40, -1, (1 << 63) - 1, -(1 << 63)),
    "offset": (*range(4), 20, -1, -2, (1 << 63) - 1, -(1 << 63)),
    "partition_max_bytes": (1 << 20, 1 << 20, 100, 0, 1, -1, (1 << 31) - 1),
    "max_bytes": (1 << 20, 1 << 20, 200, 0, 1, -1, (1 << 31) - 1),
    "topic": _TOPICS,
    "topic_names": _OTHERS,
    "group_id": _GROUPS,
    "groups": _GROUPS,
    "group_ids": _GROUPS,
    "group_instance_id": (*(None,) * 12, "i", "i", "j", "", _LONG),
    "resource_type": (2, 2, 2, 4, 0, -1),
    "resource_name": (*_TOPICS, "0"),
    "states_filter": ("Empty", "stable", "no", ""),
    "configuration_keys": _WORDS,
    "config_operation": (0, 0, 1, 2, 3, -1),
    "value": _VALUES,
    "protocol_type": (*("consumer",) * 9, "other", ""),
    "protocol_name": (*("range",) * 9, "sticky", None),
    "session_timeout_ms": (*(6_000, 10_000, 30_000) * 5, 1, 0, -1, (1 << 31) - 1, -(1 << 31)),
    "rebalance_timeout_ms": (-1, 1_000, 10_000, 0, (1 << 31) - 1, -(1 << 31)),
    "max_wait_ms": (0, 0, 100, 500, -1, (1 << 31) - 1),
    "isolation_level": (0, 1, 1, 7),
    "key_type": (0, 0, 1, 9),
    "timestamp": (-1, -2, -3, -4, 0, 1, 1_700_000_000_000, (1 << 63) - 1, -(1 << 63)),
    "num_partitions": (1, 2, 3, -1, 0, -2, (1 << 31) - 1),
    "replication_factor": (1, 1, -1, 0, 3),
    "count": (1, 2, 3, 4, 0, -1, (1 << 31) - 1),
    "committed_metadata": (None, "", "m", "m" * 5_000),
    "session_epoch": (-1, -1, 0, 0, 1, 2, (1 << 31) - 1, -(1 << 31)),
    "session_id": (0, 0, 1, 2, 3, -1),
}
_NAMES: Final[Mapping[str, tuple[object, ...]]] = {
    "CreatableTopic": _OTHERS,
    "DeletableTopic": _OTHERS,
    "CreatableConfig": _WORDS,
    "AlterableConfig": _WORDS,
    "ReplacingConfig": _WORDS,
    "GrowingTopic": (*_OTHERS, "t"),
    "JoinGroupProtocol": (*("range",) * 6, "sticky", ""),
}
"""Of a field that is called `name`, by the class that has it; else topics."""


_OFTEN: Final = (
    (ApiKey.PRODUCE, ApiKey.FETCH),
    (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.DELETE_RECORDS),
    (ApiKey.JOIN_GROUP, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_COMMIT),
    (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT),
)
"""What the clients of one run do above all."""


class RandomRequests:
    """Draws requests. What answers tell is drawn again: `members`, `generations`, `producers`, `topic_ids`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._often = random.choice(_OFTEN)
        self.members: list[str] = ["", "", "stranger"]
        self.generations: list[int] = [-1, 0, 1]
        self.producers: list[int] = [5, (1 << 63) - 1]
        self.topic_ids: list[UUID] = [NO_UUID, UUID(int=1)]
        self._sequences: dict[tuple[int, int], int] = {}
        self._sent: list[bytes] = []
        self.numbers: dict[bytes, int] = {}
        """Of the batches that were drawn, by the bytes of their records."""

    def request(self) -> tuple[Structure, int]:
        """And the version that it is sent in."""
        row = self._random.choice([*APIS.values(), *[APIS[key] for key in self._often] * 6])
        version = self._random.randint(row.oldest, row.newest)
        return self._made(row.request, version), version

    def frame(self, request: Structure, version: int, number: int) -> bytes:
        """As it is sent, of a flexible version with tagged fields that the server does not know."""
        client_id = self._random.choice((CLIENT_ID, CLIENT_ID, "", None))
        content = b"".join(
            encode_request(request, version, correlation_id=number, client_id=client_id)
        )
        since = request.flexible_since
        if since is None or version < since or self._random.random() < 0.5:
            return content
        at = 4 + 2 + 2 + 4 + 2 + len(client_id or "")
        tagged = b"\x02\x07\x03abc\x8f\x4e\x00"
        assert content[at] == content[-1] == 0, content
        content = content[4:at] + tagged + content[at + 1 : -1] + tagged
        return struct.pack(">i", len(content)) + content

    def _made(self, kind: type[Structure], version: int) -> Structure:
        hints = get_type_hints(kind, include_extras=True)
        values: dict[str, object] = {}
        for field in fields(kind):  # type: ignore[arg-type]  # every message is a dataclass
            hint = hints[field.name]
            notes = get_args(hint) if get_origin(hint) is Annotated else ()
            versions = [each for each in notes if isinstance(each, Versions)]
            if not versions or versions[0].contain(version):
                values[field.name] = self._value(hint, version, kind.__name__, field.name)
        return kind(**values)

    def _value(self, hint: object, version: int, kind: str, name: str) -> object:
        random = self._random
        form: Form | None = None
        notes: list[object] = []
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            form = next((each for each in notes if isinstance(each, Form)), None)
        if form is RECORDS:
            return self.records()
        if get_origin(hint) in (Union, UnionType):
            if name not in _CHOSEN and random.random() < 0.2 and may_be_null(notes, version):
                return None
            (hint,) = [each for each in get_args(hint) if each is not type(None)]
        if get_origin(hint) is tuple:
            item = get_args(hint)[0]
            made = [
                self._value(item, version, kind, name)
                for _ in range(random.choice((0, 1, 1, 2, 4)))
            ]
            if made and random.random() < 0.2:
                made.append(random.choice(made))
            return tuple(made)
        if isinstance(hint, type) and issubclass(hint, Structure):
            return self._made(hint, version)
        if hint is UUID:
            return random.choice(self.topic_ids)
        if hint is bool:
            return random.random() < 0.5
        if name == "member_id":
            return random.choice([*self.members[:3], *self.members[-3:] * 2])
        if name == "generation_id":
            known = [*self.generations[:3], *self.generations[-2:] * 3]
            return random.choice([*known, (1 << 31) - 1, -(1 << 31)])
        if name in _CHOSEN:
            return random.choice(_CHOSEN[name])
        if name == "name":
            return random.choice(_NAMES.get(kind, _TOPICS))
        if hint is str:
            return random.choice(("", "x", "consumer", _LONG))
        if hint is bytes:
            return random.choice((b"", b"x", bytes(200)))
        assert form is not None, (kind, name)
        top = 1 << (_BITS[id(form)] - 1)
        return random.choice((0, 0, 0, 1, 1, 2, 100, -1, -2, top - 1, -top))

    # --- batches ---------------------------------------------------------------------------------

    def records(self) -> bytes | None:
        """Each of another value, `m`, a number and a point, but those that are sent again."""
        random = self._random
        way = random.random()
        if way < 0.04:
            return random.choice((None, b"", b"x", bytes(61), bytes(200)))
        if self._sent and way < 0.15:
            return random.choice(self._sent)
        number = len(self.numbers)
        now = 1_700_000_000_000
        count = random.choice((1, 1, 2, 5))
        batch = bytearray(
            encode_batch(
                [
                    Record(at, now + at, random.choice((None, b"k")), b"m%d.%d." % (number, at))
                    for at in range(count)
                ],
                compression=random.choice(list(Compression)),
            )
        )
        if way < 0.5:
            producer, epoch = random.choice(self.producers), random.choice((0, 0, 0, 1, 32767))
            sequence = self._sequences.get((producer, epoch), random.choice((0, 0, (1 << 31) - 2)))
            self._sequences[producer, epoch] = (sequence + count) % (1 << 31)
            stamp_producer(
                batch, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
            )
        if way > 0.7:
            self._bend(batch)
        self._sent.append(bytes(batch))
        self.numbers[bytes(batch[BATCH_HEADER_BYTES:])] = number
        if random.random() < 0.03:
            return bytes(batch) + random.choice(self._sent)
        return bytes(batch)

    def _bend(self, batch: bytearray) -> None:
        """One or two fields of the header, with the checksum made right mostly."""
        random = self._random
        for _ in range(random.choice((1, 1, 2))):
            at, code = random.choice(
                (
                    (0, "q"), (8, "i"), (12, "i"), (16, "b"), (21, "h"), (21, "h"), (23, "i"),
                    (27, "q"), (35, "q"), (35, "q"), (43, "q"), (51, "h"), (53, "i"), (57, "i"),
                )
            )  # fmt: skip
            top = 1 << (8 * struct.calcsize(f">{code}") - 1)
            (known,) = struct.unpack_from(f">{code}", batch, at)
            chosen = (0, 1, -1, -2, known + 1, known - 1, top - 1, -top, 1 << random.randrange(7))
            value = (random.choice(chosen) + top) % (2 * top) - top
            struct.pack_into(f">{code}", batch, at, value)
        if random.random() < 0.95:
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))


def is_silent(request: Structure) -> bool:
    """Whether it has no answer."""
    return isinstance(request, ProduceRequest) and request.acks == 0
