"""Every setting of the service: its name, unit, default, range, and the sentence that explains it.

A setting is a field of one of the frozen dataclasses below; a section is a field of `ServiceSettings`. What the value
must respect (SettingRule) is kept beside the field that holds it. Its full name is `section.field`, as in a TOML file;
its environment variable is `SEGMENTSTORE_SECTION_FIELD`. Where values come from, and which source wins, is decided in
`setting_sources.py`.

Invariants:

- The unit is in the name: `_bytes` and `_bytes_max` are bytes, `_byte_rate` are bytes a second, `_seconds` are seconds,
  `_count` are counts.
- Every setting has a default, a sentence and a range (or a list of choices); `check_setting` refuses what is outside.
- Settings are values: nothing here opens, reads or starts anything.

Retention of segments by name, as a person writes it in one setting (`retention.rules`):

    PREFIX=LIMIT[+LIMIT][;PREFIX=...]      e.g.  logs/=7d+100GiB; metrics/=30d; =365d

A limit with a unit of time keeps what is younger, one with a unit of size keeps that much from the end. The first rule
whose prefix fits decides; an empty prefix fits every name.

Tier 1 in BookKeeper, in one setting (`tier1.kind`); a server without a port has ZooKeeper's, without a path ledgers are
below `/ledgers`:

    bookkeeper://SERVER[:PORT][,SERVER[:PORT]...][/PATH]      e.g.  bookkeeper://zk1,zk2,zk3/ledgers
"""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TypeAlias, cast

from containers.container_settings import RetentionRule
from segmentstore.codec.quantities import parse_bytes, parse_seconds
from segmentstore.contracts.errors import InvalidRequestError
from tier1.bookkeeper.ledgers import Quorum
from tier1.bookkeeper.settings import GiveUpSettings, check_quorums

MIB = 1 << 20
GIB = 1 << 30
_WORDS_FOR_NO_ADDRESS = {
    "http.advertised_address": ("",),
    "wire.address": ("off",),
    "wire.advertised_address": ("",),
    "controller.address": ("off",),
    "kafka.address": ("off",),
    "kafka.advertised_address": ("",),
    "kafka.grpc_address": ("off",),
}

_ADDRESS = re.compile(r"(?:\[[^\]\s/]+\]|[^\s/]+):(?P<port>[0-9]{1,5})")
_ORIGIN = re.compile(r"https?://[^/\s,]+")
_BUCKET = re.compile(r"s3://[^/\s]")
BOOKKEEPER_SCHEME = "bookkeeper://"
_ZOOKEEPER_PORT = 2181
_LEDGERS_PATH = "/ledgers"
_SERVER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,/:\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
_NODE_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\s]+)+")

_PROCESS_COUNT = re.compile(r"auto|[1-9][0-9]{0,2}")
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*|")

SettingValue: TypeAlias = int | float | str


class SettingsError(InvalidRequestError):
    """Settings that cannot be used. `problems` has one sentence for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class SettingRule:
    """What a value must respect, and what it is for."""

    sentence: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


def number(default: float, sentence: str, *, minimum: float, maximum: float) -> float:
    """A field with a number."""
    rule = SettingRule(sentence, minimum, maximum)
    return field(default=default, metadata={"rule": rule})


def count(default: int, sentence: str, *, minimum: int, maximum: int) -> int:
    """A field with a whole number."""
    rule = SettingRule(sentence, minimum, maximum)
    return field(default=default, metadata={"rule": rule})


def text(default: str, sentence: str, *choices: str) -> str:
    """A field with text; one of the choices, if there are any."""
    rule = SettingRule(sentence, choices=choices)
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The store as a whole."""

    data_directory: str = text(
        "",
        "Directory that holds identity, Tier 1 and Tier 2; not needed if both tiers are in memory.",
    )
    container_count: int = count(
        4,
        "Containers that share the segments; fixed when the data directory is first used.",
        minimum=1,
        maximum=1024,
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The HTTP server."""

    address: str = text("127.0.0.1:9091", "HOST:PORT to listen on; port 0 takes any free one.")
    advertised_address: str = text(
        "",
        "HOST:PORT at which other nodes of a cluster reach it, if not the address listened on.",
    )
    append_bytes_max: int = count(
        8 * MIB,
        "Largest body of one append request; a larger one is answered 413.",
        minimum=1,
        maximum=64 * MIB,
    )
    hosts: str = text(
        "",
        "Host names, with commas, that clients may use besides the address listened on; *: any.",
    )
    cors_origins: str = text(
        "",
        "Origins, with commas, whose web pages may use the server: https://HOST[:PORT]; *: all.",
    )


@dataclass(frozen=True, slots=True)
class WireSettings:
    """The segment store protocol, spoken by Pravega's clients."""

    address: str = text(
        "127.0.0.1:12345", "HOST:PORT to listen on; port 0 takes any free one; off: not at all."
    )
    advertised_address: str = text(
        "", "HOST:PORT that clients are sent to, if not the address listened on."
    )
    unacknowledged_bytes_max: int = count(
        8 * MIB,
        "Bytes of appends without an answer at which one connection is not read further.",
        minimum=64 * 1024,
        maximum=GIB,
    )
    held_bytes_max: int = count(
        512 * MIB,
        "Bytes that all connections received and are not done, or that their clients do not take, above which each is"
        " read by its share; of one process.",
        minimum=64 * MIB,
        maximum=1 << 40,
    )


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The controller's gRPC service: scopes, streams, transactions, reader groups."""

    address: str = text(
        "127.0.0.1:9090", "HOST:PORT to listen on; port 0 takes any free one; off: not at all."
    )


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Record topics and consumer groups, for Kafka's clients."""

    address: str = text(
        "off", "HOST:PORT to listen on; port 0 takes any free one; off: not at all."
    )
    advertised_address: str = text(
        "", "HOST:PORT that clients are sent to; empty: the address that each has connected to."
    )
    grpc_address: str = text(
        "off", "HOST:PORT for topics over gRPC; port 0 takes any free one; off: not at all."
    )
    batch_bytes_max: int = count(
        16 * MIB,
        "Longest batch of records, whatever max.message.bytes of its topic says.",
        minimum=MIB,
        maximum=64 * MIB,
    )
    producer_byte_rate: int = count(
        0,
        "Bytes a second that one client (client.id) may produce to one process; 0: no bound.",
        minimum=0,
        maximum=1 << 40,
    )
    consumer_byte_rate: int = count(
        0,
        "Bytes a second that one client (client.id) may fetch from one process; 0: no bound.",
        minimum=0,
        maximum=1 << 40,
    )
    file_seconds: float = number(
        10.0,
        "Age at which records of a partition go to a file of their own in Tier 2; 0: they stay in segments.",
        minimum=0,
        maximum=86_400,
    )
    file_bytes: int = count(
        64 * MIB,
        "Batches of a partition that go to a file before they are so old.",
        minimum=64 * 1024,
        maximum=256 * MIB,
    )
    compaction_seconds: float = number(
        15.0,
        "Between two looks for partitions that are to be compacted by key.",
        minimum=0.1,
        maximum=86_400,
    )
    read_ahead_bytes_max: int = count(
        8 * MIB,
        "How far a consumer that reads such files in order is read ahead of; 0: not at all.",
        minimum=0,
        maximum=256 * MIB,
    )
    file_cache_bytes: int = count(
        32 * MIB,
        "Memory for blocks of such files that were read, and as much again for their indexes.",
        minimum=MIB,
        maximum=1 << 40,
    )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A node or a controller of a cluster; tier1.kind says which cluster."""

    node_name: str = text(
        "",
        "Name of a node, which outlives its process; empty: its host and the port of HTTP.",
    )
    session_seconds: float = number(
        10.0,
        "Silence after which a node has lost its containers, or a controller its leadership.",
        minimum=2,
        maximum=600,
    )
    drain_seconds: float = number(
        30.0,
        "How long a node that is told to end waits for its containers to be at other nodes; 0: not at all.",
        minimum=0,
        maximum=3600,
    )
    append_seconds: float = number(
        5.0,
        "How long a node tries appends again that bookies do not answer, before it gives the container to another node,"
        " which may reach them; of a store that is no cluster it is bookkeeper.retry_seconds.",
        minimum=1,
        maximum=86400,
    )
    recovery_seconds: float = number(
        20.0,
        "The same for a container that a node is given, whose log is to be opened and read.",
        minimum=1,
        maximum=86400,
    )
    tier2_seconds: float = number(
        60.0,
        "A node that Tier 2 has not answered for so long, while it answers others, has its containers moved to them.",
        minimum=30,
        maximum=86400,
    )
    capacity_count: int = count(
        0, "Containers that a node takes at most; 0: any number.", minimum=0, maximum=1024
    )

    @property
    def give_up(self) -> GiveUpSettings:
        """Of the logs of a node."""
        return GiveUpSettings(
            append_seconds_max=self.append_seconds, recovery_seconds_max=self.recovery_seconds
        )


@dataclass(frozen=True, slots=True)
class ProcessesSettings:
    """The processes that share the work of a store on one machine."""

    count: str = text(
        "1",
        "Processes that share the containers, or auto: one for each core; may be another number at every start.",
    )
    status_address: str = text(
        "127.0.0.1:0",
        "HOST:PORT of /health and /metrics of the process that starts the others; port 0 takes any free one.",
    )

    @property
    def is_several(self) -> bool:
        return self.count != "1"


@dataclass(frozen=True, slots=True)
class Tier1Settings:
    """The durable log."""

    kind: str = text(
        "file",
        "Where acknowledged operations are kept: file, bookkeeper://ZK1[:PORT],ZK2/LEDGERS, or memory, which loses"
        " them.",
    )
    journal_bytes_max: int = count(
        64 * MIB,
        "Size of a container's journal files, allocated ahead and recycled; the first of an epoch is smaller.",
        minimum=8 * MIB,
        maximum=4 * GIB,
    )


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    """Tier 1 in ledgers of Apache BookKeeper, for tier1.kind=bookkeeper://..."""

    root: str = text(
        "/segmentstore",
        "Node of ZooKeeper with the records of this store; every store has its own.",
    )
    ensemble_count: int = count(
        3, "Bookies over which the entries of a ledger are spread.", minimum=1, maximum=64
    )
    write_quorum_count: int = count(
        3, "Bookies that each entry is written to; at most the ensemble.", minimum=1, maximum=64
    )
    ack_quorum_count: int = count(
        2,
        "Bookies that have an entry on disk when it is acknowledged; one fewer may be lost for ever.",
        minimum=1,
        maximum=64,
    )
    few_bookies_count: int = count(
        0,
        "Bookies of a new ledger while fewer than an ensemble take writes, such as 2; each entry is on all of them"
        " before it is acknowledged. 0: appends wait for more bookies.",
        minimum=0,
        maximum=64,
    )
    ledger_bytes_max: int = count(
        512 * MIB,
        "Bytes of a ledger at which the next one begins; the log is truncated by whole ledgers.",
        minimum=MIB,
        maximum=64 * GIB,
    )
    ledger_age_seconds: float = number(
        900.0,
        "Age of a ledger with entries at which the next one begins.",
        minimum=1,
        maximum=30 * 86400,
    )
    retry_seconds: float = number(
        120.0,
        "How long an append that fails is tried again in new ledgers, and an opening that needs bookies or ZooKeeper,"
        " before the container stops and is started again.",
        minimum=1,
        maximum=86400,
    )
    bookie_seconds: float = number(
        5.0,
        "A bookie that does not answer a write or a read for so long is done without.",
        minimum=1,
        maximum=3600,
    )
    append_seconds: float = number(
        30.0,
        "An append that too few bookies have answered for so long fails in its ledger, and is tried in another.",
        minimum=1,
        maximum=3600,
    )
    session_seconds: float = number(
        10.0,
        "Silence after which ZooKeeper takes this process for gone.",
        minimum=2,
        maximum=600,
    )
    start_seconds: float = number(
        30.0,
        "How long a start waits for ZooKeeper and BookKeeper before it is given up.",
        minimum=1,
        maximum=3600,
    )
    password_file: str = text(
        "",
        "File whose first line is the ledgers' password; empty: SEGMENTSTORE_BOOKKEEPER_PASSWORD, or none.",
    )
    heap_bytes_max: int = count(
        256 * MIB,
        "Heap of the Java client, which runs in this process.",
        minimum=64 * MIB,
        maximum=64 * GIB,
    )
    direct_bytes_max: int = count(
        512 * MIB,
        "Memory of the Java client beside its heap, for entries on their way.",
        minimum=64 * MIB,
        maximum=64 * GIB,
    )

    @property
    def quorum(self) -> Quorum:
        return Quorum(
            ensemble=self.ensemble_count, write=self.write_quorum_count, ack=self.ack_quorum_count
        )

    @property
    def quorum_with_few_bookies(self) -> Quorum | None:
        few = self.few_bookies_count
        return Quorum(few, few, few) if few else None


@dataclass(frozen=True, slots=True)
class Tier2Settings:
    """Long-term storage."""

    place: str = text(
        "volumes",
        "Where flushed chunks are kept: volumes, filesystem, s3://BUCKET/PREFIX, or memory, which loses them.",
    )
    codec: str = text("lz4", "Compression of the blocks of a chunk.", "lz4", "zstd", "none")
    cold_codec: str = text(
        "lz4", "Compression of chunks that were not appended to for a while.", "lz4", "zstd", "none"
    )
    cold_seconds: float = number(
        600.0,
        "Age of a segment's last append that makes its chunks cold.",
        minimum=1,
        maximum=365 * 86400,
    )
    compaction_byte_rate: int = count(
        16 * MIB,
        "Bytes per second that each container may re-write to join small chunks.",
        minimum=64 * 1024,
        maximum=16 * GIB,
    )
    scrub_byte_rate: int = count(
        0,
        "Bytes per second that each container reads again to prove them; 0: never.",
        minimum=0,
        maximum=16 * GIB,
    )
    volume_scrub_byte_rate: int = count(
        MIB,
        "Bytes per second of the volumes that are read again, once a week, and compared with their index; 0: never.",
        minimum=0,
        maximum=16 * GIB,
    )
    worker_thread_count: int = count(
        4,
        "Threads that compress, hash and write chunks, shared by all containers in turn.",
        minimum=1,
        maximum=64,
    )
    garbage_grace_seconds: float = number(
        60.0,
        "How long an object stays after this process learned that the last reference to it is gone.",
        minimum=0,
        maximum=30 * 86400,
    )


@dataclass(frozen=True, slots=True)
class S3StoreSettings:
    """Tier 2 in a bucket. Credentials come by the usual chain of AWS: environment, shared files, roles."""

    endpoint_url: str = text("", "http(s)://HOST:PORT of a server of S3's protocol; empty: AWS.")
    region: str = text("us-east-1", "Region of the bucket.")
    storage_class: str = text("", "Storage class of new objects; empty: the bucket's default.")
    server_side_encryption: str = text(
        "", "Encryption of new objects; empty: the bucket's default.", "", "AES256", "aws:kms"
    )
    kms_key_id: str = text("", "Key for aws:kms; empty: the account's default.")
    sign_payload: str = text(
        "false", "Sign a hash of every body; bodies have a CRC32C in either case.", "false", "true"
    )
    read_client: str = text(
        "aioboto3",
        "Client library of reads; obstore (to be installed) takes a tenth of the CPU for small ones.",
        "aioboto3",
        "obstore",
    )


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Memory for bytes that are not yet in Tier 2, and for recent reads."""

    bytes_max: int = count(
        512 * MIB,
        "Memory for cached segment bytes, shared by all containers; writers wait at the limit.",
        minimum=4 * MIB,
        maximum=1024 * GIB,
    )


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """When acknowledged bytes move to Tier 2."""

    flush_bytes: int = count(
        64 * 10**6,
        "Un-flushed bytes of one container that make a flush due.",
        minimum=1,
        maximum=16 * GIB,
    )
    flush_interval_seconds: float = number(
        10.0,
        "Age of the oldest un-flushed byte that makes a flush due.",
        minimum=0.001,
        maximum=86400,
    )


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long segments keep their bytes. Streams have policies of their own."""

    rules: str = text(
        "", "PREFIX=LIMIT[+LIMIT];... by segment name, such as logs/=7d+100GiB; empty: all is kept."
    )


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """When a container that failed is assigned again."""

    delay_initial_seconds: float = number(
        0.5, "Pause before the first restart of a failed container.", minimum=0.001, maximum=3600
    )
    delay_max_seconds: float = number(
        30.0,
        "Longest pause; each further failure doubles it up to this.",
        minimum=0.001,
        maximum=86400,
    )
    forgive_after_seconds: float = number(
        60.0,
        "A container that ran this long starts again from the first pause when it fails.",
        minimum=0.001,
        maximum=86400,
    )
    same_failure_count: int = count(
        8,
        "A container that fails so often in a row for the same cause at the same place stays down until the process"
        " is started again. Full disks, lost connections and the like do not count: they may pass.",
        minimum=1,
        maximum=1_000_000,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The service's own log lines, on stderr."""

    level: str = text(
        "info", "Least severe line that is written.", "debug", "info", "warning", "error"
    )
    format: str = text(
        "text", "text: key=value lines; json: one JSON object a line.", "text", "json"
    )


@dataclass(frozen=True, slots=True)
class ShutdownSettings:
    """How the process ends on SIGTERM or SIGINT."""

    grace_seconds: float = number(
        30.0,
        "Time for requests in flight and for closing the containers; after it the process exits all the same.",
        minimum=0,
        maximum=3600,
    )


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """All sections."""

    store: StoreSettings = field(default_factory=StoreSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    wire: WireSettings = field(default_factory=WireSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    processes: ProcessesSettings = field(default_factory=ProcessesSettings)
    tier1: Tier1Settings = field(default_factory=Tier1Settings)
    bookkeeper: BookKeeperSettings = field(default_factory=BookKeeperSettings)
    tier2: Tier2Settings = field(default_factory=Tier2Settings)
    s3: S3StoreSettings = field(default_factory=S3StoreSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    writer: WriterSettings = field(default_factory=WriterSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    log: LogSettings = field(default_factory=LogSettings)
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)


SECTIONS: tuple[type, ...] = (
    StoreSettings,
    HttpSettings,
    WireSettings,
    ControllerSettings,
    KafkaSettings,
    ClusterSettings,
    ProcessesSettings,
    Tier1Settings,
    BookKeeperSettings,
    Tier2Settings,
    S3StoreSettings,
    CacheSettings,
    WriterSettings,
    RetentionSettings,
    RestartSettings,
    LogSettings,
    ShutdownSettings,
)


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One setting as the sources and `config show` see it."""

    section: str
    name: str
    type: type[int | float | str]
    default: SettingValue
    rule: SettingRule

    @property
    def full_name(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def environment_name(self) -> str:
        return f"SEGMENTSTORE_{self.section}_{self.name}".upper()

    @property
    def is_size(self) -> bool:
        return not {"bytes", "byte"}.isdisjoint(self.name.split("_"))

    @property
    def is_duration(self) -> bool:
        return self.name.endswith("_seconds")


def setting_definitions() -> Iterator[SettingDefinition]:
    """Every setting, in the order of this file."""
    for section_field, section_type in zip(fields(ServiceSettings), SECTIONS, strict=True):
        for setting_field in fields(section_type):
            yield SettingDefinition(
                section=section_field.name,
                name=setting_field.name,
                type=cast("type[int | float | str]", setting_field.type),
                default=cast("SettingValue", setting_field.default),
                rule=cast("SettingRule", setting_field.metadata["rule"]),
            )


def check_setting(definition: SettingDefinition, value: SettingValue) -> str | None:
    """What is wrong with a value, as a sentence; None if nothing is."""
    rule = definition.rule
    if rule.choices and value not in rule.choices:
        return f"{definition.full_name} must be one of {', '.join(rule.choices)}, not {value!r}"
    if isinstance(value, str):
        return None
    # TOML has `nan`, which is neither below nor above anything.
    if rule.minimum is not None and not value >= rule.minimum:
        return f"{definition.full_name} must be at least {rule.minimum}, not {value}"
    if rule.maximum is not None and value > rule.maximum:
        return f"{definition.full_name} must be at most {rule.maximum}, not {value}"
    return None


def check_relations(settings: ServiceSettings) -> list[str]:
    """What is wrong between values that are each in range; one sentence for each."""
    problems = []
    if settings.restart.delay_initial_seconds > settings.restart.delay_max_seconds:
        problems.append("restart.delay_initial_seconds must not be above restart.delay_max_seconds")
    addresses = {
        "http.address": settings.http.address,
        "http.advertised_address": settings.http.advertised_address,
        "wire.address": settings.wire.address,
        "wire.advertised_address": settings.wire.advertised_address,
        "controller.address": settings.controller.address,
        "processes.status_address": settings.processes.status_address,
        "kafka.address": settings.kafka.address,
        "kafka.advertised_address": settings.kafka.advertised_address,
        "kafka.grpc_address": settings.kafka.grpc_address,
    }
    for name, address in addresses.items():
        if not is_address(address) and address not in _WORDS_FOR_NO_ADDRESS.get(name, ()):
            problems.append(f"{name} must be HOST:PORT, not {address!r}")
        elif name.endswith("advertised_address") and address.endswith(":0"):
            problems.append(
                f"{name} must be HOST:PORT of a port that clients reach, not {address!r}"
            )
    problems += [
        "http.cors_origins must be https://HOST[:PORT] or http://HOST[:PORT], with commas between, or *,"
        f" not {origin!r}"
        for origin in split_list(settings.http.cors_origins)
        if origin != "*" and _ORIGIN.fullmatch(origin) is None
    ]
    problems += [
        f"http.hosts must be host names with commas between, or *, not {host!r}"
        for host in split_list(settings.http.hosts)
        if "/" in host or " " in host
    ]
    if _PROCESS_COUNT.fullmatch(settings.processes.count) is None:
        problems.append(
            f"processes.count must be auto or a number from 1 to 999, not {settings.processes.count!r}"
        )
    place = settings.tier2.place
    if place not in ("volumes", "filesystem", "memory") and _BUCKET.match(place) is None:
        problems.append(
            f"tier2.place must be volumes, filesystem, memory or s3://BUCKET/PREFIX, not {place!r}"
        )
    endpoint = settings.s3.endpoint_url
    if endpoint and _ORIGIN.match(endpoint) is None:
        problems.append(
            f"s3.endpoint_url must be http://HOST:PORT or https://HOST:PORT, not {endpoint!r}"
        )
    problems += _check_tier1(settings)
    if _NODE_NAME.fullmatch(settings.cluster.node_name) is None:
        problems.append(
            "cluster.node_name must be letters, digits, dots, colons, dashes and underscores, not"
            f" {settings.cluster.node_name!r}"
        )
    try:
        parse_retention_rules(settings.retention.rules)
    except ValueError as error:
        problems.append(f"retention.rules: {error}")
    if settings.wire.address == "off" and settings.controller.address != "off":
        problems.append(
            "the controller sends clients to the wire: set controller.address=off as well"
        )
    if settings.kafka.address == "off" and settings.kafka.grpc_address != "off":
        problems.append(
            "topics are served where kafka.address is: set it, or kafka.grpc_address=off as well"
        )
    return problems


def _check_tier1(settings: ServiceSettings) -> list[str]:
    problems = []
    kind = settings.tier1.kind
    if kind.startswith(BOOKKEEPER_SCHEME):
        try:
            parse_bookkeeper_place(kind)
        except ValueError as error:
            problems.append(f"tier1.kind: {error}")
    elif kind not in ("file", "memory"):
        problems.append(
            f"tier1.kind must be file, memory or bookkeeper://ZK1[:PORT],ZK2/LEDGERS, not {kind!r}"
        )
    bookies = settings.bookkeeper
    try:
        check_quorums(bookies.quorum, bookies.quorum_with_few_bookies)
    except ValueError as error:
        names = ("ensemble_count", "write_quorum_count", "ack_quorum_count", "few_bookies_count")
        problems.append(f"{', '.join(f'bookkeeper.{name}' for name in names)}: {error}")
    if _NODE_PATH.fullmatch(bookies.root) is None:
        problems.append(
            f"bookkeeper.root must be a path such as /segmentstore, not {bookies.root!r}"
        )
    return problems


def is_address(text: str) -> bool:
    """Whether it is HOST:PORT, which split_address() takes apart."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match["port"]) <= 65535


def split_address(address: str) -> tuple[str, int]:
    """Host and port of a checked address; an IPv6 address is bracketed where a port follows it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_reachable_address(host: str) -> bool:
    """Whether it is an IP address that other processes can be sent to: none that means every address."""
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class BookKeeperPlace:
    """A BookKeeper cluster, by its ZooKeeper."""

    servers: str
    """HOST:PORT, with commas."""
    ledgers_path: str


def parse_bookkeeper_place(text: str) -> BookKeeperPlace:
    """Raises ValueError with a sentence."""
    servers, slash, path = text.removeprefix(BOOKKEEPER_SCHEME).partition("/")
    named = []
    for server in servers.split(","):
        match = _SERVER.fullmatch(server)
        if match is None or int(match["port"] or 1) not in range(1, 65536):
            raise ValueError(
                f"a BookKeeper is bookkeeper://ZK1[:PORT],ZK2[:PORT]/LEDGERS, by its ZooKeeper, not {text!r}"
            )
        named.append(server if match["port"] else f"{server}:{_ZOOKEEPER_PORT}")
    ledgers_path = f"/{path}" if slash and path else _LEDGERS_PATH
    if _NODE_PATH.fullmatch(ledgers_path) is None:
        raise ValueError(f"the ledgers are below a path such as /ledgers, not {ledgers_path!r}")
    return BookKeeperPlace(",".join(named), ledgers_path)


def split_list(text: str) -> tuple[str, ...]:
    """What stands between commas, without what surrounds it."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_retention_rules(text: str) -> tuple[RetentionRule, ...]:
    """Raises ValueError with a sentence."""
    return tuple(_retention_rule(part.strip()) for part in text.split(";") if part.strip())


def _retention_rule(text: str) -> RetentionRule:
    prefix, equals, limits = text.rpartition("=")
    if not equals:
        raise ValueError(f"a retention rule is PREFIX=LIMIT, such as logs/=7d, not {text!r}")
    age: float | None = None
    size: int | None = None
    for limit in limits.split("+"):
        seconds = _retention_seconds_or_none(limit)
        if seconds is not None and age is None:
            age = seconds
        elif seconds is None and size is None:
            size = parse_bytes(limit)
        else:
            raise ValueError(f"a retention rule has one age and one size at most, not {text!r}")
    return RetentionRule(prefix=prefix.strip(), age_seconds=age, bytes_max=size)


def _retention_seconds_or_none(limit: str) -> float | None:
    if limit.strip()[-1:].isdigit():
        raise ValueError(f"a retention limit needs a unit, such as 7d or 100GiB, not {limit!r}")
    try:
        return parse_seconds(limit)
    except ValueError:
        return None
